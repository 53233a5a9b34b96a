"""Snapshot isolation above the SQL database: values, buffers, the life of a transaction."""

from export_queue.core.transactions.open import OpenTransaction
from export_queue.core.transactions.retrying import run_retrying
from export_queue.core.transactions.snapshot import Level, Snapshot, Transaction
from export_queue.core.transactions.steps import observe, outcome, prune, stored_result, sweep

__all__ = [
    "Level",
    "OpenTransaction",
    "Snapshot",
    "Transaction",
    "observe",
    "outcome",
    "prune",
    "run_retrying",
    "stored_result",
    "sweep",
]
