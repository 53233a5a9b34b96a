"""Snapshot isolation above the SQL database: values, buffers, the life of a transaction."""

from export_queue.core.store import MAX_SHORT_SECONDS, Counters, Counts, Histogram, Snapshot
from export_queue.core.transactions.open import OpenKind, OpenTransaction
from export_queue.core.transactions.participants import Participant
from export_queue.core.transactions.retrying import Retry
from export_queue.core.transactions.sessions import BoundSession
from export_queue.core.transactions.steps import (
    IdempotencyState,
    expire,
    expire_if_due,
    idempotency_state,
    outcome,
    prune,
    settled_snapshot,
    take_snapshot,
)
from export_queue.core.transactions.value import Level, Transaction

__all__ = [
    "MAX_SHORT_SECONDS",
    "BoundSession",
    "Counters",
    "Counts",
    "Histogram",
    "IdempotencyState",
    "Level",
    "OpenKind",
    "OpenTransaction",
    "Participant",
    "Retry",
    "Snapshot",
    "Transaction",
    "expire",
    "expire_if_due",
    "idempotency_state",
    "outcome",
    "prune",
    "settled_snapshot",
    "take_snapshot",
]
