"""The steps that belong to no single transaction: snapshots, outcomes, idempotency keys, sweeping."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from export_queue.core.errors import CommitOutcomeUnknown
from export_queue.core.store import Database, Outcome, Snapshot, queries

EXPIRE_SECONDS = 10.0
"""Least time between two such looks of one process."""
ASK_SECONDS = 20.0
"""How long the outcome of a commit is asked for."""


def take_snapshot(database: Database) -> Snapshot:
    """Take a snapshot of everything committed before the call, at the cost of a read."""
    with database.connect() as connection:
        return database.dialect.take_snapshot(connection)


def settled_snapshot(database: Database) -> Snapshot:
    """Take a snapshot below every id in progress: no commit to come can add to it.

    What is invalid never commits, so it holds nothing back.
    """
    with database.connect() as connection:
        snapshot = database.dialect.take_snapshot(connection)
    with database.read() as work:
        invalid = queries.invalid.invalid_ids(work)
    low = min((i for i in snapshot.excluded if i not in invalid), default=snapshot.read_pointer + 1)
    return Snapshot(low - 1, tuple(i for i in snapshot.excluded if i < low))


def invalidate(database: Database, pointers: Sequence[int], *, left_to: str) -> None:
    """Hide write pointers for good, since participants could not undo what they wrote under them."""
    with database.begin() as work:
        queries.invalid.keep_invalid(work, pointers, left_to)


def outcome(database: Database, request: UUID, *, seconds: float = ASK_SECONDS) -> Outcome:
    """Decide the outcome of a request: it waits for a commit in flight and shuts out one that arrives later (I12).

    :param seconds: how long it waits.
    :raises StoreUnavailable: the store cannot be asked, or the commit is still in flight.
    :raises CommitOutcomeUnknown: the request is so old that its outcome may have been forgotten.
    """
    with database.connect(seconds=seconds) as connection:
        decided = database.dialect.decide(connection, request)
    if decided.status == "refused":
        with database.read(seconds=seconds) as work:
            if queries.outcomes.may_be_forgotten(work, request):
                raise CommitOutcomeUnknown(
                    f"the outcome of request {request} is not known any more",
                    hint="clean-up forgets outcomes after a day; `export-queue maintain --keep-outcomes` says when",
                )
    return decided


@dataclass(frozen=True, slots=True)
class IdempotencyState:
    """Where a unit of work stands."""

    generation: int
    """How often its idempotency key has been closed, plus one."""
    committed: bool
    """Whether the work has taken effect in this generation."""
    result: Any = None
    """What was stored with the commit."""


def idempotency_state(database: Database, idempotency_key: str, *, seconds: float | None = None) -> IdempotencyState:
    """Look an idempotency key up.

    :param seconds: how long the answer is waited for; an hour.
    """
    with database.read(seconds=seconds) as work:
        row = queries.reports.latest_idempotency(work, idempotency_key)
    if row is None:
        return IdempotencyState(1, committed=False)
    if row["closed_ms"] is not None:
        return IdempotencyState(int(row["generation"]) + 1, committed=False)
    result = None if row["result"] is None else orjson.loads(row["result"])
    return IdempotencyState(int(row["generation"]), committed=True, result=result)


def expire(database: Database, *, seconds: float | None = None) -> int:
    """Make transactions past their deadline invalid, and return how many.

    :param seconds: how long the answer is waited for; an hour.
    """
    with database.connect(seconds=seconds) as connection:
        return database.dialect.expire(connection)


def expire_if_due(database: Database, *, seconds: float) -> None:
    """Expire as part of starting, unless this process did so a moment ago."""
    now = time.monotonic()
    if now - database.expired_at > EXPIRE_SECONDS:
        database.expired_at = now
        expire(database, seconds=seconds)


def prune(database: Database, *, limit: int = 1000) -> int:
    """Delete what invalid transactions left and forget them, and return how many."""
    with database.connect() as connection:
        return database.dialect.prune(connection, limit=limit)
