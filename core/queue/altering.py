"""Altering the options of a queue that is in use.

=====================  ============================================================================================
option                 may be altered
=====================  ============================================================================================
``max_value_bytes``    at any time; lowered from above 1 MiB only while no larger value waits
``exclusive``          at any time
``buckets_per_range``  while nobody holds a lock of the queue and no segment waits or is staged in it, cut by its units;
                       and, unless all its sinks have the guard ``seq``, while it is empty: a sink with the guard
                       ``fence`` keeps late writers out by unit, and a late batch of an old unit would not be
                       recognised by the claim of a new one
=====================  ============================================================================================

A subscription has the options of its queue, and is altered with it. A process that has used the queue learns of it
within a minute; see :mod:`export_queue.core.client.catalogue`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from export_queue.core.errors import InvalidArgument, LockNotAvailable
from export_queue.core.queue.options import MAX_VALUE_BYTES, Queue, check_number, find_queue, readers_of
from export_queue.core.queue.read import ASSUMED_BYTES
from export_queue.core.store import Database, Work, queries


def alter_queue(
    database: Database,
    queue_id: str,
    *,
    max_value_bytes: int | None = None,
    exclusive: bool | None = None,
    buckets_per_range: int | None = None,
    guard: Literal["seq", "fence"] = "fence",
) -> Queue:
    """Alter options of a queue; options that are left out stay as they are.

    :param queue_id: the queue.
    :param max_value_bytes: largest encoded value that is added from now on; entries that wait stay.
    :param exclusive: whether every key added is a conflict key.
    :param buckets_per_range: buckets of one unit.
    :param guard: the guard of the sinks into which the queue is drained. The units of a queue with entries are altered
        only where it is ``seq``.
    :returns: the options as they are stored now.
    :raises InvalidArgument: an option is out of bounds, or cannot be altered while such entries wait; or the queue is a
        subscription.
    :raises LockNotAvailable: the units cannot be altered, since somebody works on them.
    """
    if guard not in ("seq", "fence"):
        raise InvalidArgument(f"guard: expected seq or fence, found {guard!r}")
    if max_value_bytes is not None:
        check_number("max_value_bytes", max_value_bytes, MAX_VALUE_BYTES)
    wanted = {"max_value_bytes": max_value_bytes, "exclusive": exclusive, "buckets_per_range": buckets_per_range}
    given = {name: option for name, option in wanted.items() if option is not None}
    with database.begin() as work:
        number = find_queue(work, queue_id).number
        queries.locks.serialise_requests(work, number)  # of a queue with subscriptions: keeps these as they are
        queue = find_queue(work, queue_id)
        if queue.parent is not None:
            raise InvalidArgument(
                f"subscription {queue_id!r} has the options of its queue",
                hint=f"alter queue {queue.parent!r}: its subscriptions are altered with it",
            )
        for reader in sorted(readers_of(work, queue), key=lambda reader: reader.number):
            queries.locks.serialise_requests(work, reader.number)
            _alter(work, find_queue(work, reader.id), given, guard)
        _alter(work, queue, given, guard)
        return find_queue(work, queue_id)


def _alter(work: Work, queue: Queue, given: Mapping[str, Any], guard: str) -> None:
    """Alter a queue, or one of its subscriptions; the caller keeps out who asks for locks."""
    changed = {name: option for name, option in given.items() if getattr(queue, name) != option}
    _check(work, queue, changed, guard)
    if changed:
        queries.queues.alter_queue(work, queue.number, changed)


def _check(work: Work, queue: Queue, changed: Mapping[str, Any], guard: str) -> None:
    if (units := changed.get("buckets_per_range")) is not None:
        check_number("buckets_per_range", units, queue.buckets)
        _check_idle(work, queue)
        if queries.segments.wait_for(work, queue.number):
            raise InvalidArgument(
                f"buckets_per_range of queue {queue.id!r}: expected no entries that wait in files, which were cut by "
                "its units, found some",
                hint="drain the queue first",
            )
        if guard == "fence" and queries.entries.has_any(work, queue.number):
            raise InvalidArgument(
                f"buckets_per_range of queue {queue.id!r}: expected an empty queue, found entries that wait",
                hint="if all its sinks have the guard seq, say so: guard='seq', on the command line --guard seq; "
                "else drain the queue first",
            )
    most = changed.get("max_value_bytes", queue.max_value_bytes)
    # a drain plans its memory by what a value may have at most
    if most < queue.max_value_bytes > ASSUMED_BYTES:
        largest = queries.entries.largest_value(work, queue.number)
        if largest > max(most, ASSUMED_BYTES):
            raise InvalidArgument(
                f"max_value_bytes of queue {queue.id!r}: expected at least {largest}, the size of a value that waits "
                f"or is a dead letter, found {most}",
                hint="drain the queue first, and retry or drop its dead letters",
            )


def _check_idle(work: Work, queue: Queue) -> None:
    """Make sure that nobody holds a lock; the caller keeps out new ones."""
    if found := queries.locks.of_queue(work, queue.number, now=work.now()):
        held = ", ".join(f"[{row['first_bucket']}, {row['end_bucket']}) by {row['task']}" for row in found)
        raise LockNotAvailable(
            f"the units of queue {queue.id!r} are worked on: {held}",
            hint="wait for the drains to end, or stop them, then alter the queue again",
        )
