"""One transaction, as the function that runs in it holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from export_queue.core.queue import QueueWriter
from export_queue.core.tables import Table
from export_queue.core.transactions import OpenTransaction

if TYPE_CHECKING:
    from export_queue.core.client.store import Store


class TransactionContext:
    """What a function in a transaction works with."""

    def __init__(self, store: Store, transaction: OpenTransaction) -> None:
        self._store = store
        self._transaction = transaction
        self._writers: dict[str, QueueWriter] = {}

    @property
    def id(self) -> int:
        """The transaction's id, and the sequence of the entries that it adds; asking draws it."""
        return self._transaction.value.id

    @property
    def request(self) -> UUID:
        """The name under which :meth:`Store.outcome` tells what became of the commit."""
        return self._transaction.request

    def table(self, name: str) -> Table:
        """Bind a table to this transaction; one that is not configured is stored with default options."""
        self._transaction.require_open()
        return Table(self._transaction, self._store._table(name), self._store._observed)

    def queue(self, queue_id: str) -> QueueWriter:
        """Bind a queue to this transaction.

        :raises UnknownQueue: the store has no such queue.
        """
        self._transaction.require_open()
        if queue_id not in self._writers:
            self._writers[queue_id] = QueueWriter(self._transaction, self._store._queue(queue_id))
        return self._writers[queue_id]

    def flush(self) -> None:
        """Stage what is buffered in the store, so that it need not fit into memory; for long transactions only."""
        self._transaction.flush()

    def to_json(self) -> dict[str, Any]:
        """Return a long transaction as a value that another process may :meth:`Store.resume`."""
        self._transaction.flush()
        return self._transaction.value.to_json()
