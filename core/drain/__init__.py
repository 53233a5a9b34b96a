"""Drains: from a claim on a queue's ranges to records in a sink and a report."""

from export_queue.core.drain.admission import StoreHandle, admit, ask_sink, readmit, warn_of_closed
from export_queue.core.drain.binding import Binding, binding_with, check_binding, filled_in
from export_queue.core.drain.claims import Terms, rounds
from export_queue.core.drain.dead_letters import retry_dead_letters
from export_queue.core.drain.deadline import Deadline
from export_queue.core.drain.engine import Engine, Progress
from export_queue.core.drain.export_wait import wait_exported
from export_queue.core.drain.exported import Standing, is_exported
from export_queue.core.drain.exporters import COPY, Entry, Exported, Exporter, Failure, load_exporter, opened_exporter
from export_queue.core.drain.fenced import claim_units
from export_queue.core.drain.follow import (
    EngineOf,
    Follower,
    RoundOver,
    follow,
    follow_as_requested,
    follower_options,
)
from export_queue.core.drain.left_dead import dead_letters_allowed, refuse_dead_letters
from export_queue.core.drain.local import LocalEngine, drain, drain_as_requested
from export_queue.core.drain.one_drain import run_drain
from export_queue.core.drain.parts import LEAST_WEIGHT, Part
from export_queue.core.drain.pipeline import drain_ranges
from export_queue.core.drain.progress import Left, OnLeft
from export_queue.core.drain.promise import Promise
from export_queue.core.drain.report import Counts, DrainReport, Problem, RangeReport, by_range, grouped, total
from export_queue.core.drain.request import LEASE_SECONDS, TASK_OPTIONS, DrainOptions, DrainRequest, described_options
from export_queue.core.drain.sending import Sender
from export_queue.core.drain.sharing import share_out
from export_queue.core.drain.sink_fence import SinkFence
from export_queue.core.drain.submitted import DriverState, SubmittedDrain
from export_queue.core.drain.tally import Tally
from export_queue.core.drain.token import ExportToken, token_of, token_of_long
from export_queue.core.drain.transient import DRAIN_RETRY
from export_queue.core.drain.why import FinishedDrain, KeyStory, LastCommit, finished_drains, why

__all__ = [
    "COPY",
    "DRAIN_RETRY",
    "LEASE_SECONDS",
    "LEAST_WEIGHT",
    "TASK_OPTIONS",
    "Binding",
    "Counts",
    "Deadline",
    "DrainOptions",
    "DrainReport",
    "DrainRequest",
    "DriverState",
    "Engine",
    "EngineOf",
    "Entry",
    "ExportToken",
    "Exported",
    "Exporter",
    "Failure",
    "FinishedDrain",
    "Follower",
    "KeyStory",
    "LastCommit",
    "Left",
    "LocalEngine",
    "OnLeft",
    "Part",
    "Problem",
    "Progress",
    "Promise",
    "RangeReport",
    "RoundOver",
    "Sender",
    "SinkFence",
    "Standing",
    "StoreHandle",
    "SubmittedDrain",
    "Tally",
    "Terms",
    "admit",
    "ask_sink",
    "binding_with",
    "by_range",
    "check_binding",
    "claim_units",
    "dead_letters_allowed",
    "described_options",
    "drain",
    "drain_as_requested",
    "drain_ranges",
    "filled_in",
    "finished_drains",
    "follow",
    "follow_as_requested",
    "follower_options",
    "grouped",
    "is_exported",
    "load_exporter",
    "opened_exporter",
    "readmit",
    "refuse_dead_letters",
    "retry_dead_letters",
    "rounds",
    "run_drain",
    "share_out",
    "token_of",
    "token_of_long",
    "total",
    "wait_exported",
    "warn_of_closed",
    "why",
]
