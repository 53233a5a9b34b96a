"""How an id is known to be in progress until its transaction ends; no I/O."""

from __future__ import annotations

from typing import Literal

from export_queue.core.errors import InvalidArgument

Kind = Literal["write", "short", "long", "bound"]
"""``write``: never read; ``short``: buffered; ``long``: staged early; ``bound``: written into a SQL transaction of the
user's, which the user ends."""

Registration = Literal["commit", "transaction", "row", "rows"]
"""``commit``: the commit draws the id itself, under a lock of its own SQL transaction; ``transaction``: an advisory
lock of the user's SQL transaction; ``row``: an active row, which any session may end; ``rows``: an active row for each
write pointer, under which rows are staged before the commit."""

LOCK_WINDOW = 1 << 51
"""How far below the newest id a lock's key counts as an id, in ids: 26 days of the clock. The lock of an application,
read as an id, may be any number."""

HOUR_OF_IDS = 3600 * 1000 * 1_000_000
"""While anything is registered, no id is drawn that lies further above the last one, unless the clock has stayed there:
a step of the clock is followed little by little, and must not put registered ids out of the window of locks."""

QUEUE_BIT = 1 << 62
"""Set in the key of the lock that holds a queue's readers, beside the queue's number: all ids are smaller."""

STAYED_MS = 10 * 60 * 1000
"""How long ago, at least, a run of clean-up has met the clock where it has stayed."""

SLOW_MS = 3600 * 1000
"""A long transaction with this time-out, or a longer one, is ended only if it was found late :data:`STAYED_MS` earlier,
too: a clock that is ahead for a moment does not take away the work of hours."""

LAG_OF_IDS = 100 * 1_000_000
"""How far the ids of a sequence may lag the clock: the next number costs less than a number that is set."""


def registration_of(kind: Kind, *, has_id: bool) -> Registration:
    """Choose how a transaction is registered on a PostgreSQL server.

    :param kind: the transaction's.
    :param has_id: whether it needs its id before its commit.
    """
    if kind == "long":
        return "rows"  # it spans sessions
    if kind == "bound":
        return "transaction"
    return "row" if has_id else "commit"


def floor_refused(floor: int) -> InvalidArgument:
    """Build the error of a floor for a store that is at work: ids in progress would lie too far below it."""
    return InvalidArgument(
        f"floor {floor}: expected a store without transactions in progress, found some",
        hint="end them first; the view active_transactions lists them, and `export-queue maintain` ends late ones",
    )
