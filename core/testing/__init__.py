"""For users' tests: the memory sink, a check of exporters, and the conformance tests of sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from export_queue.core.sinks import MemorySink
from export_queue.core.testing.converging import assert_converges

if TYPE_CHECKING:
    from export_queue.core.testing.conformance import FencedConformance, SinkConformance

__all__ = ["FencedConformance", "MemorySink", "SinkConformance", "assert_converges"]


def __getattr__(name: str) -> Any:
    # only the conformance tests need pytest and hypothesis
    if name not in ("FencedConformance", "SinkConformance"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from export_queue.core.testing import conformance

    return getattr(conformance, name)
