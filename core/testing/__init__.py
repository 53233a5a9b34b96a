"""What users and their tests may import: the memory sink, a check of exporters, the sinks'
conformance suite, servers.

Servers are imported from :mod:`tests.support.servers`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from export_queue.core.sinks import MemorySink
from export_queue.core.testing.converging import assert_converges

if TYPE_CHECKING:
    from export_queue.core.testing.fenced_conformance import FencedConformance
    from export_queue.core.testing.sink_conformance import SinkConformance

__all__ = ["FencedConformance", "MemorySink", "SinkConformance", "assert_converges"]

_SUITES = (
    "fenced_conformance",
    "fenced_races",
    "sink_conformance",
    "sink_histories",
    "sink_races",
    "sink_sweeps",
    "sink_target",
)


def __getattr__(name: str) -> Any:
    # only the suites need pytest and hypothesis
    if name not in ("FencedConformance", "SinkConformance"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("pytest") is not None:
        import pytest

        for module in _SUITES:
            pytest.register_assert_rewrite(f"{__name__}.{module}")
    if name == "FencedConformance":
        from export_queue.core.testing.fenced_conformance import FencedConformance

        return FencedConformance
    from export_queue.core.testing.sink_conformance import SinkConformance

    return SinkConformance
