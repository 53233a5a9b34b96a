"""Sources: where the full content of a queue comes from, for first loads, verify and whatever else must know all
records; and data sets of users as rows and records.
"""

from export_queue.core.sources.data_files import rows_of_file, rows_of_own_query, rows_of_query
from export_queue.core.sources.finding import STATE, AnySource, find_source, name_of_source, opened_content
from export_queue.core.sources.first_load import FirstLoadReport, begun_first_load, load_from
from export_queue.core.sources.function import FunctionSource
from export_queue.core.sources.protocol import Content, Source
from export_queue.core.sources.records import NO_VALUE, Columns, as_key, is_batch, missing_column, parts_of, record_of
from export_queue.core.sources.spool import EntrySpool, Row
from export_queue.core.sources.sql import SqlSource
from export_queue.core.sources.state import (
    StateContent,
    StateSource,
    encoded_prefix,
    require_complete,
    require_kept,
    require_loaded,
)
from export_queue.core.sources.table import TableSource

__all__ = [
    "NO_VALUE",
    "STATE",
    "AnySource",
    "Columns",
    "Content",
    "EntrySpool",
    "FirstLoadReport",
    "FunctionSource",
    "Row",
    "Source",
    "SqlSource",
    "StateContent",
    "StateSource",
    "TableSource",
    "as_key",
    "begun_first_load",
    "encoded_prefix",
    "find_source",
    "is_batch",
    "load_from",
    "missing_column",
    "name_of_source",
    "opened_content",
    "parts_of",
    "record_of",
    "require_complete",
    "require_kept",
    "require_loaded",
    "rows_of_file",
    "rows_of_own_query",
    "rows_of_query",
]
