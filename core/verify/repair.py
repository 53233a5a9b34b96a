"""Repair: records that differ are written again with their own sequences, while nobody drains their units.

1. The sink admits the repair as it admits a drain, and the units of the records are locked as drains lock them.
2. Everything is looked up again at a newer cut: the content of the queue, the pending entries, the dead letters, the
   records. Only what still differs is repaired.
3. Each expected record is written with the sequence of its latest entry, also over an equal rank and below the floor of
   sweeps. A record that no entry names becomes a tombstone at the cut.

Newer entries have higher ranks, so that whatever is delivered later or at the same time wins (I9). The locks make the
writes below the floor safe: while they are held, no newer delete of these records is delivered, so that none is swept.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from export_queue.core.drain import DRAIN_RETRY, DrainRequest, Failure, LocalEngine, Sender, SinkFence
from export_queue.core.errors import SinkConfigurationError
from export_queue.core.locks import DRAIN_PRIORITY, Area, LeaseKeeper, Owner, acquire, release, renew
from export_queue.core.queue import Queue, Range, bucket, find_reader
from export_queue.core.sinks import ApplyResult, Capabilities, FencedSink, Operations, RepairableSink, Sink
from export_queue.core.state import MirrorOptions
from export_queue.core.verify.judging import REPAIRABLE
from export_queue.core.verify.verification import Comparison

log = logging.getLogger("export_queue.verify")


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair has done."""

    records: int = 0
    """Records that were written again or deleted."""
    undeleted: int = 0
    """Records that no entry names and that were not deleted, because there are too many."""


def check_repairable(sink: Sink | FencedSink, sink_name: str) -> None:
    """Check, before anything is read, that a sink can be repaired.

    :raises SinkConfigurationError: it cannot.
    """
    if sink.capabilities.fenced:
        raise SinkConfigurationError(
            f"sink {sink_name!r} has the guard fence, so its records have no ranks: a repair could not tell an old "
            "record from a new one",
            hint="add the content again (export-queue replay), and delete extra records yourself",
        )
    if not isinstance(sink, RepairableSink):
        raise SinkConfigurationError(
            f"sink {sink_name!r}, a {type(sink).__name__}, cannot be repaired: it has no method repair",
            hint="add the method of export_queue.RepairableSink to it; docs/sinks/your-own.md describes it",
        )


@dataclass(frozen=True, slots=True)
class Repairing:
    """A sink whose batches are repairs."""

    sink: RepairableSink

    @property
    def capabilities(self) -> Capabilities:
        return self.sink.capabilities

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        self.sink.admit(queue_id=queue_id, store_id=store_id, fence=fence, shown=shown, readmit=readmit)

    def apply(self, operations: Operations) -> ApplyResult:
        return self.sink.repair(operations)

    def close(self) -> None:
        pass  # the sink stays open


def repair(comparison: Comparison, store_id: str, *, clock: Callable[[], float] = time.monotonic) -> Repaired:
    """Repair the differences that a comparison has kept.

    :param store_id: identity of the store.
    :returns: what was done; another comparison shows what is left.
    :raises InvalidArgument: the source does not know the sequences of its entries.
    :raises LockNotAvailable: others hold units and do not finish in time.
    :raises LeaseLost: the locks were lost; what was written until then is right.
    :raises SinkError: the sink cannot be used.
    """
    request, database = comparison.request, comparison.database
    with database.read() as work:
        reader = comparison.reader = find_reader(work, request.queue_id)
    assert isinstance(comparison.sink, RepairableSink)
    drain = DrainRequest(queue_id=request.queue_id, sink_name=request.sink_name, retry=DRAIN_RETRY)
    engine = LocalEngine(database, comparison.sink, comparison.exporter, drain)
    fence = SinkFence(database, store_id, drain)
    fence.admit_and_bind(engine, reader)
    comparison.spool.reopen()
    with _held(comparison, reader, clock=clock) as check:
        _confirm(comparison)
        fence.note(reader)
        sender = Sender(Repairing(comparison.sink), DRAIN_RETRY, check)
        done = _write(comparison, sender)
    fence.renew(engine, reader, has_delivered=done.records > 0)
    return done


@contextlib.contextmanager
def _held(comparison: Comparison, reader: Queue, *, clock: Callable[[], float]) -> Iterator[Callable[[], None]]:
    """Lock the units of the candidates, all or none in each layout, and yield a check of the locks."""
    request, database = comparison.request, comparison.database
    keepers: list[LeaseKeeper] = []

    def check() -> None:
        for keeper in keepers:
            keeper.check()

    with contextlib.ExitStack() as stack:
        for of, units in reader.by_layout(_units(comparison, reader)):
            leases = acquire(
                database,
                of,
                [Area(unit.first, unit.end) for unit in units],
                owner=Owner.unique(),  # one for each layout: a holder may not wait
                priority=DRAIN_PRIORITY,
                lease_seconds=request.lease_seconds,
                wait_seconds=request.lock_timeout,
                revoke_after=request.lock_timeout,
                clock=clock,
                sleep=comparison.sleep,
            )
            stack.callback(release, database, leases)
            renewed_at = clock()
            renew(database, leases, lease_seconds=request.lease_seconds)
            keeper = LeaseKeeper(
                database, leases, lease_seconds=request.lease_seconds, claimed_at=renewed_at, clock=clock
            )
            keepers.append(stack.enter_context(keeper))
        yield check


def _units(comparison: Comparison, reader: Queue) -> list[Range]:
    """Return the units with entries that may name the candidates, in all layouts."""
    if not comparison.copies:  # entries of any key may name a record
        return reader.open_units()
    keys = {key or record for record, key in comparison.spool.ids_and_keys()}
    return sorted({layout.unit_of(bucket(key, layout.buckets)) for layout in reader.layouts() for key in keys})


def _confirm(comparison: Comparison) -> None:
    """Look everything up again, now that nobody drains, and leave only those candidates that can be repaired."""
    comparison.read_again()
    comparison.read_waiting()
    spool = comparison.spool
    for page in spool.pages():
        judged, newest = comparison.judged(page)
        spool.note([(one, found) for one, found, _ in judged], newest)
        spool.resolve([one for one, _, verdict in judged if verdict not in REPAIRABLE])


def _write(comparison: Comparison, sender: Sender) -> Repaired:
    """Write the expected records, and delete those that no entry names."""
    spool, written = comparison.spool, 0

    def note_rejected(position: int, failure: Failure) -> None:
        log.warning("%s rejects a record that was to be repaired: %s", comparison.request.sink_name, failure)

    for operations in comparison.expected_operations():
        wanted = comparison.of_candidates(operations)
        if len(wanted):
            written += sender.send(wanted, on_rejected=note_rejected).written
    extra, limit = spool.unexpected(), MirrorOptions(max_deletes=comparison.request.max_deletes)
    if extra > limit.allowed(comparison.compared):
        return Repaired(written, extra)
    for deletes in comparison.tombstones():
        written += sender.send(deletes, on_rejected=note_rejected).written
    return Repaired(written)
