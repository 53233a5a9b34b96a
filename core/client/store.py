"""A store, as its users hold it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar
from uuid import UUID

from export_queue.core.callables import check_runs, checked, name_of, returned
from export_queue.core.client.catalogue import Catalogue
from export_queue.core.client.context import TransactionContext
from export_queue.core.client.dead_letters import DeadLetters
from export_queue.core.client.first_load import FirstLoad
from export_queue.core.drain import KeyStory, why
from export_queue.core.errors import (
    AlreadyCommitted,
    ExportQueueError,
    InvalidArgument,
    StoreError,
    TransactionError,
    TransactionTimeout,
)
from export_queue.core.maintenance import (
    MaintenanceReport,
    SinkSweep,
    maintain,
    read_metrics,
    render,
    sweep_sink,
)
from export_queue.core.observers import Observer, ObserverFailure, Observers, Processed, WaitingRows, waiting_rows
from export_queue.core.queue import (
    Backlog,
    Discarded,
    Mark,
    Queue,
    QueuedEntry,
    Range,
    alter_queue,
    backlog,
    bind_sink,
    configure_queue,
    declare_complete,
    find_queue,
    find_reader,
    list_queues,
    losses,
    mark_incomplete,
    marks,
    missing_load,
    note_first_load,
    subscribe,
    subscriptions,
    units_asked_for,
    units_to_watch,
    unsubscribe,
    user_at_host,
    waiting_ranges,
    waive_first_load,
)
from export_queue.core.retry import Retry
from export_queue.core.segments import Candidates, CompactionReport, compact, delete_aborted, peek
from export_queue.core.sinks import Sink, SinkSpec
from export_queue.core.store import (
    DEFAULT_SCHEMA,
    Clock,
    Database,
    Identity,
    Limits,
    Outcome,
    StoreSpec,
    adopt,
    back_up,
    create,
    identity_of,
    open_database,
    queries,
)
from export_queue.core.tables import TableOptions, configure_table
from export_queue.core.transactions import (
    BoundSession,
    IdempotencyState,
    OpenKind,
    OpenTransaction,
    Snapshot,
    Transaction,
    idempotency_state,
    outcome,
    take_snapshot,
)

log = logging.getLogger("export_queue.store")

Result = TypeVar("Result")

_CONFLICTS = Retry()
"""How a function is run again where nobody says otherwise."""


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
        self._catalogue = Catalogue(database)
        self.dead_letters = DeadLetters(database, self._reader, self.queue)
        """Entries that drains set aside: ``list``, ``count``, ``retry``, ``drop`` and ``audit``."""
        self._observers = Observers(database, self._context)

    @classmethod
    def open(
        cls,
        url: str | StoreSpec,
        *,
        password: str | None = None,
        schema: str | None = None,
        behind_pooler: bool = False,
        clock: Clock | None = None,
        client: str | None = None,
        limits: Limits | None = None,
        segments: str | None = None,
    ) -> Store:
        """Prepare the connections to a store; nothing is sent yet.

        :param url: ``sqlite:///path`` or ``postgresql+psycopg://user@host/database``; or a :class:`StoreSpec`, which
            has password, schema and pooler of its own.
        :param password: a password that is kept out of the URL.
        :param schema: the PostgreSQL schema that is the store; ``export_queue``.
        :param behind_pooler: whether the URL leads to a pooler in transaction mode, such as PgBouncer's; it cannot be
            detected. Clients behind a pooler and clients without one may share a store.
        :param clock: milliseconds since the epoch, for SQLite in tests; PostgreSQL uses the server's clock.
        :param client: name of this process for those that watch the store; by default host and process.
        :param limits: time-outs and sizes of this process's transactions.
        :param segments: where files with bulk entries are, for all that write and drain: ``s3://bucket/folder`` or the
            absolute path of a shared folder; for SQLite by default a folder beside the file.
        """
        if isinstance(url, StoreSpec):
            if password is not None or schema is not None or behind_pooler or segments is not None:
                raise InvalidArgument(
                    "password, schema, behind_pooler and segments belong into the StoreSpec, found one beside it"
                )
            return cls(url.open(clock=clock, client=client, limits=limits))
        database = open_database(
            url,
            password=password,
            schema=DEFAULT_SCHEMA if schema is None else schema,
            behind_pooler=behind_pooler,
            clock=clock,
            client=client,
            limits=limits,
            segments=segments,
        )
        return cls(database)

    def _context(self, opened: OpenTransaction) -> TransactionContext:
        return TransactionContext(self._catalogue, opened)

    def create(self, *, floor: int = 0, who: str | None = None) -> None:
        """Create the store, or complete it; idempotent.

        :param floor: all ids to come are greater, for a store that is rebuilt while sinks hold its predecessor's data.
            A floor that raises the ids leaves a mark (:meth:`marks`), since entries that waited there are lost.
        :param who: name for that mark; by default user and host of this process.
        """
        create(self.database, floor=floor, who=who or user_at_host())

    def adopt(self, *, who: str | None = None) -> int:
        """Accept the present location of a restored store, even in another cluster of PostgreSQL servers.

        Transactions that were in progress at the backup end. Nothing else may use the store meanwhile. The act leaves
        a mark (:meth:`marks`).

        :param who: name for the mark; by default user and host of this process.
        :returns: how many transactions ended.
        """
        return adopt(self.database, who=who or user_at_host())

    def backup(self, target: str | PathLike[str], *, on_progress: Callable[[int, int], None] | None = None) -> int:
        """Copy a SQLite store into a new file: exactly what is committed when the copy begins.

        Transactions continue meanwhile. The file gets its name once it is complete and on disk. Files with bulk entries
        are not in it: :meth:`bulk_files` names them.

        :param target: the new file; it must not exist.
        :param on_progress: called repeatedly with the bytes copied so far and the bytes in all.
        :returns: the bytes of the copy.
        :raises InvalidArgument: the store is on PostgreSQL; copy it with PostgreSQL's tools.
        :raises StoreError: the file exists, or cannot be written.
        """
        tell = checked(on_progress or (lambda done, total: None), "on_progress")
        return back_up(self.database, Path(target).absolute(), tell)

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
        return identity_of(self.database)

    @property
    def _checked(self) -> Database:
        """The database, once it is certain that it holds a store of this code's schema."""
        _ = self.identity
        return self.database

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

    @contextmanager
    def transaction(
        self,
        *,
        timeout: float | None = None,
        long: bool = False,
        idempotency_key: str | None = None,
        connection: object = None,
        read_only: bool = False,
        settled: bool = False,
    ) -> Iterator[TransactionContext]:
        """Run a block in a transaction: leaving it commits, an exception aborts.

        :param timeout: seconds from the first read until a commit is refused; 30, or 24 hours if long.
        :param long: stage writes in the store, for work that takes long or spans processes.
        :param idempotency_key: the unit of work; if it has committed before, the block is not entered (I14).
        :param connection: the caller's connection to the store's database, with a SQL transaction open: of SQLAlchemy
            (or a session of its ORM) or of the driver. Leaving the block checks and writes within that SQL
            transaction, which the caller commits: business rows and entries then commit together.
        :param read_only: nothing is written, so that nothing is registered either: the cheapest way to read.
        :param settled: read only, a snapshot below every id in progress, which no later commit can change.
        :raises AlreadyCommitted: on entry, or at the commit if another attempt came first; carries the stored result.
        :raises ConflictError: another transaction wrote a key of this one.
        :raises CommitOutcomeUnknown: the connection broke and the store cannot be asked.
        """
        _ = self.identity
        kind = _kind(long=long, bound=connection is not None, read=read_only or settled)
        if kind == "read" and idempotency_key is not None:
            raise InvalidArgument("an idempotency key is for work that writes, found one with read_only or settled")
        bound = None if connection is None else BoundSession(self.database, connection, store_id=self.identity.store_id)
        opened = OpenTransaction(
            self.database, kind=kind, settled=settled, timeout=timeout, idempotency_key=idempotency_key, bound=bound
        )
        try:
            yield self._context(opened)
            opened.commit()
        except BaseException as error:
            opened.abort(error)
            raise

    def begin(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Begin a long transaction that other processes continue and end.

        :param timeout: seconds until a commit is refused; 24 hours.
        :returns: a JSON value for :meth:`resume`, :meth:`commit` and :meth:`abort`.
        """
        return OpenTransaction(self._checked, kind="long", timeout=timeout).value.to_json()

    @contextmanager
    def resume(self, transaction: dict[str, Any]) -> Iterator[TransactionContext]:
        """Continue, for a block, a long transaction that another process began; leaving the block stages the writes.

        :param transaction: as :meth:`begin` or ``tx.to_json()`` gave it.
        :raises RegistrationLost: it has ended.
        :raises StoreUnavailable: the store did not answer when the writes were staged; the transaction is aborted.
        """
        opened = self._resumed(transaction)
        yield self._context(opened)
        opened.flush()

    def commit(self, transaction: dict[str, Any]) -> int:
        """Commit a long transaction; doing it again changes nothing.

        :returns: its id.
        :raises ConflictError: another transaction wrote a key of this one.
        :raises RegistrationLost: it was aborted, or expired after its time-out.
        """
        committed = self._resumed(transaction).commit()
        assert committed is not None
        return committed

    def abort(self, transaction: dict[str, Any]) -> None:
        """Abort a long transaction and remove its staged writes; doing it again changes nothing.

        :raises StoreUnavailable: the store cannot be reached; this process tries again when it starts a transaction.
        """
        opened = self._resumed(transaction)
        number = opened.id
        opened.abort()
        delete_aborted(self.database, number)

    def _resumed(self, transaction: dict[str, Any]) -> OpenTransaction:
        return OpenTransaction.resume(self._checked, Transaction.from_json(transaction))

    def run(
        self,
        function: Callable[[TransactionContext], Result],
        *,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        retry: Retry | None = None,
    ) -> Result:
        """Run a function in a transaction, again from its start if the commit meets a conflict.

        A function that itself takes longer than the time-out is not run again.

        :param function: called with the transaction; with an idempotency key it must return a JSON value.
        :param idempotency_key: the unit of work: it takes effect once, and later calls return the stored result (I14).
        :param retry: how often and after which pauses; ``Retry()``.
        :returns: what the function returned.
        :raises TransactionTimeout: the time-out has passed before the commit; the error has both durations.
        """
        check_runs(function, "function")
        _ = self.identity
        begun, runs = time.monotonic(), 0

        def attempt() -> Result:
            nonlocal runs
            runs += 1
            opened = OpenTransaction(self.database, timeout=timeout, idempotency_key=idempotency_key)
            try:
                result = returned(function(self._context(opened)), f"function {name_of(function)}")
                opened.commit(result)
            except BaseException as error:
                opened.abort(error)
                overrun = None if isinstance(error, TransactionTimeout) else opened.overrun(error)
                if overrun is None:
                    raise
                raise overrun from error
            return result

        def is_run_again(error: Exception) -> bool:
            if not _left_nothing(error):
                return False
            if isinstance(error, TransactionTimeout):
                log.warning("run %d of a function was too late and is repeated: %s", runs, error.message)
            return True

        try:
            return (retry or _CONFLICTS).call(attempt, worth_repeating=is_run_again)
        except AlreadyCommitted as error:
            if error.idempotency_key != idempotency_key:
                raise
            return error.result  # type: ignore[no-any-return]
        except ExportQueueError as error:
            if runs > 1:
                error.add_note(f"the function was run {runs} times in {time.monotonic() - begun:.1f} s")
            raise

    def outcome(self, request: UUID | str) -> Outcome:
        """Tell the outcome of a commit; a commit that has not taken effect is refused from now on.

        :param request: the transaction's ``request``.
        """
        return outcome(self.database, UUID(str(request)))

    def kept_invalid(self) -> list[queries.registrations.KeptInvalid]:
        """Read the ids that stay invalid since a participant could not undo its writes under them."""
        with self.database.read() as work:
            return queries.registrations.kept_invalid(work)

    def forget_invalid(self, transaction: int, *, who: str | None = None) -> bool:
        """Declare that nothing is left of such an id, so that clean-up forgets it.

        From then on ``Transaction.is_visible`` shows whatever a participant did leave under it. The act leaves a mark
        (:meth:`marks`).

        :param who: name for the mark; by default user and host of this process.
        :returns: False if no such id is kept.
        """
        with self.database.begin() as work:
            left_to = {kept.id: kept.left_to for kept in queries.registrations.kept_invalid(work)}.get(transaction)
            if not queries.registrations.forget_invalid(work, transaction):
                return False
            details = {"transaction": str(transaction), "left_to": left_to}
            queries.acts.record(work, queue_id="", act="forget", who=who or user_at_host(), selection=details)
            return True

    def idempotency(self, idempotency_key: str) -> IdempotencyState:
        """Tell where a unit of work stands: whether it has taken effect, and with which result."""
        return idempotency_state(self.database, idempotency_key)

    def close_idempotency_key(
        self, idempotency_key: str, *, generation: int | None = None, who: str | None = None, has_ended: bool = False
    ) -> bool:
        """Let the same unit of work take effect again. The act leaves a mark (:meth:`marks`).

        :param generation: close only this generation, so that a late caller cannot close a younger one.
        :param who: name for the mark; by default user and host of this process.
        :param has_ended: the caller runs the work and knows that nobody repeats it; no mark is left.
        :returns: False if there was none to close.
        """
        with self.database.begin() as work:
            if not queries.reports.close_idempotency_key(work, idempotency_key, generation):
                return False
            if not has_ended:
                details = {"idempotency_key": idempotency_key}
                queries.acts.record(work, queue_id="", act="close key", who=who or user_at_host(), selection=details)
            return True

    def configure_queue(
        self,
        queue_id: str,
        *,
        buckets: int = 1009,
        buckets_per_range: int | None = None,
        key: str = "str",
        value: str = "json",
        max_value_bytes: int = 1 << 20,
        exclusive: bool = False,
        coalesce: str | None = None,
        subscriptions: Sequence[str] | None = None,
    ) -> Queue:
        """Store a queue's options; the same options again change nothing, others are refused.

        See :func:`export_queue.core.queue.configure_queue` for the parameters.
        """
        return configure_queue(
            self._checked,
            queue_id,
            buckets=buckets,
            buckets_per_range=buckets_per_range,
            key=key,
            value=value,
            max_value_bytes=max_value_bytes,
            exclusive=exclusive,
            coalesce=coalesce,
            subscriptions=subscriptions,
        )

    def alter_queue(
        self,
        queue_id: str,
        *,
        max_value_bytes: int | None = None,
        exclusive: bool | None = None,
        coalesce: str | Literal[False] | None = None,
        buckets: int | None = None,
        buckets_per_range: int | None = None,
        guard: Literal["seq", "fence"] = "fence",
    ) -> Queue:
        """Alter options of a queue that is in use; options that are left out stay as they are.

        Other processes that use the queue learn of it within a minute. See
        :func:`export_queue.core.queue.alter_queue` for the parameters and the errors.
        """
        altered = alter_queue(
            self._checked,
            queue_id,
            max_value_bytes=max_value_bytes,
            exclusive=exclusive,
            coalesce=coalesce,
            buckets=buckets,
            buckets_per_range=buckets_per_range,
            guard=guard,
        )
        self._catalogue.forget_queue(queue_id)
        return altered

    def subscribe(self, queue_id: str, name: str) -> Queue:
        """Give a queue one more reader, which gets what is committed from now on; one that is there stays as it is.

        :param queue_id: the queue.
        :param name: the subscription's; its id is ``queue_id/name``, as in ``airports/search``.
        :returns: the subscription. It is empty, and its first load is missing: :meth:`first_load` makes it.
        :raises EntriesWait: it would be the first one, and something waits in the queue.
        :raises QueueBusy: transactions that add to the queue were in progress for ten seconds.
        """
        return subscribe(self._checked, queue_id, name)

    def unsubscribe(
        self, queue_id: str, name: str, *, discard: bool = False, who: str | None = None
    ) -> Discarded | None:
        """Take a reader from a queue for good; what it has in its sink stays there.

        :param queue_id: the queue.
        :param name: the subscription's.
        :param discard: whether its waiting entries and its dead letters are given up; if there are any, the act stays
            in the store (:meth:`DeadLetters.audit` of the queue) and in the log.
        :param who: name for the audit; by default user and host of this process.
        :returns: what was given up; None if nothing waited.
        :raises EntriesWait: some wait; the error counts them.
        :raises InvalidArgument: it is the queue's last one.
        :raises QueueBusy: transactions that add to the queue were in progress for ten seconds.
        """
        who = who or user_at_host()
        lost = unsubscribe(self._checked, queue_id, name, discard=discard, who=who)
        if lost is not None:
            given_up = (who, queue_id, name, lost.entries, lost.dead_letters)
            log.warning("%s gave up subscription %s/%s with %d entries and %d dead letters", *given_up)
        return lost

    def subscriptions(self, queue_id: str) -> list[Queue]:
        """Read the subscriptions of a queue, by name."""
        with self._checked.read() as work:
            return subscriptions(work, queue_id)

    def waive_first_load(self, subscription: str, *, who: str | None = None) -> None:
        """Declare that a subscription needs nothing of what was committed before it; the store records who did.

        :param subscription: its id, as in ``airports/reports``.
        :param who: name for the record; by default user and host of this process.
        """
        waive_first_load(self._checked, subscription, who=who or user_at_host())

    @contextmanager
    def first_load(
        self, subscription: str, *, timeout: float | None = None, settle_timeout: float = 60.0
    ) -> Iterator[FirstLoad]:
        """Load into a subscription what was committed before it existed, in its own long transaction.

        It reads in a snapshot that holds every transaction older than itself, and adds to this subscription alone: its
        entries never overwrite newer ones. With its commit the first load is made. It replaces an older first load of
        the subscription that is in progress: the commit of that one is refused.

        :param subscription: its id, as in ``airports/reports``.
        :param timeout: seconds until the commit is refused; 24 hours.
        :param settle_timeout: seconds for which older transactions are waited for.
        :raises InvalidArgument: the first load is not missing, or was made meanwhile; a waived load may still be made.
        :raises RegistrationLost: a newer first load of the subscription has replaced this one.
        :raises TransactionsInProgress: older transactions did not end in time; the error names them.
        """
        with self._checked.read() as work:
            reader = missing_load(work, subscription)
        opened = OpenTransaction(self.database, kind="long", timeout=timeout, load=reader.number)
        try:
            opened.read_settled(Retry(attempts=None, seconds=settle_timeout, first_pause=0.02))
            with self.database.read() as work:
                missing_load(work, subscription)  # an older load may have committed meanwhile
            yield FirstLoad(self._context(opened), opened, reader)
            number = opened.id
            opened.commit()
        except BaseException as error:
            opened.abort(error)
            raise
        with self.database.begin() as work:
            note_first_load(work, reader, load=number)

    def configure_table(
        self,
        name: str,
        *,
        conflict: str = "row",
        ttl: float | None = None,
        row: str = "bytes",
        value: str = "bytes",
    ) -> TableOptions:
        """Store a table's options; the same options again change nothing, others are refused.

        See :func:`export_queue.core.tables.configure_table` for the parameters.
        """
        return configure_table(self._checked, name, conflict=conflict, ttl=ttl, row=row, value=value)

    def observe(self, table: str, column: str | bytes, function: Observer, kind: str = "strong") -> None:
        """Have :meth:`process_notifications` call a function for every row whose cell in a column was written.

        :param function: called with a transaction of its own, the row and the column, as ``table.scan`` gives them:
            both as bytes unless the table has a type of rows.
        :param kind: ``strong``: every write to the column notifies, and of the transactions that work a
            notification off exactly one commits; ``weak``: only ``table.notify`` notifies, and the function runs at
            least once.
        :raises OptionsDiffer: the column is observed in the other kind.
        """
        _ = self.identity
        self._observers.register(self._catalogue.table(table), column, function, kind)
        self._catalogue.observed.refresh()

    def watch(self, table: str, column: str | bytes, kind: str = "strong") -> None:
        """Declare that a column is observed, without a function: writes to it notify from now on.

        Notifications wait for a process with an observer, such as an Airflow task that they start. Declaring the
        column again changes nothing.

        :param kind: ``strong`` or ``weak``, as the observer's.
        :raises OptionsDiffer: the column is observed in the other kind.
        :raises InvalidArgument: the table can have no such column.
        """
        _ = self.identity
        self._observers.declare(self._catalogue.table(table), column, kind)
        self._catalogue.observed.refresh()

    def waiting_rows(self, table: str, column: str | bytes, *, limit: int = 100) -> WaitingRows:
        """Return the rows whose notifications of a column are due, longest waiting first; nothing is consumed.

        A row whose observer failed is among them when its observer is due again. Rows are of the table's type.

        :param limit: most rows to list, 1 to 1000.
        :raises ColumnNotObserved: nobody has declared the column.
        """
        snapshot = take_snapshot(self._checked)
        with self.database.read() as work:
            return waiting_rows(work, table, column, snapshot, limit=limit)

    def process_notifications(
        self, *, limit: int | None = None, timeout: float | None = None, stop: Callable[[], bool] | None = None
    ) -> Processed:
        """Call the observers of this process for what is due now, oldest first, each in a transaction of its own.

        Notifications that arrive during the call wait for the next one. An observer that raises an error is called
        again after 1 s, 2 s, 4 s … 5 min.

        :param limit: most observers to call.
        :param timeout: seconds that one observer's transaction may take; 30.
        :param stop: called before each notification; True ends the call.
        """
        return self._observers.process(limit=limit, timeout=timeout, stop=stop)

    def observer_failures(self, *, limit: int = 100) -> list[ObserverFailure]:
        """Read the notifications whose observer failed, the next to be repeated first."""
        return self._observers.failures(limit=limit)

    def queue(self, queue_id: str) -> Queue:
        """Read a queue's options as they are stored now."""
        with self._checked.read() as work:
            return find_queue(work, queue_id)

    def _snapshot(self) -> Snapshot:
        """Take a snapshot before a queue is read: what it sees lies in layouts that the queue has by then."""
        return take_snapshot(self._checked)

    def _reader(self, queue_id: str) -> Queue:
        """Read the options of a queue, or of a subscription, in which entries wait."""
        with self._checked.read() as work:
            return find_reader(work, queue_id)

    def queues(self) -> list[Queue]:
        """Read all queues and subscriptions, by name."""
        with self._checked.read() as work:
            return list_queues(work)

    def rebind(self, queue_id: str, sink: str, *, complete: bool = False, who: str | None = None) -> list[Mark]:
        """Let a queue drain into another sink, or with other options, from now on.

        Exported records stay where they are. The next drain stores its own options. The new sink lacks what was
        drained before, so drains report it as incomplete until a first load has delivered everything again, or
        somebody declares it complete.

        :param sink: name of the sink; the one that the queue has already, to change its options or the exporter.
        :param complete: promise that the new sink lacks nothing, as where the same sink got another name. The promise
            is recorded.
        :param who: name for the record; by default user and host of this process.
        :returns: what the sink lacks now.
        """
        who = who or user_at_host()
        with self.database.begin() as work:
            queue = find_reader(work, queue_id)
            bind_sink(work, queue, sink, rebind=True)
            if queue.sink is not None and queries.queues.shown_fence(work, queue.id, queue.sink):
                # records of an earlier time, when the queue drained into this sink
                is_older = sink != queue.sink and bool(queries.queues.shown_fence(work, queue.id, sink))
                details = {"before": queue.sink, "sink": sink, "older": is_older}
                mark_incomplete(work, queue, "rebind", who=who, details=details)
        if complete:
            declare_complete(self.database, queue_id, who=who)
        with self.database.read() as work:
            found = losses(work, queue_id)
        for mark in found:
            log.warning("%s: the sink is incomplete: %s", queue_id, mark.line())
        return found

    def declare_complete(self, queue_id: str | None = None, *, who: str | None = None) -> int:
        """Record the promise that a reader's sink lacks nothing; drains stop reporting it as incomplete.

        :param queue_id: the queue or subscription; None for the marks of the store as a whole.
        :param who: name for the record; by default user and host of this process.
        :returns: how many marks of losses were open.
        """
        who = who or user_at_host()
        closed = declare_complete(self.database, queue_id, who=who)
        what = "the store" if queue_id is None else f"the sink of {queue_id}"
        log.warning("%s declared %s complete, which had %d open marks", who, what, closed)
        return closed

    def marks(self, queue_id: str | None = None) -> list[Mark]:
        """Read what a reader's sink lacks because somebody accepted a loss, and what was promised; oldest first.

        :param queue_id: the queue or subscription; None for the acts on the store as a whole: an adoption, a floor, an
            invalid id that was forgotten, an idempotency key that was closed.
        """
        with self._checked.read() as work:
            return marks(work, "" if queue_id is None else find_queue(work, queue_id).id)

    def backlog(self, queue_id: str, ranges: Sequence[Range | Sequence[int]] | None = None) -> list[Backlog]:
        """Count the waiting entries, unit by unit.

        :raises HasSubscriptions: the queue has subscriptions; count theirs instead.
        """
        snapshot = self._snapshot()
        queue = self._reader(queue_id)
        with self.database.read() as work:
            units, _ = units_asked_for(work, queue, ranges)
            return backlog(work, queue, snapshot, units)

    def waiting_ranges(self, queue_id: str, ranges: Sequence[Range | Sequence[int]] | None = None) -> list[Range]:
        """Return the units with waiting entries; cheaper than counting them.

        :raises HasSubscriptions: the queue has subscriptions; ask for theirs instead.
        """
        snapshot = self._snapshot()
        queue = self._reader(queue_id)
        with self.database.read() as work:
            return waiting_ranges(work, queue, snapshot, units_to_watch(work, queue, ranges))

    def peek(self, queue_id: str, *, key: Any = None, limit: int = 10, values: bool = False) -> list[QueuedEntry]:
        """Read waiting entries in the order in which a drain takes them; nothing is removed.

        :param key: only entries of this key.
        :param limit: most entries, 1 to 1000.
        :param values: whether their values are read, too.
        :raises HasSubscriptions: the queue has subscriptions, which hold its entries; the error names them.
        """
        snapshot = self._snapshot()
        queue = self._reader(queue_id)
        encoded = None if key is None else queue.encode_key(key)
        with self.database.read() as work:
            return peek(work, queue, snapshot, key=encoded, limit=limit, values=values)

    def why(self, queue_id: str, key: Any) -> KeyStory:
        """Return what the store knows of one key: its last commit, waiting entries, dead letters and drains.

        :param key: the key, by the queue's key codec.
        :raises HasSubscriptions: the queue has subscriptions, which hold its entries; the error names them.
        """
        queue = self._reader(queue_id)
        return why(self.database, queue, queue.encode_key(key))

    def bulk_files(self) -> list[str]:
        """List the files with committed bulk entries that are not drained yet; a backup needs them, too."""
        with self.database.read() as work:
            return queries.segments.waiting_files(work)

    def compact(
        self,
        queue_id: str,
        *,
        wanted: Candidates | None = None,
        older_layouts: bool = False,
        dry_run: bool = False,
    ) -> CompactionReport:
        """Merge small segments and settled rows of a queue or subscription; safe at any time, and to interrupt.

        See :func:`export_queue.core.segments.compact` for the errors.

        :param wanted: which units are worth it; for older layouts only its ``most_bytes`` counts.
        :param older_layouts: move all that waits in older layouts of the queue into the current one instead.
        :param dry_run: only report what would be done.
        """
        return compact(self._checked, queue_id, wanted=wanted, older_layouts=older_layouts, dry_run=dry_run)

    def maintain(self, *, limit: int = 100_000) -> MaintenanceReport:
        """Delete data that can no longer be read or asked for; safe at any time, and to interrupt.

        See :func:`export_queue.core.maintenance.maintain` for how long data is kept.

        :param limit: rows of each subject to look at; the report tells whether more is left.
        """
        return maintain(self._checked, limit=limit)

    def sweep_sink(self, sink: SinkSpec | Sink, *, sink_name: str | None = None) -> SinkSweep:
        """Let a sink forget tombstones that no delivery can affect any more; safe during drains.

        See :func:`export_queue.core.maintenance.sweep_sink` for the parameters and the errors.
        """
        return sweep_sink(self.database, self.id, sink, sink_name=sink_name)

    def metrics(self) -> str:
        """Return the figures of the store and of this process as OpenMetrics text."""
        return render(read_metrics(self._checked, counters=self.database.counters))

    def reports(
        self, *, drain_id: str | None = None, queue_id: str | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Read reports of drains, newest first."""
        with self.database.read() as work:
            return queries.reports.find_reports(work, drain_id=drain_id, queue_id=queue_id, limit=limit)


def _left_nothing(error: Exception) -> bool:
    # An error of a sink or a lock is the function's own: only a transaction's says that nothing has taken effect.
    return isinstance(error, TransactionError | StoreError) and error.transient


def _kind(*, long: bool, bound: bool, read: bool) -> OpenKind:
    asked: list[OpenKind] = []
    asked += ["long"] if long else []
    asked += ["bound"] if bound else []
    asked += ["read"] if read else []
    if len(asked) > 1:
        raise InvalidArgument(
            "a transaction is long, bound to a connection, or read-only (as is a settled one), "
            f"found {' and '.join(asked)} asked for at once"
        )
    return asked[0] if asked else "short"
