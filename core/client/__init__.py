"""What users hold: a store and the transactions in it."""

from export_queue.core.client.context import TransactionContext
from export_queue.core.client.store import Store

__all__ = ["Store", "TransactionContext"]
