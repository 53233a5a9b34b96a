"""A store, as its users hold it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from export_queue.core.client.context import TransactionContext
from export_queue.core.client.letters import Letters
from export_queue.core.client.transacting import Transacting
from export_queue.core.maintenance import (
    MaintenanceReport,
    SinkSweep,
    maintain,
    read_metrics,
    render,
    sweep_sink,
)
from export_queue.core.observers import Observer, ObserverFailure, Observers, Processed
from export_queue.core.queue import (
    Backlog,
    Queue,
    Range,
    backlog,
    bind_sink,
    configure_queue,
    find_queue,
    list_queues,
    waiting_ranges,
)
from export_queue.core.sinks import Sink, SinkSpec
from export_queue.core.store import Clock, Database, Identity, Limits, check, create, queries
from export_queue.core.tables import ObservedColumns, TableOptions, configure_table, find_or_add_table
from export_queue.core.transactions import OpenTransaction, take_snapshot


class Store(Transacting, Letters):
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
        self._observers = Observers(database, self._context)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        password: str | None = None,
        schema: str = "export_queue",
        behind_pooler: bool = False,
        clock: Clock | None = None,
        client: str | None = None,
        limits: Limits | None = None,
    ) -> Store:
        """Prepare the connections to a store; nothing is sent yet.

        :param url: ``sqlite:///path`` or ``postgresql+psycopg://user@host/database``.
        :param password: a password that is kept out of the URL.
        :param schema: the PostgreSQL schema that is the store.
        :param behind_pooler: whether the URL leads to a pooler in transaction mode, such as PgBouncer's; it cannot be
            detected. ``?behind_pooler=true`` in the URL says the same. Clients that go through one and clients that
            do not may share a store.
        :param clock: milliseconds since the epoch, for SQLite in tests; PostgreSQL uses the server's clock.
        :param client: who runs transactions here, for those who watch the store; by default host and process.
        :param limits: time-outs and sizes of this process's transactions.
        """
        database = Database.open(
            url,
            password=password,
            schema=schema,
            behind_pooler=behind_pooler,
            clock=clock,
            client=client,
            limits=limits,
        )
        return cls(database)

    def _context(self, opened: OpenTransaction) -> TransactionContext:
        return TransactionContext(self, opened)

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

    def backlog(self, queue_id: str, ranges: Sequence[Range | Sequence[int]] | None = None) -> list[Backlog]:
        """Count what waits, unit by unit."""
        queue = self.queue(queue_id)
        snapshot = take_snapshot(self.database)
        with self.database.read() as work:
            return backlog(work, queue, snapshot, None if ranges is None else queue.split(ranges))

    def waiting_ranges(self, queue_id: str, ranges: Sequence[Range | Sequence[int]] | None = None) -> list[Range]:
        """Say which units have work; cheaper than counting it."""
        queue = self.queue(queue_id)
        snapshot = take_snapshot(self.database)
        with self.database.read() as work:
            return waiting_ranges(work, queue, snapshot, None if ranges is None else queue.split(ranges))

    def maintain(self, *, limit: int = 100_000) -> MaintenanceReport:
        """Delete what nobody can read or ask for any more; safe beside everything, and if it is interrupted.

        See :func:`export_queue.core.maintenance.maintain` for what is kept how long.

        :param limit: rows of each subject that are looked at; the report says whether more is left.
        """
        _ = self.identity
        return maintain(self.database, limit=limit)

    def sweep_sink(self, sink: SinkSpec | Sink, *, sink_name: str | None = None) -> SinkSweep:
        """Let a sink forget the tombstones that no delivery can meet any more; safe beside drains.

        See :func:`export_queue.core.maintenance.sweep_sink` for the parameters, and what it raises.
        """
        return sweep_sink(self.database, self.id, sink, sink_name=sink_name)

    def metrics(self) -> str:
        """Say what there is to watch, in the store and in this process, as OpenMetrics text."""
        _ = self.identity
        return render(read_metrics(self.database, counters=self.database.counters))

    def reports(
        self, *, drain_id: str | None = None, queue_id: str | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Read reports of drains, newest first."""
        with self.database.read() as work:
            return queries.reports.find_reports(work, drain_id=drain_id, queue_id=queue_id, limit=limit)
