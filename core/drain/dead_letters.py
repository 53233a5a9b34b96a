"""Queueing dead letters again, so that the next drain sends them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from export_queue.core.drain.claims import Terms, claim_in_layouts, rounds
from export_queue.core.drain.request import LEASE_SECONDS
from export_queue.core.errors import LeaseLost, LockNotAvailable
from export_queue.core.locks import ROWS, Lease, Owner, hold, holders_named, release
from export_queue.core.queue import (
    DeadLetterFilter,
    Position,
    Queue,
    Range,
    find_queue,
    in_all_layouts,
    list_dead_letters,
    refuse_newer_act,
    requeue,
)
from export_queue.core.store import Database


def retry_dead_letters(
    database: Database,
    queue: Queue,
    which: DeadLetterFilter,
    *,
    who: str,
    limit: int,
    lock_timeout: float,
    seen: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Turn dead letters back into entries with their old sequences, so that newer records in the sink still win.

    Each letter is queued under the lock on the row entries of its unit. A drain that works there already has its
    snapshot: its next removal would remove the entry although no sink has received it (I7).

    :param which: letters to retry, oldest first.
    :param who: name for the audit record.
    :param limit: maximum number of letters.
    :param lock_timeout: seconds to wait for drains of their units, counted from when no other unit is free; then
        compactions there are revoked.
    :param seen: see :func:`~export_queue.core.queue.refuse_newer_act`.
    :returns: number of letters that were queued.
    :raises LockNotAvailable: drains held the units all the time; letters that were queued before stay queued.
    """
    with database.read() as work:
        letters = list_dead_letters(work, queue, which, limit=limit)
        refuse_newer_act(work, queue, seen)
        queue = in_all_layouts(work, find_queue(work, queue.id))  # read again: the letters may belong to a newer layout
    layouts = {layout.number: layout for layout in queue.layouts()}
    waiting: dict[Range, list[Position]] = {}
    for letter in letters:
        unit = layouts[letter.layout].unit_of(letter.position.bucket)
        waiting.setdefault(unit, []).append(letter.position)
    owner, moved = Owner.unique(), 0

    def claim_rows(units: Sequence[Range], revokes: bool) -> list[Lease]:
        how = {"owner": owner, "lease_seconds": LEASE_SECONDS, "members": frozenset({ROWS})}
        return claim_in_layouts(database, queue, units, **how, revokes=revokes)

    terms = Terms(
        database=database,
        owner=owner,
        left=lambda: list(waiting),
        claim=claim_rows,
        refusal=lambda held, left: _not_available(database, queue, waiting, moved),
        lock_timeout=lock_timeout,
        sleep=sleep,
        clock=clock,
    )
    for leases in rounds(terms):
        try:
            for lease in leases:
                try:
                    with database.begin() as work:
                        hold(work, lease)
                        of = queue.in_layout(lease.layout)
                        count = requeue(work, of, waiting[lease.range], who=who, which=which)
                except LeaseLost:  # it expired or was revoked meanwhile: claimed again
                    continue
                moved += count
                del waiting[lease.range]
        finally:
            release(database, leases)
    return moved


def _not_available(
    database: Database, queue: Queue, waiting: dict[Range, list[Position]], moved: int
) -> LockNotAvailable:
    with database.read() as work:
        held = holders_named(work, queue, waiting)
    return LockNotAvailable(
        f"others work on {queue.id}: {moved} dead letters are queued again, {sum(map(len, waiting.values()))} are not; "
        f"held: {held}",
        hint="try again; no letter is queued twice",
    )
