"""Keeping order for a sink that keeps no ranks and relies on fences.

Such a sink cannot reject older entries, so the drain must deliver in order:

* It locks whole intervals, so that it reads everything that its snapshot sees. Entries that a compaction holds, or
  publishes after the claim, may be older than the rest.
* It claims its units in the sink *before* it takes its snapshot. Until then an older drain wrote entries of an older
  snapshot; afterwards it can write nothing.
* It reads only settled entries: no entry that commits later can be older.
* It reads all entries of a key together and sends the newest, also when it repeats a batch.
* It creates no dead letters: a dead letter would be delivered after newer entries of its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from export_queue.core.drain.request import DrainRequest
from export_queue.core.drain.transient import call_again
from export_queue.core.errors import ConfigurationError, EntriesNotSettled
from export_queue.core.locks import Lease
from export_queue.core.queue import (
    DeadLetterFilter,
    Queue,
    Range,
    close_layouts,
    count_dead_letters,
    find_queue,
    join_ranges,
)
from export_queue.core.retry import Retry
from export_queue.core.sinks import Claim, FencedSink, Sink, call_sink
from export_queue.core.store import Database, queries
from export_queue.core.transactions import Snapshot, name_transactions


def claim_of(queue: Queue, lease: Lease) -> Claim:
    return Claim(f"{queue.id}/{lease.layout}/{lease.range.first}", lease.fence)


def claim_units(sink: Sink | FencedSink, queue: Queue, leases: Sequence[Lease], retry: Retry) -> None:
    """Claim leased units in a fenced sink, which then refuses older drains of them.

    :raises LeaseLost: a newer drain has claimed one of the units.
    """
    claims = [claim_of(queue, lease) for lease in leases]
    call_again(retry, lambda: call_sink(sink, "claim", claims), whom="the sink")


def sink_of_unit(sink: Sink | FencedSink, queue: Queue, lease: Lease) -> Sink:
    """Return the sink for the entries of a leased unit: a fenced sink restricted to the lease's claim, or the sink."""
    if sink.capabilities.fenced:
        return cast(Sink, call_sink(sink, "under", claim_of(queue, lease)))
    return cast(Sink, sink)


def check_request(sink: Sink | FencedSink, request: DrainRequest) -> None:
    """Make sure that a drain into a fenced sink creates no dead letters.

    :raises ConfigurationError: the request allows them.
    """
    if sink.capabilities.fenced and request.on_error != "fail":
        raise ConfigurationError(
            f"a sink with the guard fence needs on_error='fail', found {request.on_error!r}: "
            "a dead letter that is retried would undo newer entries of its key",
            hint="drain with on_error='fail', or use guard='seq'",
        )


def refuse_older_layouts(database: Database, queue: Queue) -> None:
    """Make sure that all entries of a key are in one unit, whose claims keep them in order.

    :raises ConfigurationError: the queue's buckets were altered, and an older layout is not empty.
    """
    if not queue.older:
        return
    close_layouts(database, queue)
    with database.read() as work:
        older = find_queue(work, queue.id).older
    if older:
        numbers = ", ".join(str(layout.number) for layout in older)
        raise ConfigurationError(
            f"queue {queue.id!r} was altered to other buckets, and layout {numbers} is not empty: a sink with the "
            "guard fence has no ranks, so older entries of a key could overwrite newer ones from another layout",
            hint=f"drain the queue into a sink with guard='seq' (export-queue rebind {queue.id} NAME), then bind it to "
            "this sink again",
        )


def refuse_dead_letters(database: Database, queue: Queue) -> None:
    """Make sure that no dead letter can be delivered after newer entries.

    :raises ConfigurationError: the queue has dead letters from drains into another sink.
    """
    with database.read() as work:
        found = count_dead_letters(work, queue, DeadLetterFilter())
    if found:
        raise ConfigurationError(
            f"queue {queue.id!r} has {found} dead letters: retried after this drain, they would overwrite newer "
            "entries of their keys, because a sink with the guard fence has no ranks",
            hint=f"first retry or drop them: export-queue dead retry {queue.id}, export-queue dead drop {queue.id}",
        )


def not_settled_error(database: Database, queue: Queue, since: Snapshot, units: Sequence[Range]) -> EntriesNotSettled:
    """Return the error that names the transactions for which a drain waited too long.

    :param since: snapshot of the drain's start; only transactions that were in progress then count.
    :param units: where entries are pending.
    """
    ranges = " ".join(str(part) for part in join_ranges(units))
    return EntriesNotSettled(
        f"entries of {queue.id} {ranges} must wait for older transactions that are still in progress: "
        f"{in_progress(database, since) or 'none by now'}"
    )


def in_progress(database: Database, since: Snapshot) -> str:
    """Name the transactions that were in progress at a snapshot and still are; empty if there are none."""
    with database.read() as work:
        found = [
            one for one in queries.monitoring.holders(work) if one.kind != "invalid" and one.id <= since.read_pointer
        ]
    return name_transactions(found)
