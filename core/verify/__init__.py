"""Verify: compare what a sink holds with what it should hold, while producers and drains continue; and repair it."""

from export_queue.core.verify.replay import ReplayReport, replay
from export_queue.core.verify.report import Sample, VerifyReport
from export_queue.core.verify.request import VerifyOptions, VerifyRequest
from export_queue.core.verify.verification import VerifyProgress
from export_queue.core.verify.verifying import verify, verify_as_requested

__all__ = [
    "ReplayReport",
    "Sample",
    "VerifyOptions",
    "VerifyProgress",
    "VerifyReport",
    "VerifyRequest",
    "replay",
    "verify",
    "verify_as_requested",
]
