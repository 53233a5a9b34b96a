"""Verify: compare what a sink holds with what it should hold, repair it, and replace it, while producers and drains
continue.
"""

from export_queue.core.verify.rebuild import POINTER, RebuildRequest, back, cancel, finish, start, switch
from export_queue.core.verify.rebuild_record import STEPS, Rebuild, find_rebuild, list_rebuilds
from export_queue.core.verify.replay import ReplayReport, replay
from export_queue.core.verify.report import Sample, VerifyReport
from export_queue.core.verify.request import VerifyOptions, VerifyRequest
from export_queue.core.verify.verification import VerifyProgress
from export_queue.core.verify.verifying import verify, verify_as_requested

__all__ = [
    "POINTER",
    "STEPS",
    "Rebuild",
    "RebuildRequest",
    "ReplayReport",
    "Sample",
    "VerifyOptions",
    "VerifyProgress",
    "VerifyReport",
    "VerifyRequest",
    "back",
    "cancel",
    "find_rebuild",
    "finish",
    "list_rebuilds",
    "replay",
    "start",
    "switch",
    "verify",
    "verify_as_requested",
]
