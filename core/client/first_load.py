"""The first load of a subscription, as the block that makes it holds it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from export_queue.core.client.context import TransactionContext
from export_queue.core.queue import Queue
from export_queue.core.segments import BulkWriter, OnDuplicate
from export_queue.core.tables import Table
from export_queue.core.transactions import OpenTransaction

if TYPE_CHECKING:
    import pyarrow as pa


class FirstLoad:
    """The handle of a subscription's first load: it reads tables, and adds to the subscription alone."""

    def __init__(self, context: TransactionContext, transaction: OpenTransaction, subscription: Queue) -> None:
        self._context = context
        self._transaction = transaction
        self._writer = BulkWriter(transaction, subscription)

    @property
    def id(self) -> int:
        """The transaction's id, and the sequence of its entries: what is committed by now has a smaller one."""
        return self._transaction.id

    def table(self, name: str) -> Table:
        """Bind a table to the load; it can only be read."""
        return self._context.table(name)

    def add(self, key: Any, value: Any, *, replace: bool = False) -> None:
        """Add an entry for the subscription; see :meth:`QueueWriter.add` for the parameters and the errors."""
        self._writer.add(key, value, replace=replace)

    def add_many(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Add pairs of key and value."""
        self._writer.add_many(entries)

    def add_batch(self, batch: pa.Table | pa.RecordBatch, *, on_duplicate: OnDuplicate = "error") -> int:
        """Add all rows of an Arrow table; see :meth:`BulkWriter.add_batch` for the parameters and the errors."""
        return self._writer.add_batch(batch, on_duplicate=on_duplicate)

    def flush(self) -> None:
        """Stage the entries so far in the store, so that they need not fit into memory.

        The load forgets their keys, too: of a key that is added again afterwards, the later value counts.
        """
        self._transaction.flush()
        self._writer.forget_added()
