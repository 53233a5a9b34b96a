"""The store and its transactions, as users hold them."""

from export_queue.core.client.context import TransactionContext, long_transaction
from export_queue.core.client.first_load import FirstLoad
from export_queue.core.client.store import DEFAULT_SCHEMA, Store

__all__ = ["DEFAULT_SCHEMA", "FirstLoad", "Store", "TransactionContext", "long_transaction"]
