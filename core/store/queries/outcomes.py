"""SQL about outcomes of commits, and the requests under which clients ask for them.

A request begins with the time at which its client made it (version 7 of RFC 9562), so outcomes are stored in the order
of time, and old ones are found without a separate index. Only times of requests are compared. The outcomes of a client
whose clock is wrong are deleted later, or count as forgotten sooner.
"""

from __future__ import annotations

import os
import time
from uuid import UUID

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.schema import active
from export_queue.core.store.schema import cleanup as c
from export_queue.core.store.schema import outcome as o

SUBJECT = "outcomes"
_VERSION_AND_VARIANT = 0x7 << 76 | 0b10 << 62
_RANDOM = 0xFFF << 64 | (1 << 62) - 1
"""The random bits of a request."""


def new_request() -> UUID:
    """Make the name under which one transaction commits and its outcome is read."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10))
    return UUID(int=milliseconds << 80 | random & _RANDOM | _VERSION_AND_VARIANT)


def delete_outcomes(work: Work, *, before_ms: int, limit: int) -> int:
    """Delete outcomes that were decided before a time, oldest requests first.

    Those of transactions in progress stay: a refused request stays refused, however long its transaction takes.
    """
    oldest_kept = UUID(int=before_ms << 80)
    doomed = (
        sa.select(o.c.request)
        .where(o.c.request < oldest_kept, o.c.decided_ms < before_ms, o.c.request.not_in(sa.select(active.c.request)))
        .order_by(o.c.request)
        .limit(limit)
    )
    work.connection.execute(c.update().where(c.c.subject == SUBJECT, c.c.reached < before_ms).values(reached=before_ms))
    return work.connection.execute(o.delete().where(o.c.request.in_(doomed))).rowcount


def may_be_forgotten(work: Reading, request: UUID) -> bool:
    """Return whether the outcome of a request may have been deleted."""
    reached = work.connection.scalar(sa.select(c.c.reached).where(c.c.subject == SUBJECT))
    return reached is not None and request.int >> 80 < reached


def count_decided(work: Reading, *, since_ms: int) -> dict[str, int]:
    """Count the outcomes that were decided since a time, by status."""
    statement = sa.select(o.c.status, sa.func.count()).where(o.c.decided_ms >= since_ms).group_by(o.c.status)
    return {status: int(number) for status, number in work.connection.execute(statement)}
