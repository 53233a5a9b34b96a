"""A store, as its users hold it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar
from uuid import UUID

from export_queue.core.client.context import TransactionContext
from export_queue.core.errors import AlreadyCommitted, InvalidArgument
from export_queue.core.observers import Observer, ObserverFailure, Observers, Processed
from export_queue.core.queue import (
    Backlog,
    DeadLetter,
    Queue,
    Range,
    backlog,
    bind_sink,
    configure_queue,
    count_dead,
    dead_letters,
    find_queue,
    list_queues,
    waiting_ranges,
)
from export_queue.core.store import Database, Outcome
from export_queue.core.store.creation import Identity, check, create
from export_queue.core.store.protocol import Clock
from export_queue.core.store.reports import close_token, find_reports
from export_queue.core.tables import ObservedColumns, TableOptions, configure_table, find_or_add_table
from export_queue.core.transactions import (
    BoundSession,
    OpenTransaction,
    TokenState,
    Transaction,
    observe,
    outcome,
    run_retrying,
    token_state,
)

Result = TypeVar("Result")


class Store:
    """A store of transactions and export queues.

    ::

        store = Store.open("sqlite:///exports.db")
        store.create()
        store.configure_queue("orders")
        with store.transaction() as tx:
            tx.table("totals").set("anna", "n", b"3")
            tx.queue("orders").add("anna", {"total": 3})
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._identity: Identity | None = None
        self._queues: dict[str, Queue] = {}
        self._tables: dict[str, TableOptions] = {}
        self._observed = ObservedColumns(database)
        self._observers = Observers(database, lambda opened: TransactionContext(self, opened))

    @classmethod
    def open(
        cls,
        url: str,
        *,
        password: str | None = None,
        schema: str = "export_queue",
        behind_pooler: bool = False,
        clock: Clock | None = None,
    ) -> Store:
        """Prepare the connections to a store; nothing is sent yet.

        :param url: ``sqlite:///path`` or ``postgresql+psycopg://user@host/database``.
        :param password: a password that is kept out of the URL.
        :param schema: the PostgreSQL schema that is the store.
        :param behind_pooler: whether the URL leads to a pooler in transaction mode, such as PgBouncer's; it cannot be
            detected. ``?behind_pooler=true`` in the URL says the same. Clients that go through one and clients that
            do not may share a store.
        :param clock: milliseconds since the epoch, for SQLite in tests; PostgreSQL uses the server's clock.
        """
        database = Database.open(url, password=password, schema=schema, behind_pooler=behind_pooler, clock=clock)
        return cls(database)

    def create(self, *, floor: int = 0) -> None:
        """Create the store, or complete it; idempotent.

        :param floor: all ids to come are greater, for a store that is rebuilt while sinks hold its predecessor's data.
        """
        self._identity = create(self.database, floor=floor)

    @property
    def id(self) -> str:
        """The store's identity, drawn when it was created."""
        return self.identity.store_id

    @property
    def identity(self) -> Identity:
        """The store's identity and schema version, checked against this code.

        :raises StoreNotCreated: the database holds no store.
        :raises SchemaVersionError: its schema does not fit this code.
        """
        if self._identity is None:
            with self.database.read() as work:
                self._identity = check(work)
        return self._identity

    @property
    def url_safe(self) -> str:
        """The URL without its password."""
        return self.database.shown_url

    def close(self) -> None:
        """Close all connections."""
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def configure_queue(
        self,
        queue_id: str,
        *,
        buckets: int = 1009,
        buckets_per_range: int = 101,
        key: str = "str",
        value: str = "json",
        max_value_bytes: int = 1 << 20,
        exclusive: bool = False,
    ) -> Queue:
        """Store a queue's options; the same options again change nothing, others are refused.

        See :func:`export_queue.core.queue.configure_queue` for the parameters.
        """
        _ = self.identity
        return configure_queue(
            self.database,
            queue_id,
            buckets=buckets,
            buckets_per_range=buckets_per_range,
            key=key,
            value=value,
            max_value_bytes=max_value_bytes,
            exclusive=exclusive,
        )

    def configure_table(self, name: str, *, conflict: str = "row", ttl: float | None = None) -> TableOptions:
        """Store a table's options; the same options again change nothing, others are refused.

        See :func:`export_queue.core.tables.configure_table` for the parameters.
        """
        _ = self.identity
        return configure_table(self.database, name, conflict=conflict, ttl=ttl)

    def observe(self, table: str, column: str | bytes, function: Observer, kind: str = "strong") -> None:
        """Call a function for every row whose cell in a column awaits work, from :meth:`process_notifications`.

        :param function: called with a transaction of its own, the row and the column, both as bytes.
        :param kind: ``strong``: every write to the column notifies, and of the transactions that work a
            notification off exactly one commits; ``weak``: ``table.notify`` does, and it is worked off at least once.
        :raises OptionsDiffer: the column is observed in the other kind.
        """
        self._observers.register(self._table(table), column, function, kind)
        self._observed.refresh()

    def process_notifications(
        self, *, limit: int | None = None, timeout: float | None = None, stop: Callable[[], bool] | None = None
    ) -> Processed:
        """Call the observers of this process for what is due now, oldest first, each in a transaction of its own.

        What is set while it runs is left for the next call. An observer that raises an error is called again
        later, after 1 s, 2 s, 4 s … 5 min.

        :param limit: how many observers are called at most.
        :param timeout: seconds that one observer's transaction may take; 30.
        :param stop: asked before each notification whether to end.
        """
        return self._observers.process(limit=limit, timeout=timeout, stop=stop)

    def observer_failures(self, *, limit: int = 100) -> list[ObserverFailure]:
        """Read the notifications that wait because their observer failed, the next to be tried first."""
        return self._observers.failures(limit=limit)

    def queue(self, queue_id: str) -> Queue:
        """Read a queue's options as they are stored now."""
        _ = self.identity
        with self.database.read() as work:
            return find_queue(work, queue_id)

    def queues(self) -> list[Queue]:
        """Read all queues, by name."""
        _ = self.identity
        with self.database.read() as work:
            return list_queues(work)

    def rebind(self, queue_id: str, sink: str) -> None:
        """Let a queue drain into another sink from now on; nothing that was exported moves."""
        with self.database.begin() as work:
            bind_sink(work, find_queue(work, queue_id), sink, rebind=True)

    def _queue(self, queue_id: str) -> Queue:
        # Codecs, buckets and layout never change for a stored queue, so a transaction need not read them again.
        if queue_id not in self._queues:
            self._queues[queue_id] = self.queue(queue_id)
        return self._queues[queue_id]

    def _table(self, name: str) -> TableOptions:
        if name not in self._tables:
            _ = self.identity
            self._tables[name] = find_or_add_table(self.database, name)
        return self._tables[name]

    @contextmanager
    def transaction(
        self,
        *,
        timeout: float | None = None,
        long: bool = False,
        token: str | None = None,
        connection: object = None,
    ) -> Iterator[TransactionContext]:
        """Run a block in a transaction: leaving it commits, an exception aborts.

        :param timeout: seconds from the first read until a commit is refused; 30, or 24 hours if long.
        :param long: stage writes in the store, for work that takes long or spans processes.
        :param token: the unit of work; if it has committed before, the block is not entered (I14).
        :param connection: a connection of the user's to the store's database, SQLAlchemy's or the driver's, with a
            SQL transaction open: leaving the block checks and writes into that SQL transaction, and the user commits
            it. Business rows and entries are then one.
        :raises AlreadyCommitted: on entry, or at the commit if another attempt came first; carries the stored result.
        :raises ConflictError: another transaction wrote a key of this one.
        :raises CommitOutcomeUnknown: the connection broke and the store cannot be asked.
        """
        _ = self.identity
        bound = None
        if connection is not None:
            if long:
                raise InvalidArgument("a long transaction spans SQL transactions, so it cannot be bound to one")
            bound = BoundSession(self.database, connection, store_id=self.id)
        opened = OpenTransaction(self.database, long=long, timeout=timeout, token=token, bound=bound)
        try:
            yield TransactionContext(self, opened)
            opened.commit()
        finally:
            opened.abort()

    def run(
        self,
        function: Callable[[TransactionContext], Result],
        *,
        token: str | None = None,
        timeout: float | None = None,
        attempts: int = 10,
    ) -> Result:
        """Run a function in a transaction, again from its start if the commit meets a conflict.

        :param function: called with the transaction; with a token it must return a JSON value.
        :param token: the unit of work: it takes effect once, and later calls return the stored result (I14).
        :param attempts: how often at most.
        :returns: what the function returned.
        """
        _ = self.identity

        def attempt() -> Result:
            opened = OpenTransaction(self.database, timeout=timeout, token=token)
            try:
                result = function(TransactionContext(self, opened))
                opened.commit(result)
                return result
            finally:
                opened.abort()

        try:
            return run_retrying(attempt, attempts=attempts)
        except AlreadyCommitted as error:
            if error.token != token:
                raise
            return error.result  # type: ignore[no-any-return]

    def resume(self, transaction: dict[str, Any]) -> OpenTransaction:
        """Go on with a long transaction that another process began and gave as JSON."""
        return OpenTransaction.resume(self.database, Transaction.from_json(transaction))

    def outcome(self, request: UUID | str) -> Outcome:
        """Tell what became of a commit; one that has not taken effect is refused from now on.

        :param request: the transaction's ``request``.
        """
        return outcome(self.database, UUID(str(request)))

    def token(self, token: str) -> TokenState:
        """Tell where a unit of work stands: whether it has taken effect, and with which result."""
        return token_state(self.database, token)

    def close_token(self, token: str, *, generation: int | None = None) -> bool:
        """Let the same unit of work take effect anew.

        :param generation: close only this generation, so that a late caller cannot close a younger one.
        :returns: False if there was none to close.
        """
        with self.database.begin() as work:
            return close_token(work, token, generation)

    def backlog(self, queue_id: str, ranges: Sequence[Range | Sequence[int]] | None = None) -> list[Backlog]:
        """Count what waits, unit by unit."""
        queue = self.queue(queue_id)
        snapshot = observe(self.database)
        with self.database.read() as work:
            return backlog(work, queue, snapshot, None if ranges is None else queue.split(ranges))

    def waiting_ranges(self, queue_id: str, ranges: Sequence[Range | Sequence[int]] | None = None) -> list[Range]:
        """Say which units have work; cheaper than counting it."""
        queue = self.queue(queue_id)
        snapshot = observe(self.database)
        with self.database.read() as work:
            return waiting_ranges(work, queue, snapshot, None if ranges is None else queue.split(ranges))

    def dead_letters(self, queue_id: str, *, limit: int = 100) -> list[DeadLetter]:
        """Read a queue's dead letters, oldest entries first."""
        queue = self.queue(queue_id)
        with self.database.read() as work:
            return dead_letters(work, queue, limit=limit)

    def count_dead(self, queue_id: str) -> int:
        """Count a queue's dead letters."""
        queue = self.queue(queue_id)
        with self.database.read() as work:
            return count_dead(work, queue)

    def reports(
        self, *, token: str | None = None, queue_id: str | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Read reports of drains, newest first."""
        with self.database.read() as work:
            return find_reports(work, token=token, queue_id=queue_id, limit=limit)
