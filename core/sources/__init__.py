"""Sources: where the full content of a queue comes from, for verify and whatever else must know all records."""

from export_queue.core.sources.function import FunctionSource
from export_queue.core.sources.protocol import Content, Source
from export_queue.core.sources.spool import EntrySpool, Row

__all__ = ["Content", "EntrySpool", "FunctionSource", "Row", "Source"]
