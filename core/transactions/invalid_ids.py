"""Ids that never commit: how they become invalid, and how they are forgotten."""

from __future__ import annotations

import logging
import time

import sqlalchemy as sa

from export_queue.core.errors import StoreUnavailable
from export_queue.core.store import Database, Swept

log = logging.getLogger("export_queue.transactions")

EXPIRE_SECONDS = 10.0
"""Least time between two looks of one process for transactions that are late."""


def expire(database: Database, *, seconds: float | None = None) -> int:
    """Make transactions past their deadline invalid, abort those that this process left behind, and return how many.

    :param seconds: how long the answer is waited for; an hour.
    """
    with database.connect(seconds=seconds) as connection:
        return _expire(database, connection)


def expire_if_due(database: Database, *, seconds: float) -> None:
    """Expire as part of starting, unless this process did so a moment ago."""
    now = time.monotonic()
    if now - database.expired_at > EXPIRE_SECONDS:
        database.expired_at = now
        with database.connect(seconds=seconds) as connection:
            try:
                _expire(database, connection)
            except StoreUnavailable as error:
                if error.sent:
                    raise
                # A full disk, or a writer that stands still: a transaction that only reads may well start.
                log.warning("transactions past their deadline could not be ended, which is tried again: %s", error)


def _expire(database: Database, connection: sa.Connection) -> int:
    for transaction in list(database.left_behind):
        database.dialect.steps.abort(connection, kind="long", transaction=transaction)
        database.left_behind.discard(transaction)
    return _told(database.dialect.steps.expire(connection))


def prune(database: Database, *, limit: int = 1000) -> int:
    """Delete the rows of invalid transactions, forget their ids, and return how many."""
    with database.connect() as connection:
        return _told(database.dialect.steps.prune(connection, limit=limit))


def _told(swept: Swept) -> int:
    if swept.failed:
        log.warning("a sweep went on past a transaction that it could not end: %s", swept.failed)
    return swept.ended
