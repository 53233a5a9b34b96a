"""The state of a queue: the latest entry of each key, and mirror loads, which make it equal to a data set."""

from export_queue.core.state.comparison import ColumnComparison
from export_queue.core.state.data_files import rows_of_file, rows_of_query
from export_queue.core.state.mirror import MirrorWriter, settled_content
from export_queue.core.state.mirror_report import Found, MirrorOptions, MirrorReport, check_deletes
from export_queue.core.state.reading import StateContent, StateSource, encoded_prefix, require_complete
from export_queue.core.state.records import NO_VALUE
from export_queue.core.state.state import State, read_state
from export_queue.core.state.trimming import trim

__all__ = [
    "NO_VALUE",
    "ColumnComparison",
    "Found",
    "MirrorOptions",
    "MirrorReport",
    "MirrorWriter",
    "State",
    "StateContent",
    "StateSource",
    "check_deletes",
    "encoded_prefix",
    "read_state",
    "require_complete",
    "rows_of_file",
    "rows_of_query",
    "settled_content",
    "trim",
]
