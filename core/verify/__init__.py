"""Verify: compare what a sink holds with what it should hold, while producers and drains continue."""

from export_queue.core.verify.report import Sample, VerifyReport
from export_queue.core.verify.request import VerifyOptions, VerifyRequest
from export_queue.core.verify.verification import VerifyProgress, verify, verify_as_requested

__all__ = [
    "Sample",
    "VerifyOptions",
    "VerifyProgress",
    "VerifyReport",
    "VerifyRequest",
    "verify",
    "verify_as_requested",
]
