"""The store and its transactions, as users hold them."""

from export_queue.core.client.context import TransactionContext
from export_queue.core.client.store import Store
from export_queue.core.retry import Retry
from export_queue.core.store import Limits
from export_queue.core.transactions import Level, Participant

__all__ = ["Level", "Limits", "Participant", "Retry", "Store", "TransactionContext"]
