"""The state of a queue: the latest entry of each key, and mirror loads, which make it equal to a data set."""

from export_queue.core.state.comparison import ColumnComparison
from export_queue.core.state.mirror import MirrorWriter, begun_mirror, name_of_mirror, settled_content
from export_queue.core.state.mirror_report import Found, MirrorOptions, MirrorReport, check_deletes
from export_queue.core.state.one_key import LAST_SEQ, latest_entry
from export_queue.core.state.state import State, read_state
from export_queue.core.state.state_status import StateStatus
from export_queue.core.state.trimming import trim

__all__ = [
    "LAST_SEQ",
    "ColumnComparison",
    "Found",
    "MirrorOptions",
    "MirrorReport",
    "MirrorWriter",
    "State",
    "StateStatus",
    "begun_mirror",
    "check_deletes",
    "latest_entry",
    "name_of_mirror",
    "read_state",
    "settled_content",
    "trim",
]
