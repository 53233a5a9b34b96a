"""Several sinks as one. An operation is acknowledged when all of them have acknowledged it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from export_queue.core.errors import SinkConfigurationError
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import (
    ApplyResult,
    BoundSink,
    Capabilities,
    ContinuingSink,
    Rejection,
    RepairableSink,
    ScannableSink,
    SearchableSink,
    Sink,
    StoredRecords,
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
        return self._pass("apply", operations)

    def repair(self, operations: Operations) -> ApplyResult:
        for name, sink in self._parts:
            if not isinstance(sink, RepairableSink):
                raise SinkConfigurationError(
                    f"part {name!r} of sink {self}, a {type(sink).__name__}, cannot be repaired: it has no method "
                    "repair",
                    hint="add the method of export_queue.RepairableSink to it",
                )
        return self._pass("repair", operations)

    def _pass(self, method: str, operations: Operations) -> ApplyResult:
        """Pass a batch to a method of all parts."""
        rejected: dict[int, str] = {}
        written = 0
        taken: Sequence[int] = range(len(operations))
        for name, sink in self._parts:
            part = operations if len(taken) == len(operations) else operations.take(taken)
            try:
                result: ApplyResult = call_sink(sink, method, part)
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

    def render(self, operations: Operations) -> tuple[StoredRecords, Sequence[int]]:
        """Return the records of all parts; a part's targets begin with its name. An operation that a part refuses is
        refused by the sink.
        """
        found = [(name, *part.render(operations)) for name, part in self._scannable()]
        taken = set.intersection(*(set(positions) for _, _, positions in found))
        rows = [
            (row, position)
            for name, records, positions in found
            for row, position in zip(_rows(_of_part(name, records)), positions, strict=True)
            if position in taken
        ]
        return _columns([row for row, _ in rows]), [position for _, position in rows]

    def scan(self, collections: Collection[str]) -> Iterator[StoredRecords]:
        for name, part in self._scannable():
            for records in part.scan(collections):
                yield _of_part(name, records)

    def look_up(self, target: str, ids: Sequence[bytes]) -> StoredRecords:
        name, part, own = self._part_of(target)
        return _of_part(name, part.look_up(own, ids))

    def floor_of(self, target: str) -> int:
        _, part, own = self._part_of(target)
        return part.floor_of(own)

    def _part_of(self, target: str) -> tuple[str, ScannableSink, str]:
        for name, part in self._scannable():
            if target.startswith(f"{name}: "):
                return name, part, target.removeprefix(f"{name}: ")
        raise SinkConfigurationError(f"sink {self}: no part has the records of {target!r}")

    def _scannable(self) -> list[tuple[str, ScannableSink]]:
        for name, part in self._parts:
            if not isinstance(part, ScannableSink):
                raise SinkConfigurationError(
                    f"part {name!r} of sink {self}, a {type(part).__name__}, cannot be compared: it has no method scan",
                    hint="add the methods of export_queue.ScannableSink to it, or verify the other parts alone",
                )
        return [(name, part) for name, part in self._parts if isinstance(part, ScannableSink)]

    def refresh(self) -> None:
        """Refresh the parts that need it.

        :raises SinkConfigurationError: no part has a method refresh.
        """
        searched = [sink for _, sink in self._parts if isinstance(sink, SearchableSink)]
        if not searched:
            raise SinkConfigurationError(f"sink {self}: no part has a method refresh", hint="omit searchable")
        for sink in searched:
            call_sink(sink, "refresh")

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            for _, sink in self._parts:
                closing.callback(sink.close)

    def __str__(self) -> str:
        return " + ".join(name for name, _ in self._parts)

    def __repr__(self) -> str:
        return f"<CompositeSink {self}>"


_Row = tuple[str, bytes, int, bytes | None]


def _of_part(name: str, records: StoredRecords) -> StoredRecords:
    return replace(records, targets=[f"{name}: {target}" for target in records.targets])


def _rows(records: StoredRecords) -> Iterator[_Row]:
    return zip(records.targets, records.ids, records.ranks, records.documents, strict=True)


def _columns(rows: Sequence[_Row]) -> StoredRecords:
    return StoredRecords(*([row[n] for row in rows] for n in range(4)))  # type: ignore[arg-type]
