"""Subscriptions: several readers of one queue, each with its own entries, sink, drains, locks and dead letters.

A commit locks the readers of the queues to which it adds, from before it reads them until it is visible. A change of
the readers excludes such commits. So a reader receives the entries of exactly those transactions that commit after its
start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from export_queue.core.errors import EntriesWait, InvalidArgument, QueueBusy
from export_queue.core.queue.marks import make_good, record_promise
from export_queue.core.queue.queue import Queue
from export_queue.core.queue.stored_queues import add_reader, find_queue, readers_of, unknown_subscription
from export_queue.core.retry import Retry
from export_queue.core.store import Database, Reading, Work, queries, removed_subscription
from export_queue.core.tables import check_name

Changed = TypeVar("Changed")

PATIENCE = Retry(attempts=None, seconds=10, first_pause=0.05, longest_pause=0.25)
"""How long to wait for commits in progress: repeatedly and briefly, because later commits queue up meanwhile."""


def subscribe(
    database: Database,
    queue_id: str,
    name: str,
    *,
    also: Callable[[Work, Queue], None] | None = None,
    retry: Retry = PATIENCE,
) -> Queue:
    """Add a subscription, as :meth:`Store.subscribe` says.

    :param also: called with the added subscription, in the SQL transaction that adds it; not called if it exists.
    :param retry: how long to wait for transactions that add to the queue.
    """
    queue = _find_parent(database, queue_id)
    check_name("subscription", name)
    with database.read() as work:
        if (reader := _readers(work, queue).get(name)) is not None:
            return reader

    def change(work: Work) -> bool:
        parent = find_queue(work, queue_id)
        if name in _readers(work, parent):
            return True
        shut_out_commits(work, parent)
        if not parent.fans_out:
            if queries.readers.has_rows(work, parent.number, locked_at=work.now()):
                return False
            queries.queues.alter_queue(work, parent.number, fans_out=True, sink=None, binding=None)
        add_reader(work, parent, name, first_load="missing")
        if also is not None:
            also(work, find_queue(work, f"{queue_id}/{name}"))
        return True

    if not _change(database, queue, change, retry):
        raise EntriesWait(
            f"queue {queue_id!r} must be empty before it gets its first subscription, found "
            f"{_waiting(database, queue)}",
            hint="drain the queue, retry or drop its dead letters, wait for its drains and long transactions, then "
            "subscribe; if producers keep adding to it, drain it again and subscribe at once",
        )
    with database.read() as work:
        return find_queue(work, f"{queue_id}/{name}")


def unsubscribe(
    database: Database,
    queue_id: str,
    name: str,
    *,
    number: int | None = None,
    discard: bool = False,
    who: str = "",
    retry: Retry = PATIENCE,
) -> Discarded | None:
    """Remove a subscription, as :meth:`Store.unsubscribe` says; clean-up deletes its rows.

    :param number: number of the subscription; by default that of the one that has the name when the call begins.
    :param who: name for the audit; needed with ``discard``.
    :param retry: how long to wait for transactions that add to the queue.
    :raises UnknownQueue: it was removed meanwhile, even if a new one has its name.
    :raises InvalidArgument: a rebuild that is not over needs the subscription, and no step of it calls this.
    """
    queue = _find_parent(database, queue_id)

    with database.read() as work:
        doomed = _removable(work, queue, name, of_rebuild=number is not None)
    if number is not None and doomed.number != number:
        raise removed_subscription(f"subscription {doomed.id!r}")
    act = _begin_discard(database, doomed, who) if discard else None
    discarded: Discarded | None = None

    def change(work: Work) -> bool:
        nonlocal discarded
        reader = _removable(work, queue, name, of_rebuild=number is not None)
        if reader.number != doomed.number:
            raise removed_subscription(f"subscription {doomed.id!r}")
        # In the order of claims. From here on no drain adds dead letters, and those just added are visible.
        queries.readers.hold(work, reader.number)
        queries.locks.hold_all(work, reader.number)
        shut_out_commits(work, queue)
        waits = queries.readers.has_rows(work, reader.number)
        if waits and act is None:
            return False
        discarded = act.record(work, queue, reader) if waits and act is not None else None
        make_good(
            work, reader, by="unsubscribe", namesakes=False
        )  # another subscription of this name lacks nothing because of it
        queries.readers.remove(work, reader.number, reader.id)
        return True

    if not _change(database, queue, change, retry):
        with database.read() as work:
            reader = find_queue(work, f"{queue_id}/{name}")
        raise EntriesWait(
            f"subscription {reader.id!r}: expected no pending entries, found {_waiting(database, reader)}",
            hint="drain it and retry or drop its dead letters, or discard them: "
            f"export-queue unsubscribe {queue_id} {name} --discard, "
            f"or store.unsubscribe({queue_id!r}, {name!r}, discard=True)",
        )
    return discarded


@dataclass(frozen=True, slots=True)
class Discarded:
    """What was discarded with a subscription."""

    entries: int
    """Pending entries when the call began."""
    dead_letters: int


@dataclass(frozen=True, slots=True)
class _Discard:
    """What the record of a discard needs, read before commits are excluded."""

    number: int
    """Number of the record. With a clock row, a commit that waits for the readers may hold that row."""
    entries: int
    """Pending entries; counting millions takes long."""
    who: str

    def record(self, work: Work, queue: Queue, reader: Queue) -> Discarded:
        letters = queries.dead_letters.count_dead(work, reader.number, {})
        queries.acts.record(
            work,
            queue_id=queue.id,
            act="unsubscribe",
            who=self.who,
            letters=letters,
            selection={"subscription": reader.name, "entries": self.entries},
            number=self.number,
        )
        return Discarded(self.entries, letters)


def _begin_discard(database: Database, reader: Queue, who: str) -> _Discard:
    if not who:
        raise InvalidArgument("who: expected a name for the audit, found nothing")
    with database.begin() as work:
        number = database.dialect.steps.draw(work.connection)
    with database.read() as work:
        entries, _, _ = queries.readers.count_rows(work, reader.number, locked_at=work.now())
    return _Discard(number, entries, who)


def subscriptions(work: Reading, queue_id: str) -> list[Queue]:
    """Read the subscriptions of a queue, by name."""
    return readers_of(work, find_queue(work, queue_id))


def waive_first_load(database: Database, subscription: str, *, who: str) -> None:
    """Declare that a subscription needs nothing that was committed before it."""
    with database.begin() as work:
        record_promise(work, _find_subscription(work, subscription), "waive", who=who)


def missing_load(work: Reading, subscription: str) -> Queue:
    """Find a subscription whose first load is missing or waived; refuse others."""
    reader = _find_subscription(work, subscription)
    if reader.first_load not in ("missing", "waived"):
        found = "was made" if reader.first_load == "made" else "is none: it has read its queue from the beginning"
        raise InvalidArgument(
            f"subscription {subscription!r}: expected a first load that is missing or waived, found that it {found}"
        )
    return reader


def _find_parent(database: Database, queue_id: str) -> Queue:
    with database.read() as work:
        queue = find_queue(work, queue_id)
    if queue.parent is not None:
        raise InvalidArgument(f"expected the id of a queue, found that of a subscription: {queue_id!r}")
    return queue


def _readers(work: Reading, queue: Queue) -> dict[str, Queue]:
    return {reader.name: reader for reader in readers_of(work, queue)}


def _removable(work: Reading, queue: Queue, name: str, *, of_rebuild: bool) -> Queue:
    """Find a subscription that is not the last one of its queue, and that no rebuild needs.

    :param of_rebuild: a step of the rebuild itself removes it.
    """
    readers = _readers(work, queue)
    if name not in readers:
        raise unknown_subscription(queue.id, name, readers)
    if len(readers) == 1:
        raise InvalidArgument(
            f"subscription {name!r} is the last one of queue {queue.id!r}: new entries would reach nobody",
            hint="subscribe another reader first; if nobody should read any more, let the producers stop adding",
        )
    needing = None if of_rebuild else queries.rebuilds.needing(work, readers[name].id)
    if needing is not None:
        raise InvalidArgument(
            f"subscription {readers[name].id!r}: expected no rebuild that needs it, found one of {needing['reader']!r} "
            f"in the phase {needing['phase']}",
            hint=f"end the rebuild first: export-queue rebuild finish {needing['reader']}, after a switch; "
            f"or export-queue rebuild cancel {needing['reader']}",
        )
    return readers[name]


def _find_subscription(work: Reading, subscription: str) -> Queue:
    reader = find_queue(work, subscription)
    if reader.parent is None:
        raise InvalidArgument(
            f"expected the id of a subscription, as in 'airports/search', found queue {subscription!r}"
        )
    return reader


def _change(database: Database, queue: Queue, change: Callable[[Work], Changed], retry: Retry) -> Changed:
    """Change the readers of a queue, while nobody else changes them or alters the queue's options.

    :param change: locks all other rows that it needs first, and then excludes commits, which wait until it ends.
    """

    def attempt() -> Changed:
        with database.begin() as work, queries.readers.brief_waits(work, queue.id):
            queries.readers.hold(work, queue.number)
            return change(work)

    return retry.call(attempt, worth_repeating=lambda error: isinstance(error, QueueBusy))


def shut_out_commits(work: Work, queue: Queue) -> None:
    """Exclude commits that add to the queue until the SQL transaction ends."""
    if not queries.readers.try_to_shut_out_commits(work, queue.number):
        raise QueueBusy(f"transactions that add to queue {queue.id!r} are in progress")


def _waiting(database: Database, queue: Queue) -> str:
    with database.read() as work:
        entries, dead, locks = queries.readers.count_rows(work, queue.number, locked_at=work.now())
    return f"{entries} entries, {dead} dead letters and {locks} locks"
