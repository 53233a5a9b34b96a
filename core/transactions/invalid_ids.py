"""Transactions that can no longer commit: their ids become invalid, and are forgotten later."""

from __future__ import annotations

import logging
import time

import sqlalchemy as sa

from export_queue.core.errors import InvalidArgument, StoreUnavailable
from export_queue.core.store import Database, Swept, queries

log = logging.getLogger("export_queue.transactions")

EXPIRE_SECONDS = 10.0
"""Shortest time between two searches of one process for transactions past their deadline."""


def expire(database: Database) -> int:
    """Make transactions past their deadline invalid, abort those that this process left behind, and count them."""
    with database.connect() as connection:
        return _expire(database, connection)


def expire_if_due(database: Database, *, seconds: float) -> None:
    """Expire late transactions, unless this process did so a few seconds ago.

    :param seconds: how long to wait for the answer.
    """
    now = time.monotonic()
    if now - database.expired_at > EXPIRE_SECONDS:
        database.expired_at = now
        with database.connect(seconds=seconds) as connection:
            try:
                _expire(database, connection)
            except StoreUnavailable as error:
                if error.sent:
                    raise
                # The disk is full, or another writer blocks: a read-only transaction can still start.
                log.warning("transactions past their deadline could not be ended, which is tried again: %s", error)


def _expire(database: Database, connection: sa.Connection) -> int:
    for transaction in list(database.left_behind):
        database.dialect.steps.abort(connection, kind="long", transaction=transaction)
        database.left_behind.discard(transaction)
    return _ended(database.dialect.steps.expire(connection))


def abort_by_id(database: Database, transaction: int) -> None:
    """Abort a long transaction of another program; one that has ended is left unchanged.

    :raises InvalidArgument: it is in progress and short, so that its program ends it.
    """
    with database.read() as work:
        found = {one.id: one for one in queries.monitoring.transactions_in_progress(work)}.get(transaction)
    if found is None:
        return
    if found.kind != "long":
        raise InvalidArgument(
            f"transaction {transaction} is {found.kind}, and only long ones are aborted by their id: it ends with "
            f"its program{f', {found.client}' if found.client else ''}",
            hint="let it end: it has a time-out of minutes"
            if found.session is None
            else f"if the program hangs, end its connection: select pg_terminate_backend({found.session})",
        )
    with database.connect() as connection:
        database.dialect.steps.abort(connection, kind="long", transaction=transaction)


def prune(database: Database, *, limit: int = 1000) -> int:
    """Delete the rows of invalid transactions, forget their ids, and count them."""
    with database.connect() as connection:
        return _ended(database.dialect.steps.prune(connection, limit=limit))


def _ended(swept: Swept) -> int:
    if swept.failed:
        log.warning("a transaction could not be ended and was skipped: %s", swept.failed)
    return swept.ended
