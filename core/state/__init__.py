"""The state of a queue: the latest entry of each key, and mirror loads, which make it equal to a data set."""

from export_queue.core.state.data_files import rows_of_file, rows_of_query
from export_queue.core.state.mirror import MirrorReport, MirrorWriter
from export_queue.core.state.reading import StateContent, StateSource
from export_queue.core.state.state import State
from export_queue.core.state.trimming import trim

__all__ = [
    "MirrorReport",
    "MirrorWriter",
    "State",
    "StateContent",
    "StateSource",
    "rows_of_file",
    "rows_of_query",
    "trim",
]
