"""One transaction, as the function that runs in it holds it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from export_queue.core.client.catalogue import Catalogue
from export_queue.core.errors import InvalidArgument
from export_queue.core.segments import BulkWriter
from export_queue.core.store import added_to_subscription
from export_queue.core.tables import Table
from export_queue.core.transactions import Level, OpenTransaction, Participant


class TransactionContext:
    """The handle of one transaction: its tables and queues, its level, its participants."""

    def __init__(self, catalogue: Catalogue, transaction: OpenTransaction) -> None:
        self._catalogue = catalogue
        self._transaction = transaction
        self._writers: dict[str, BulkWriter] = {}

    @property
    def id(self) -> int:
        """The transaction's id; asking before the commit draws it.

        It is the sequence of its entries, too, unless the transaction is bound to a connection.
        """
        if self._transaction.kind == "read":
            raise InvalidArgument("a read-only transaction has no id")
        return self._transaction.id

    @property
    def request(self) -> UUID:
        """The name of the commit, for :meth:`Store.outcome`."""
        return self._transaction.request

    def table(self, name: str) -> Table:
        """Bind a table to this transaction; one that is not configured is stored with default options."""
        self._transaction.require_open()
        return Table(self._transaction, self._catalogue.table(name, self._transaction.bound), self._catalogue.observed)

    def queue(self, queue_id: str) -> BulkWriter:
        """Bind a queue to this transaction.

        :raises UnknownQueue: the store has no such queue.
        :raises InvalidArgument: it is a subscription; add to its queue instead.
        """
        self._transaction.require_open()
        if queue_id not in self._writers:
            queue = self._catalogue.queue(queue_id)
            if queue.parent is not None:
                raise added_to_subscription(queue.id)
            self._writers[queue_id] = BulkWriter(self._transaction, queue)
        return self._writers[queue_id]

    def join(self, participant: Participant) -> None:
        """Let another resource take part: it is written before the commit, and rolled back if there is none.

        :raises InvalidArgument: the transaction is read-only, bound to a connection, or resumed.
        """
        self._transaction.join(participant)

    def checkpoint(self) -> None:
        """Begin new versions: later writes of this transaction do not replace earlier ones; the snapshot stays.

        ``tx.level`` says which of its own versions the transaction sees; all of them commit or roll back together.
        """
        self._transaction.checkpoint()

    @property
    def level(self) -> Level:
        """How much the transaction sees of its own writes; it may be set at any time."""
        return self._transaction.level

    @level.setter
    def level(self, level: Level) -> None:
        self._transaction.level = level

    def flush(self) -> None:
        """Stage the buffered writes in the store, so that they need not fit into memory; for long transactions only."""
        self._transaction.flush()

    def to_json(self) -> dict[str, Any]:
        """Return a long transaction as a value that another process may :meth:`Store.resume`."""
        self._transaction.flush()
        return self._transaction.value.to_json()


def long_transaction(context: TransactionContext) -> OpenTransaction:
    """Return the long transaction of a context, for code that stages rows under it.

    :raises InvalidArgument: the transaction is not long.
    """
    opened = context._transaction
    if opened.kind != "long":
        raise InvalidArgument(
            f"expected a long transaction, found a transaction of the kind {opened.kind!r}",
            hint="with store.transaction(long=True) as tx: …",
        )
    opened.require_open()
    return opened
