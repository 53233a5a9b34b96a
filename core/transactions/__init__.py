"""Snapshot isolation above the SQL database: values, buffers, the life of a transaction."""

from export_queue.core.transactions.metrics import Counters, Counts, Histogram
from export_queue.core.transactions.open import MAX_SHORT_SECONDS, OpenTransaction
from export_queue.core.transactions.retrying import run_retrying
from export_queue.core.transactions.sessions import BoundSession
from export_queue.core.transactions.snapshot import Level, Snapshot, Transaction
from export_queue.core.transactions.steps import TokenState, observe, outcome, prune, sweep, token_state

__all__ = [
    "MAX_SHORT_SECONDS",
    "BoundSession",
    "Counters",
    "Counts",
    "Histogram",
    "Level",
    "OpenTransaction",
    "Snapshot",
    "TokenState",
    "Transaction",
    "observe",
    "outcome",
    "prune",
    "run_retrying",
    "sweep",
    "token_state",
]
