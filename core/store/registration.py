"""How an id is known to be in progress until its transaction ends; no I/O."""

from __future__ import annotations

from typing import Literal

Kind = Literal["write", "short", "long", "bound"]
"""``write``: never read, has no id before its commit; ``short``: buffered; ``long``: staged early;
``bound``: written into a SQL transaction of the user's, which the user ends."""

IdSource = Literal["sequence", "clock"]
"""Where a store's ids come from: a sequence, with advisory locks that register them, or a row that is the clock."""

Registration = Literal["commit", "session", "transaction", "row", "rows"]
"""``commit``: the commit draws the id itself, under a lock of its own SQL transaction; ``session``: an advisory lock of
the server session; ``transaction``: an advisory lock of the user's SQL transaction; ``row``: an active row, which any
session may end; ``rows``: an active row for each write pointer, under which rows are staged before the commit."""

LOCK_WINDOW = 1 << 43
"""How far below the newest id a lock's key counts as an id, in ids: two hours and a half of the clock. The lock of an
application, read as an id, may be any number."""


def registration_of(kind: Kind, *, id_source: IdSource, owns_session: bool) -> Registration:
    """Choose how a transaction is registered on a server.

    :param kind: the transaction's.
    :param id_source: the store's; a clock has no locks beside it.
    :param owns_session: whether a server session belongs to the client from one SQL transaction to the next, which
        a pooler in transaction mode does not give.
    """
    if kind == "long":
        return "rows"  # it spans sessions
    if id_source == "clock":
        return "row"  # also for "write": a clock that is drawn inside the commit stays locked while that flushes
    if kind == "write":
        return "commit"
    if kind == "bound":
        return "transaction"
    return "session" if owns_session else "row"
