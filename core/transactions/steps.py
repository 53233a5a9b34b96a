"""The steps that belong to no single transaction: snapshots, outcomes, tokens, sweeping."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import orjson

from export_queue.core.store import Database, Outcome
from export_queue.core.store.reports import latest_token
from export_queue.core.transactions.snapshot import Snapshot

SWEEP_SECONDS = 10.0
"""Least time between two sweeps of one process."""


def observe(database: Database) -> Snapshot:
    """Take a snapshot of everything committed before the call, at the cost of a read."""
    with database.connect() as connection:
        view = database.dialect.observe(connection)
    return Snapshot(view.read_pointer, view.excluded)


def outcome(database: Database, request: UUID) -> Outcome:
    """Decide the outcome of a request: it waits for a commit in flight and shuts out one that arrives later (I12)."""
    with database.connect() as connection:
        return database.dialect.decide(connection, request)


def stored_result(database: Database, token: str) -> tuple[int, bool, Any]:
    """Look a token up.

    :returns: its current generation, whether that generation has committed, and its result.
    """
    with database.read() as work:
        row = latest_token(work, token)
    if row is None:
        return 1, False, None
    if row["closed_ms"] is not None:
        return int(row["generation"]) + 1, False, None
    return int(row["generation"]), True, None if row["result"] is None else orjson.loads(row["result"])


def sweep(database: Database) -> int:
    """Make transactions past their deadline invalid, and return how many."""
    with database.connect() as connection:
        return database.dialect.sweep(connection)


def sweep_if_due(database: Database) -> None:
    """Sweep as part of starting, unless this process did so a moment ago."""
    now = time.monotonic()
    if now - database.swept_at > SWEEP_SECONDS:
        database.swept_at = now
        sweep(database)


def prune(database: Database, *, limit: int = 1000) -> int:
    """Delete what invalid transactions left and forget them, and return how many."""
    with database.connect() as connection:
        return database.dialect.prune(connection, limit=limit)
