"""Drains: from a claim on a queue's ranges to records in a sink and a report."""

from export_queue.core.drain.chunk import OnError, Rules
from export_queue.core.drain.engine import Engine, LocalEngine, Progress
from export_queue.core.drain.exporters import Entry, Exported, Exporter, load_exporter
from export_queue.core.drain.fencing import check_rules, claim_units
from export_queue.core.drain.leases import LeaseKeeper
from export_queue.core.drain.local import drain, opened_exporter, opened_sink, readmit
from export_queue.core.drain.pipeline import drain_ranges
from export_queue.core.drain.report import Counts, DrainReport, Problem, RangeReport, total
from export_queue.core.drain.retrying import retry_dead_letters
from export_queue.core.drain.run import DrainRequest, IfLocked, run_drain
from export_queue.core.drain.transient import DRAIN_RETRY, call_again

__all__ = [
    "DRAIN_RETRY",
    "Counts",
    "DrainReport",
    "DrainRequest",
    "Engine",
    "Entry",
    "Exported",
    "Exporter",
    "IfLocked",
    "LeaseKeeper",
    "LocalEngine",
    "OnError",
    "Problem",
    "Progress",
    "RangeReport",
    "Rules",
    "call_again",
    "check_rules",
    "claim_units",
    "drain",
    "drain_ranges",
    "load_exporter",
    "opened_exporter",
    "opened_sink",
    "readmit",
    "retry_dead_letters",
    "run_drain",
    "total",
]
