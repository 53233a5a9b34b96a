"""Redis as a sink: strings, hashes or members of sets, each record guarded by a rank beside it."""

from export_queue.core.sinks.redis.sink import RedisSink

__all__ = ["RedisSink"]
