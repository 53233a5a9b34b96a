"""The conformance tests of sinks: one suite for sinks with ranks, and one for sinks with claims."""

from __future__ import annotations

import pytest

for _module in ("fenced_races", "fenced_sink", "races", "scans", "sink", "sweeps", "target"):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")

from export_queue.core.testing.conformance.fenced_sink import FencedConformance  # noqa: E402
from export_queue.core.testing.conformance.sink import SinkConformance  # noqa: E402

__all__ = ["FencedConformance", "SinkConformance"]
