"""The store and its transactions, as users hold them."""

from export_queue.core.client.context import FirstLoad, TransactionContext, long_transaction
from export_queue.core.client.store import Store

__all__ = ["FirstLoad", "Store", "TransactionContext", "long_transaction"]
