from __future__ import annotations
import orjson
import pytest
from export_queue.core.sinks import SqlSink
from export_queue.core.testing import SinkConformance
from sqlalchemy import create_engine, inspect, text


def read_tables(url):
    engine = create_engine(url)
    found = {}
    with engine.connect() as c:
        names=set(inspect(c).get_table_names())
        for name in names:
            if name.startswith("conformance"):
                for row in c.execute(text(f'SELECT * FROM "{name}_live"')):
                    found[name, row[0].encode()] = row
    engine.dispose()
    return found

class OneColumn(SinkConformance):
    takes="text"
    def make_sink(self): return SqlSink(self.url)
    def read_all(self): return {k: r[1].encode() for k,r in read_tables(self.url).items()}

class TestSqliteSink(OneColumn):
    @pytest.fixture(autouse=True)
    def _t(self, tmp_path): self.url=f"sqlite:///{tmp_path}/sink.db"

class TestPostgresqlSink(OneColumn):
    @pytest.fixture(autouse=True)
    def _t(self, postgres_url): self.url=postgres_url
