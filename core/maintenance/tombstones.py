"""Tombstones in sinks: the sequence up to which they may be removed, and their removal."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from export_queue.core.errors import SinkConfigurationError
from export_queue.core.references import check_sink_name
from export_queue.core.sinks import Sink, SinkSpec, SweepableSink, call_sink, opened_sink
from export_queue.core.store import Database, queries


@dataclass(frozen=True, slots=True)
class SafeFloor:
    """A sequence at or below which a store sends nothing more."""

    floor: int
    held_by: str | None
    """Why it is not higher: ``in progress``, ``queued`` or ``a dead letter``; None if nothing holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSweep:
    """The result of a sweep of a sink."""

    sink: str
    floor: int
    """Deliveries at or below it are stale from now on. An earlier sweep may have reached further."""
    held_by: str | None
    removed: int
    """Tombstones."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; the floor is a string, since it exceeds 2⁵³."""
        return {**asdict(self), "floor": str(self.floor)}

    def line(self) -> str:
        """Summarise the sweep in one line."""
        held = f", held by what is {self.held_by}" if self.held_by else ""
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.floor / 1e9))
        return f"{self.sink}: {self.removed} tombstones removed up to {moment} UTC{held}; {self.seconds:.1f} s"


def safe_floor(database: Database) -> SafeFloor:
    """Find the sequence up to which the sinks of a store may remove tombstones.

    The floor lies below every id in progress or invalid, every queued entry (staged ones too) and every dead letter of
    all queues of the store, so every entry still to be sent lies above it. It is the highest such number. Acknowledged
    entries lie at or below it, and are stale if an abandoned drain sends them again.

    Ids in progress are read *first*. A transaction that commits between the two reads is then found twice, in progress
    and by its entries; in the other order it would be missed, and its entries would be stale in the sink.
    """
    with database.connect() as connection:
        view = database.dialect.steps.take_snapshot(connection)
    with database.read() as work:
        locked = queries.registrations.oldest_lock(work, view.read_pointer)
        queued, dead = queries.cleanup.lowest_pending(work)
    in_progress = min(view.low, view.low if locked is None else locked)
    bounds = {"queued": queued, "a dead letter": dead}
    if in_progress <= view.read_pointer:
        bounds["in progress"] = in_progress
    lowest, held_by = min(
        ((seq, name) for name, seq in bounds.items() if seq is not None), default=(view.read_pointer + 1, None)
    )
    if lowest > view.read_pointer:  # an entry added later holds nothing back
        lowest, held_by = view.read_pointer + 1, None
    return SafeFloor(max(0, lowest - 1), held_by)


def sweep_sink(database: Database, store_id: str, sink: SinkSpec | Sink, *, sink_name: str | None = None) -> SinkSweep:
    """Remove tombstones that a sink no longer needs. Drains may run meanwhile, and the call may be interrupted.

    :param store_id: identity of the store, which must be the only one that feeds the sink.
    :param sink: a description of the sink, or an open sink, which stays open.
    :param sink_name: name for the report; by default the name in the description, or the class of an open sink.
    :raises InvalidArgument: the name is not valid.
    :raises SinkConfigurationError: neither the sink nor one of its parts has the method ``sweep``.
    :raises SinkBelongsToAnother: another store feeds the sink, too.
    :raises SinkError: the sink does not answer, or refuses; another sweep continues.
    """
    if sink_name is None:
        sink_name = sink.name if isinstance(sink, SinkSpec) else type(sink).__name__
    check_sink_name(sink_name)
    begun = time.monotonic()
    with opened_sink(sink) as opened:
        if not isinstance(opened, SweepableSink):
            raise SinkConfigurationError(
                f"sink {sink_name} has no method sweep: it keeps its tombstones",
                hint="your own sink may implement it: see export_queue.SweepableSink",
            )
        safe = safe_floor(database)
        removed: int = call_sink(opened, "sweep", store_id=store_id, floor=safe.floor)
    seconds = round(time.monotonic() - begun, 3)
    return SinkSweep(sink=sink_name, floor=safe.floor, held_by=safe.held_by, removed=removed, seconds=seconds)
