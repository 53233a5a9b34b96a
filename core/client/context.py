"""A transaction and a first load, as the functions that run in them hold them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from export_queue.core.client.catalogue import Catalogue
from export_queue.core.drain import token_of
from export_queue.core.errors import InvalidArgument
from export_queue.core.queue import Queue
from export_queue.core.segments import BulkWriter, OnDuplicate
from export_queue.core.state import MirrorWriter
from export_queue.core.store import added_to_subscription
from export_queue.core.tables import Table
from export_queue.core.transactions import Level, OpenTransaction, Participant

if TYPE_CHECKING:
    import pyarrow as pa


class TransactionContext:
    """One transaction: access to its tables and queues, and to its state."""

    def __init__(self, catalogue: Catalogue, transaction: OpenTransaction) -> None:
        self._catalogue = catalogue
        self._transaction = transaction
        self._writers: dict[str, MirrorWriter] = {}

    @property
    def id(self) -> int:
        """The transaction's id; asking before the commit draws it.

        It is also the sequence of the transaction's entries, unless the transaction is bound to a connection.
        """
        if self._transaction.kind == "read":
            raise InvalidArgument("a read-only transaction has no id")
        return self._transaction.id

    @property
    def request(self) -> UUID:
        """Identifies the commit, for :meth:`Store.outcome`."""
        return self._transaction.request

    @property
    def token(self) -> str:
        """A short text by which other processes wait for the export of what was added: :meth:`Store.wait_exported`.

        It exists after the commit, fits into a header or a cookie (at most 500 characters) and holds no keys and no
        values. If the transaction is bound to a connection, it exists after the block: the wait also waits for your
        commit. To get it from :meth:`Store.run`, return the transaction from the function.

        :raises InvalidArgument: the transaction has not committed yet.
        :raises TransactionEnded: it was aborted.
        :raises CommitOutcomeUnknown: it is not known whether it has committed.
        """
        return token_of(self._transaction)

    def table(self, name: str) -> Table:
        """Return a table. If it has not been configured, it is created with default options."""
        self._transaction.require_open()
        return Table(self._transaction, self._catalogue.table(name, self._transaction.bound), self._catalogue.observed)

    def queue(self, queue_id: str) -> MirrorWriter:
        """Return a queue, to add entries to it, or to mirror a data set.

        :raises UnknownQueue: the store has no such queue.
        :raises InvalidArgument: it is a subscription; add to its queue instead. Or the transaction was begun for other
            queues only.
        """
        self._transaction.require_open()
        if queue_id not in self._writers:
            queue = self._catalogue.queue(queue_id)
            if queue.parent is not None:
                raise added_to_subscription(queue.id)
            self._transaction.require_queue(queue.id)
            self._writers[queue_id] = MirrorWriter(self._transaction, queue)
        return self._writers[queue_id]

    def join(self, participant: Participant) -> None:
        """Add another resource to the transaction: it writes before the commit, and rolls back if there is none.

        :raises InvalidArgument: the transaction is read-only, bound to a connection, or resumed.
        """
        self._transaction.join(participant)

    def checkpoint(self) -> None:
        """Make later writes new versions, which do not replace earlier ones. The snapshot stays.

        ``tx.level`` decides which own versions the transaction reads. All of them commit or roll back together.
        """
        self._transaction.checkpoint()

    @property
    def level(self) -> Level:
        """Which of its own writes the transaction reads; it can be set at any time."""
        return self._transaction.level

    @level.setter
    def level(self, level: Level) -> None:
        self._transaction.level = level

    def flush(self) -> None:
        """Stage the buffered writes of a long transaction in the store, so that they need not fit into memory."""
        self._transaction.flush()

    def to_json(self) -> dict[str, Any]:
        """Return a long transaction as a JSON object, with which another process can :meth:`Store.resume` it."""
        self._transaction.flush()
        return self._transaction.value.to_json()


class FirstLoad:
    """The first load of a subscription: it reads tables, and adds to this subscription only."""

    def __init__(self, context: TransactionContext, transaction: OpenTransaction, subscription: Queue) -> None:
        self._context = context
        self._transaction = transaction
        self._writer = BulkWriter(transaction, subscription)

    @property
    def id(self) -> int:
        """The transaction's id and the sequence of its entries. Everything committed before has smaller ones."""
        return self._transaction.id

    def table(self, name: str) -> Table:
        """Return a table, which can only be read."""
        return self._context.table(name)

    def add(self, key: Any, value: Any, *, replace: bool = False) -> None:
        """Add an entry for the subscription, as :meth:`QueueWriter.add` does."""
        self._writer.add(key, value, replace=replace)

    def add_many(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Add pairs of key and value."""
        self._writer.add_many(entries)

    def add_batch(self, batch: pa.Table | pa.RecordBatch, *, on_duplicate: OnDuplicate = "error") -> int:
        """Add all rows of an Arrow table, as :meth:`BulkWriter.add_batch` does."""
        return self._writer.add_batch(batch, on_duplicate=on_duplicate)

    def flush(self) -> None:
        """Stage the entries so far in the store, so that they need not fit into memory.

        The keys of these entries are forgotten: if one is added again afterwards, the later value counts.
        """
        self._transaction.flush()
        self._writer.forget_added()


def long_transaction(context: TransactionContext) -> OpenTransaction:
    """Return the long transaction of a context, for code that stages rows in it.

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
