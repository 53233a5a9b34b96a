"""SQL databases as a sink: a table per collection, each row guarded by a rank in the row."""

from export_queue.core.sinks.sql.sink import SqlSink

__all__ = ["SqlSink"]
