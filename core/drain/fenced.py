"""How a drain keeps order where its sink keeps no ranks, and relies on fences instead.

Only order is left to keep a record from going back, so the drain has to bring it about:

* It locks whole intervals, so that it reads all that its snapshot sees: what a compaction holds, or is published behind
  the claim, may be older than the rest.
* It claims its units in the sink *before* it takes its snapshot. What an older drain wrote until then is of
  an older snapshot, and afterwards it writes nothing.
* It takes only settled entries: no entry that commits later can be older.
* It reads all entries of a key together, so that it sends the newest of them, also when it sends again.
* It sets nothing aside: a dead letter would come back behind newer entries of its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from export_queue.core.drain.request import DrainRequest
from export_queue.core.drain.transient import call_again
from export_queue.core.errors import ConfigurationError, EntriesNotSettled
from export_queue.core.locks import Lease
from export_queue.core.queue import DeadLetterFilter, Queue, close_layouts, count_dead_letters, find_queue
from export_queue.core.retry import Retry
from export_queue.core.sinks import Claim, FencedSink, Sink, call_sink
from export_queue.core.store import Database, queries
from export_queue.core.transactions import Snapshot, name_transactions


def claim_of(queue: Queue, lease: Lease) -> Claim:
    """Return the claim that a lease gives in the sink."""
    return Claim(f"{queue.id}/{lease.layout}/{lease.range.first}", lease.fence)


def claim_units(sink: Sink | FencedSink, queue: Queue, leases: Sequence[Lease], retry: Retry) -> None:
    """Shut older drains of leased units out of a fenced sink.

    :raises LeaseLost: a younger drain has claimed one of them.
    """
    claims = [claim_of(queue, lease) for lease in leases]
    call_again(retry, lambda: call_sink(sink, "claim", claims), whom="the sink")


def sink_of_unit(sink: Sink | FencedSink, queue: Queue, lease: Lease) -> Sink:
    """Return where the entries of a leased unit go: the sink, and if it is fenced the one of the lease's claim."""
    if sink.capabilities.fenced:
        return cast(Sink, call_sink(sink, "under", claim_of(queue, lease)))
    return cast(Sink, sink)


def check_request(sink: Sink | FencedSink, request: DrainRequest) -> None:
    """Make sure that a drain into a fenced sink sets nothing aside.

    :raises ConfigurationError: the request says otherwise.
    """
    if sink.capabilities.fenced and request.on_error != "fail":
        raise ConfigurationError(
            f"a sink with the guard fence needs on_error='fail', found {request.on_error!r}: "
            "a dead letter that is retried would undo newer entries of its key",
            hint="drain with on_error='fail', or use guard='seq'",
        )


def refuse_older_layouts(database: Database, queue: Queue) -> None:
    """Make sure that all entries of a key come by one unit, whose claims keep them in order.

    :raises ConfigurationError: the queue's buckets were altered for sinks with ranks, and an older layout is not empty.
    """
    if not queue.older:
        return
    close_layouts(database, queue)
    with database.read() as work:
        older = find_queue(work, queue.id).older
    if older:
        numbers = ", ".join(str(layout.number) for layout in older)
        raise ConfigurationError(
            f"queue {queue.id!r} was given other buckets, and layout {numbers} has not drained out: a sink with the "
            "guard fence has no ranks, and would let older entries of a key undo newer ones that lie in another layout",
            hint=f"drain what is there into a sink with guard='seq' (export-queue rebind {queue.id} NAME), then bind "
            "the queue to this one again",
        )


def refuse_dead_letters(database: Database, queue: Queue) -> None:
    """Make sure that no dead letter can come back behind newer entries.

    :raises ConfigurationError: the queue has dead letters, from drains into another sink.
    """
    with database.read() as work:
        found = count_dead_letters(work, queue, DeadLetterFilter())
    if found:
        raise ConfigurationError(
            f"queue {queue.id!r} has {found} dead letters: retried after this drain they would undo newer entries of "
            "their keys, for a sink with the guard fence has no ranks",
            hint=f"first retry or drop them: export-queue dead retry {queue.id}, export-queue dead drop {queue.id}",
        )


def not_settled_error(database: Database, queue: Queue, since: Snapshot, ranges: str) -> EntriesNotSettled:
    """Make the error that names the transactions for which a drain has waited too long.

    :param since: snapshot of the drain's start; only transactions that were in progress then count.
    :param ranges: where entries wait.
    """
    return EntriesNotSettled(
        f"entries of {queue.id} {ranges} were committed behind transactions that are still in progress: "
        f"{in_progress(database, since) or 'none any more'}"
    )


def in_progress(database: Database, since: Snapshot) -> str:
    """Name the transactions that were in progress at a snapshot and still are; nothing where there are none."""
    with database.read() as work:
        found = [
            one for one in queries.monitoring.holders(work) if one.kind != "invalid" and one.id <= since.read_pointer
        ]
    return name_transactions(found)
