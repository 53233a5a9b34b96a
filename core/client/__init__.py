"""The store and its transactions, as users hold them."""

from export_queue.core.client.context import TransactionContext
from export_queue.core.client.store import DEFAULT_SCHEMA, Store

__all__ = ["DEFAULT_SCHEMA", "Store", "TransactionContext"]
