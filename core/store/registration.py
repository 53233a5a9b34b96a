"""How ids are registered as in progress until their transactions end; no I/O."""

from __future__ import annotations

from typing import Literal

from export_queue.core.errors import InvalidArgument

Kind = Literal["write", "short", "long", "bound"]
"""``write``: never reads; ``short``: buffered; ``long``: staged early; ``bound``: written into a SQL
transaction that its user ends."""

Registration = Literal["commit", "transaction", "row", "rows"]
"""``commit``: the commit draws the id under a lock of its SQL transaction; ``transaction``: an advisory lock of the
user's SQL transaction; ``row``: an active row, which any session may end; ``rows``: an active row for each write
pointer, under which rows are staged before the commit."""

LOCK_WINDOW = 1 << 51
"""How far below the newest id a lock's key counts as an id: 26 days of the clock. The lock of an application, read as
an id, may be any number."""

HOUR_OF_IDS = 3600 * 1000 * 1_000_000
"""While anything is registered, ids advance by at most this much, unless the clock has stayed ahead. A step of the
clock is followed gradually, so that it does not move registered ids out of the window of locks."""

QUEUE_BIT = 1 << 62
"""Set in the key of the lock on a queue's readers, next to the queue's number. All ids are smaller."""

STAYED_MS = 10 * 60 * 1000
"""If a run of clean-up met the clock near its present time at least this long ago, the clock has stayed there."""

SLOW_MS = 3600 * 1000
"""A long transaction with at least this time-out is only ended if it was already found late :data:`STAYED_MS` earlier:
a clock that is ahead for a moment must not discard the work of hours."""

LAG_OF_IDS = 100 * 1_000_000
"""How far the ids of a sequence may lag the clock. Drawing the next number is cheaper than setting one."""


def registration_of(kind: Kind, *, has_id: bool) -> Registration:
    """Choose how a transaction is registered on a PostgreSQL server, with or without an id before its commit."""
    if kind == "long":
        return "rows"  # it spans sessions
    if kind == "bound":
        return "transaction"
    return "row" if has_id else "commit"


def floor_refused(floor: int) -> InvalidArgument:
    """Build the error of a floor for a store with transactions in progress, whose ids would be too far below it."""
    return InvalidArgument(
        f"floor {floor}: expected a store without transactions in progress, found some",
        hint="end them first; the view active_transactions lists them, and `export-queue maintain` ends late ones",
    )
