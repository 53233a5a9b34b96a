"""Snapshot isolation above the SQL database: values, buffers, the life of a transaction."""

from export_queue.core.store import MAX_SHORT_SECONDS, Counters, Counts, Histogram, Snapshot
from export_queue.core.transactions.idempotency import IdempotencyState, as_json, idempotency_state
from export_queue.core.transactions.invalid_ids import abort_by_id, expire, expire_if_due, prune
from export_queue.core.transactions.outcomes import outcome
from export_queue.core.transactions.participants import Participant
from export_queue.core.transactions.reads import read_cell, read_cells, read_versions, scan_cells
from export_queue.core.transactions.sessions import BoundSession
from export_queue.core.transactions.snapshots import (
    lowest_unfinished,
    name_transactions,
    settled_snapshot,
    take_snapshot,
)
from export_queue.core.transactions.transaction import (
    BEFORE_COMMIT,
    NO_READER,
    KnownKeys,
    OpenKind,
    OpenTransaction,
)
from export_queue.core.transactions.value import Level, State, Transaction

__all__ = [
    "BEFORE_COMMIT",
    "MAX_SHORT_SECONDS",
    "NO_READER",
    "BoundSession",
    "Counters",
    "Counts",
    "Histogram",
    "IdempotencyState",
    "KnownKeys",
    "Level",
    "OpenKind",
    "OpenTransaction",
    "Participant",
    "Snapshot",
    "State",
    "Transaction",
    "abort_by_id",
    "as_json",
    "expire",
    "expire_if_due",
    "idempotency_state",
    "lowest_unfinished",
    "name_transactions",
    "outcome",
    "prune",
    "read_cell",
    "read_cells",
    "read_versions",
    "scan_cells",
    "settled_snapshot",
    "take_snapshot",
]
