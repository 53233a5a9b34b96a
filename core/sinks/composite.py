"""Several sinks as one. An operation is acknowledged when all of them have acknowledged it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from export_queue.core.errors import SinkConfigurationError
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import (
    ApplyResult,
    BoundSink,
    Capabilities,
    ContinuingSink,
    Rejection,
    Sink,
    SweepableSink,
    call_sink,
    check_sink,
)

log = logging.getLogger("export_queue.sweep")


class CompositeSink:
    """Passes each batch to all its parts, one after the other.

    If a part fails, the batch is not acknowledged and its entries stay queued. At the next attempt, the parts before it
    report what they have as stale. An operation that one part rejects is rejected, and later parts do not receive it.
    Earlier parts have it until the dead letter is retried or a newer entry arrives. So put the strictest part first.

    :param parts: name and sink of each part. The composite closes them.
    :raises SinkConfigurationError: there are no parts, or two have the same name.
    """

    def __init__(self, parts: Sequence[tuple[str, Sink]]) -> None:
        names = [name for name, _ in parts]
        if not names or len(set(names)) < len(names):
            raise SinkConfigurationError(f"a composite sink has parts of different names, found {names}")
        for name, sink in parts:
            check_sink(sink)
            if sink.capabilities.fenced:
                raise SinkConfigurationError(f"part {name!r} of a composite sink needs the guard seq, found fence")
        self._parts = list(parts)

    @property
    def capabilities(self) -> Capabilities:
        found = [sink.capabilities for _, sink in self._parts]
        # the smallest number, and True only if it is True for all
        least: dict[str, Any] = {f.name: min(getattr(one, f.name) for one in found) for f in fields(Capabilities)}
        return Capabilities(**least)

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        for _, sink in self._parts:
            named = {"queue_id": queue_id, "store_id": store_id, "fence": fence, "shown": shown, "readmit": readmit}
            call_sink(sink, "admit", **named)

    def binding(self) -> Mapping[str, Any]:
        parts = {name: sink.binding() if isinstance(sink, BoundSink) else {} for name, sink in self._parts}
        return {"kind": "composite", "parts": parts}

    def continue_drain(self, queue_id: str) -> None:
        for _, sink in self._parts:
            if isinstance(sink, ContinuingSink):
                call_sink(sink, "continue_drain", queue_id)

    def apply(self, operations: Operations) -> ApplyResult:
        """Apply a batch to all parts.

        :returns: ``written`` is the highest number of all parts: after a failed attempt, some parts have the batch
            already.
        """
        rejected: dict[int, str] = {}
        written = 0
        taken: Sequence[int] = range(len(operations))
        for name, sink in self._parts:
            part = operations if len(taken) == len(operations) else operations.take(taken)
            try:
                result: ApplyResult = call_sink(sink, "apply", part)
            except SinkConfigurationError as error:
                error.is_unwritten &= written == 0
                raise
            written = max(written, result.written)
            if result.rejected:
                rejected |= {taken[one.position]: f"{name}: {one.reason}" for one in result.rejected}
                taken = [i for i in taken if i not in rejected]
        written = min(written, len(taken))
        return ApplyResult(
            written,
            len(taken) - written,
            tuple(Rejection(position, reason) for position, reason in sorted(rejected.items())),
        )

    def sweep(self, *, store_id: str, floor: int) -> int:
        """Sweep the parts that can be swept.

        :returns: the highest number of tombstones that one part removed.
        :raises SinkConfigurationError: no part can be swept.
        """
        sweepable = [(name, sink) for name, sink in self._parts if isinstance(sink, SweepableSink)]
        if not sweepable:
            raise SinkConfigurationError(f"sink {self}: no part has a method sweep; each keeps its tombstones")
        if kept := [name for name, sink in self._parts if not isinstance(sink, SweepableSink)]:
            log.warning("not swept, since they have no method sweep: %s", ", ".join(kept))
        return max(sink.sweep(store_id=store_id, floor=floor) for _, sink in sweepable)

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            for _, sink in self._parts:
                closing.callback(sink.close)

    def __str__(self) -> str:
        return " + ".join(name for name, _ in self._parts)

    def __repr__(self) -> str:
        return f"<CompositeSink {self}>"
