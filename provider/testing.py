"""For users' tests: the memory sink, ``assert_converges``, and acceptance tests for custom sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from export_queue.core.testing import FencedConformance, MemorySink, SinkConformance, assert_converges

__all__ = ["FencedConformance", "MemorySink", "SinkConformance", "assert_converges"]

if not TYPE_CHECKING:  # with a module's __getattr__, a checker takes every name for one that exists

    def __getattr__(name: str) -> object:
        # imported one by one, because the acceptance tests need pytest and hypothesis
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from export_queue.core import testing

        return getattr(testing, name)
