from __future__ import annotations
import zlib, pytest
from export_queue.core.sinks import RedisSink
from export_queue.core.testing import SinkConformance

class TestRedisSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _t(self, redis_server, redis_client): self.server=redis_server; self.client=redis_client
    def make_sink(self): return RedisSink(self.server.host,self.server.port,password=self.server.password)
    def read_all(self):
        keys=list(self.client.scan_iter("conformance*",count=10000))
        out={}
        for k,v in zip(keys,self.client.mget(keys) if keys else []):
            if v is not None:
                c,_,i=k.partition(b":"); out[c.decode(),i]=v
        return out

class TestRedisSetSink(TestRedisSink):
    takes="nothing"
    def make_sink(self): return RedisSink(self.server.host,self.server.port,password=self.server.password,target="set")
    def record_id(self,name): return b"%d/%b"%(zlib.crc32(name)%3,name)
    def read_all(self):
        out={}
        for k in self.client.scan_iter("conformance*",count=10000):
            c,_,i=k.partition(b":")
            for m in self.client.smembers(k): out[c.decode(),i+b"/"+m]=b""
        return out
