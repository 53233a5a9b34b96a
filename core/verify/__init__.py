"""Verify: compare what a sink holds with what it should hold, repair it, and replace it, while producers and drains
continue.
"""

from export_queue.core.verify.finished import FinishedComparison, finished_comparisons
from export_queue.core.verify.rebuild import POINTER, RebuildRequest, back, cancel, finish, start, switch
from export_queue.core.verify.rebuild_record import STEPS, Rebuild, find_rebuild, list_rebuilds
from export_queue.core.verify.rendering import Refused, Rendered, Renderer
from export_queue.core.verify.replay import ReplayReport, replay
from export_queue.core.verify.report import Sample, VerifyReport
from export_queue.core.verify.request import VerifyOptions, VerifyRequest
from export_queue.core.verify.shares import Divider, Page, divided
from export_queue.core.verify.spool import Spool
from export_queue.core.verify.verification import Comparison, Expected, VerifyProgress, read_loads
from export_queue.core.verify.verifying import check_bound, verify, verify_as_requested

__all__ = [
    "POINTER",
    "STEPS",
    "Comparison",
    "Divider",
    "Expected",
    "FinishedComparison",
    "Page",
    "Rebuild",
    "RebuildRequest",
    "Refused",
    "Rendered",
    "Renderer",
    "ReplayReport",
    "Sample",
    "Spool",
    "VerifyOptions",
    "VerifyProgress",
    "VerifyReport",
    "VerifyRequest",
    "back",
    "cancel",
    "check_bound",
    "divided",
    "find_rebuild",
    "finish",
    "finished_comparisons",
    "list_rebuilds",
    "read_loads",
    "replay",
    "start",
    "switch",
    "verify",
    "verify_as_requested",
]
