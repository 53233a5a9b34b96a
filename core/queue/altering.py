"""Altering the options of a queue that is in use.

=====================  ============================================================================================
option                 may be altered
=====================  ============================================================================================
``max_value_bytes``    at any time; lowered from above 1 MiB only while no larger value waits
``exclusive``          at any time
``coalesce``           at any time; also of one subscription alone, until it is altered with its queue again
``buckets``,           at any time, if all its sinks have the guard ``seq``: the queue gets another layout
``buckets_per_range``  (:mod:`layouts`), and the older one drains out. Else only while nothing waits in it and nobody
                       works on it: a sink with the guard ``fence`` keeps late writers out by unit, and a late batch of
                       an old unit would not be recognised by the claim of a new one
=====================  ============================================================================================

A subscription has the options of its queue, and is altered with it. A process that has used the queue learns of it
within a minute (:mod:`export_queue.core.client.catalogue`); where its entries go, the store says at each commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from export_queue.core.errors import InvalidArgument, LockNotAvailable, QueueBusy
from export_queue.core.queue.layouts import close_layouts
from export_queue.core.queue.options import MAX_BUCKETS, MAX_VALUE_BYTES, check_coalesce, check_number
from export_queue.core.queue.queue import Queue
from export_queue.core.queue.read import ASSUMED_BYTES
from export_queue.core.queue.stored_queues import find_queue, readers_of
from export_queue.core.queue.subscriptions import PATIENCE, shut_out_commits
from export_queue.core.retry import Retry
from export_queue.core.store import Database, Work, queries

_LAYOUT = ("buckets", "buckets_per_range")


def alter_queue(
    database: Database,
    queue_id: str,
    *,
    max_value_bytes: int | None = None,
    exclusive: bool | None = None,
    coalesce: str | Literal[False] | None = None,
    buckets: int | None = None,
    buckets_per_range: int | None = None,
    guard: Literal["seq", "fence"] = "fence",
    retry: Retry = PATIENCE,
) -> Queue:
    """Alter options of a queue; options that are left out stay as they are.

    :param queue_id: the queue; with ``coalesce`` alone also a subscription.
    :param max_value_bytes: largest encoded value that is added from now on; entries that wait stay.
    :param exclusive: whether every key added is a conflict key.
    :param coalesce: what later compactions keep of each key: ``latest`` its latest entry, False all entries.
    :param buckets: number of buckets; what waits in the former ones is drained from there.
    :param buckets_per_range: buckets of one unit; likewise.
    :param guard: the guard of the sinks into which the queue is drained. Buckets and units of a queue with entries are
        altered only where it is ``seq``.
    :param retry: how long transactions that add to the queue are waited for, where buckets or units are altered.
    :returns: the options as they are stored now.
    :raises InvalidArgument: an option is out of bounds, or cannot be altered while such entries wait; or the queue is a
        subscription.
    :raises LockNotAvailable: the guard is ``fence``, and somebody works on units of the queue.
    :raises QueueBusy: transactions that add to the queue were in progress all the time.
    """
    if guard not in ("seq", "fence"):
        raise InvalidArgument(f"guard: expected seq or fence, found {guard!r}")
    if max_value_bytes is not None:
        check_number("max_value_bytes", max_value_bytes, MAX_VALUE_BYTES)
    wanted = {
        "max_value_bytes": max_value_bytes,
        "exclusive": exclusive,
        "coalesce": coalesce,
        "buckets": buckets,
        "buckets_per_range": buckets_per_range,
    }
    given = {name: option for name, option in wanted.items() if option is not None}

    def attempt() -> Queue:
        with database.begin() as work, queries.readers.brief_waits(work, queue_id):
            _alter(work, queue_id, given, guard)
            return find_queue(work, queue_id)

    altered = retry.call(attempt, worth_repeating=lambda error: isinstance(error, QueueBusy))
    if altered.older:  # perhaps it was empty
        close_layouts(database, altered)
        with database.read() as work:
            return find_queue(work, queue_id)
    return altered


def _alter(work: Work, queue_id: str, given: Mapping[str, Any], guard: str) -> None:
    queries.locks.serialise_requests(work, find_queue(work, queue_id).number)  # as those of its subscriptions do
    queue = find_queue(work, queue_id)
    if queue.parent is not None and set(given) - {"coalesce"}:
        raise InvalidArgument(
            f"subscription {queue_id!r} has the options of its queue",
            hint=f"alter queue {queue.parent!r}: its subscriptions are altered with it",
        )
    coalesces, coalesce = "coalesce" in given, given.get("coalesce")
    if coalesces:
        coalesce = None if coalesce is False else coalesce
        check_coalesce(coalesce)
    changed = {name: given[name] for name in given if name != "coalesce" and getattr(queue, name) != given[name]}
    readers = sorted(readers_of(work, queue), key=lambda reader: reader.number)
    for reader in readers:
        queries.locks.serialise_requests(work, reader.number)
    if "max_value_bytes" in changed:
        for one in (queue, *readers):
            _check_largest_value(work, one, changed["max_value_bytes"])
    if any(name in changed for name in _LAYOUT):
        changed["layout"] = _next_layout(work, queue, readers, changed, guard)
    for one in (queue, *readers):
        if changed:
            queries.queues.alter_queue(work, one.number, **changed)
        if coalesces and one.coalesce != coalesce:
            queries.queues.alter_queue(work, one.number, coalesce=coalesce)


def _next_layout(work: Work, queue: Queue, readers: Sequence[Queue], changed: Mapping[str, Any], guard: str) -> int:
    """End the current layout of a queue; returns the number of the next one."""
    buckets = changed.get("buckets", queue.buckets)
    check_number("buckets", buckets, MAX_BUCKETS)
    check_number("buckets_per_range", changed.get("buckets_per_range", queue.buckets_per_range), buckets)
    # Last of all that waits for others. From here on nobody adds: whatever is stored or staged lies in the layout that
    # ends, and was added by a transaction whose id has been drawn.
    shut_out_commits(work, queue)
    if guard == "fence":
        for one in (queue, *readers):
            _require_idle(work, one)
    ended = (queue.layout, queue.buckets, queue.buckets_per_range)
    queries.layouts.cease(work, queue.number, ended, is_closed=guard == "fence")
    return queue.layout + 1


def _check_largest_value(work: Work, queue: Queue, most: int) -> None:
    # a drain plans its memory by what a value may have at most
    if most < queue.max_value_bytes > ASSUMED_BYTES:
        largest = max(module.largest_value(work, queue.number) for module in (queries.entries, queries.segments))
        if largest > max(most, ASSUMED_BYTES):
            raise InvalidArgument(
                f"max_value_bytes of queue {queue.id!r}: expected at least {largest}, the size of a value that waits "
                f"or is a dead letter, found {most}",
                hint="drain the queue first, and retry or drop its dead letters",
            )


def _require_idle(work: Work, queue: Queue) -> None:
    """Make sure that nothing waits, and that nobody holds a lock; the caller keeps out new ones of both."""
    if found := queries.locks.of_queue(work, queue.number, now=work.now()):
        held = ", ".join(f"[{row['first_bucket']}, {row['end_bucket']}) by {row['task']}" for row in found)
        raise LockNotAvailable(
            f"the units of queue {queue.id!r} are worked on: {held}",
            hint="wait for the drains to end, or stop them, then alter the queue again",
        )
    entries, dead, _ = queries.readers.count_rows(work, queue.number, locked_at=work.now())
    if entries or dead:
        raise InvalidArgument(
            f"buckets of queue {queue.id!r}: expected an empty queue, found {entries} entries and {dead} dead letters",
            hint="if all its sinks have the guard seq, say so: guard='seq', on the command line --guard seq; "
            "else drain the queue first, and retry or drop its dead letters",
        )
