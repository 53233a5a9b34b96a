"""A store, as its users hold it."""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, overload
from uuid import UUID

from export_queue.core import queue as stored
from export_queue.core import tables
from export_queue.core.callables import check_runs, checked, name_of, returned
from export_queue.core.client.catalogue import Catalogue
from export_queue.core.client.context import FirstLoad, TransactionContext
from export_queue.core.client.dead_letters import DeadLetters
from export_queue.core.client.rebuilds import Rebuilds
from export_queue.core.drain import (
    ExportToken,
    FinishedDrain,
    KeyStory,
    finished_drains,
    is_exported,
    token_of_long,
    wait_exported,
    why,
)
from export_queue.core.errors import (
    AlreadyCommitted,
    ExportQueueError,
    InvalidArgument,
    StoreError,
    TransactionError,
    TransactionTimeout,
)
from export_queue.core.maintenance import MaintenanceReport, SinkSweep, maintain, read_metrics, render, sweep_sink
from export_queue.core.observers import Observer, ObserverFailure, Observers, Processed, WaitingRows, waiting_rows
from export_queue.core.queue import Backlog, Discarded, Mark, Queue, QueuedEntry, Range, user_at_host
from export_queue.core.retry import Retry
from export_queue.core.segments import Candidates, CompactionReport, compact, delete_aborted, peek
from export_queue.core.sinks import FencedSink, Sink, SinkSpec
from export_queue.core.sources import STATE, AnySource, FirstLoadReport, begun_first_load, find_source, load_from
from export_queue.core.state import MirrorReport, MirrorWriter, State, begun_mirror
from export_queue.core.store import (
    DEFAULT_SCHEMA,
    Clock,
    Database,
    Identity,
    Limits,
    Outcome,
    StoreSpec,
    added_to_subscription,
    adopt,
    back_up,
    create,
    identity_of,
    open_database,
    queries,
)
from export_queue.core.transactions import (
    BoundSession,
    IdempotencyState,
    OpenKind,
    OpenTransaction,
    Snapshot,
    Transaction,
    abort_by_id,
    idempotency_state,
    outcome,
    take_snapshot,
)
from export_queue.core.verify import FinishedComparison, ReplayReport, finished_comparisons, replay

log = logging.getLogger("export_queue.store")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_CONFLICTS = Retry()


def _method(
    function: Callable[Concatenate[Database, Arguments], Result],
) -> Callable[Concatenate[Store, Arguments], Result]:
    """Make a function that changes the options of queues or tables a method of a store, with the same documentation."""

    @functools.wraps(function)
    def method(self: Store, /, *plain: Arguments.args, **named: Arguments.kwargs) -> Result:
        try:
            return function(self._checked, *plain, **named)
        finally:
            self._catalogue.forget_queues()

    own = inspect.signature(function)
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = own.replace(parameters=[me, *[*own.parameters.values()][1:]])  # type: ignore[attr-defined]
    return method


class Store:
    """A store of transactions and export queues.

    ::

        store = Store.open("sqlite:///exports.db")
        store.create()
        store.configure_queue("orders")
        with store.transaction() as tx:
            tx.table("totals").set("anna", "n", b"3")
            tx.queue("orders").add("anna", {"total": 3})

    In all methods, ``who`` is the name under which the store records an act. By default it is the user and host of this
    process.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._catalogue = Catalogue(database)
        self.dead_letters = DeadLetters(database, self._reader, self.queue)
        """Entries that drains set aside: ``list``, ``count``, ``retry``, ``drop`` and ``audit``."""
        self.rebuilds = Rebuilds(self)
        """Replacements of targets: ``start``, ``status``, ``list``, ``switch``, ``back``, ``finish`` and ``cancel``."""
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
        """Open a store. No connection is made until the store is used.

        :param url: ``sqlite:///path`` or ``postgresql+psycopg://user@host/database``. A :class:`StoreSpec` is also
            accepted; it contains the password, schema, pooler and segments.
        :param password: the password, if it must not be part of the URL.
        :param schema: PostgreSQL schema of the store; ``export_queue`` by default.
        :param behind_pooler: set this if the URL leads to a pooler in transaction mode, such as PgBouncer. It cannot be
            detected. Clients with and without a pooler can share a store.
        :param clock: for tests on SQLite: returns milliseconds since the epoch. PostgreSQL uses the server's clock.
        :param client: name of this process, shown by monitoring; by default host and process id.
        :param limits: time-outs and maximum sizes of this process's transactions.
        :param segments: location of the files of bulk entries: ``s3://bucket/folder``, or the absolute path of a shared
            folder. It must be the same in all processes. For SQLite the default is a folder next to the file.
        """
        if isinstance(url, StoreSpec):
            if password is not None or schema is not None or behind_pooler or segments is not None:
                raise InvalidArgument(
                    "password, schema, behind_pooler and segments belong in the StoreSpec, found one next to it"
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
        """Create the store. If it exists, create what is missing.

        :param floor: all future ids are greater than this. Use it to rebuild a store while sinks still hold the data of
            its predecessor. If the floor raises the ids, a mark records it (:meth:`marks`), because entries that were
            pending in the old store are lost.
        """
        create(self.database, floor=floor, who=who or user_at_host())

    def adopt(self, *, who: str | None = None) -> int:
        """Accept the new location of a restored store, even in another cluster of PostgreSQL servers.

        Transactions that were in progress when the backup was taken are ended. Nothing else may use the store during
        the call. A mark records the act (:meth:`marks`).

        :returns: the number of transactions that were ended.
        """
        return adopt(self.database, who=who or user_at_host())

    def backup(self, target: str | PathLike[str], *, on_progress: Callable[[int, int], None] | None = None) -> int:
        """Copy a SQLite store into a new file: exactly what is committed when the copy starts.

        Other transactions can run during the copy. The file gets its name when it is complete and on disk. Files of
        bulk entries are not included: :meth:`bulk_files` lists them.

        :param target: path of the new file, which must not exist.
        :param on_progress: called repeatedly with the number of bytes copied and the total number of bytes.
        :returns: the size of the copy in bytes.
        :raises InvalidArgument: the store is on PostgreSQL; use PostgreSQL's tools.
        :raises StoreError: the file exists or cannot be written.
        """
        report = checked(on_progress or (lambda done, total: None), "on_progress")
        return back_up(self.database, Path(target).absolute(), report)

    @property
    def id(self) -> str:
        """The identity of the store, which was drawn when it was created."""
        return self.identity.store_id

    @property
    def identity(self) -> Identity:
        """The store's identity and schema version.

        :raises StoreNotCreated: the database holds no store.
        :raises SchemaVersionError: this version of the library does not support the schema.
        """
        return identity_of(self.database)

    @property
    def _checked(self) -> Database:
        """The database, after a check that it holds a store with a supported schema."""
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
        queues: Iterable[str] | None = None,
    ) -> Iterator[TransactionContext]:
        """Run a block in a transaction, which commits when the block ends and aborts if it raises an error.

        :param timeout: seconds from the first read until a commit is refused; 30 by default, 24 hours if long.
        :param long: stage writes in the store, for work that takes long or spans processes.
        :param idempotency_key: identifies the unit of work. If it has committed before, the block does not run (I14).
        :param connection: your own connection to the store's database, with a SQL transaction open: SQLAlchemy's, a
            session of its ORM, or the driver's. The end of the block checks and writes in that SQL transaction, which
            you commit: your rows and the entries are committed together.
        :param read_only: write and register nothing, which is the cheapest way to read.
        :param settled: read-only, in a snapshot below every id in progress, which no later commit can change.
        :param queues: for a long transaction, the only queues that it may add to. Mirrors, states and drains of other
            queues then need not wait for its end.
        :raises AlreadyCommitted: the idempotency key has committed, before the block or during it. The error contains
            the stored result.
        :raises ConflictError: another transaction has written a key of this one.
        :raises CommitOutcomeUnknown: the connection broke during the commit and the store cannot be asked.
        """
        _ = self.identity
        asked: dict[OpenKind, bool] = {"long": long, "bound": connection is not None, "read": read_only or settled}
        kinds: list[OpenKind] = [kind for kind, is_asked in asked.items() if is_asked] or ["short"]
        if len(kinds) > 1:
            raise InvalidArgument(
                "a transaction is long, bound to a connection, or read-only (as is a settled one), "
                f"found {' and '.join(kinds)} asked for at once"
            )
        if kinds == ["read"] and idempotency_key is not None:
            raise InvalidArgument("an idempotency key is for work that writes, found one with read_only or settled")
        if queues is not None and not long:
            raise InvalidArgument("queues are named for a long transaction, found one that is not", hint="long=True")
        bound = None if connection is None else BoundSession(self.database, connection, store_id=self.identity.store_id)
        opened = OpenTransaction(
            self.database,
            kind=kinds[0],
            settled=settled,
            timeout=timeout,
            idempotency_key=idempotency_key,
            bound=bound,
            queues=self._known(queues),
        )
        with opened.abort_on_error():
            yield self._context(opened)
            opened.commit()

    def begin(self, *, timeout: float | None = None, queues: Iterable[str] | None = None) -> dict[str, Any]:
        """Begin a long transaction that other processes continue and end.

        :param timeout: seconds until a commit is refused; 24 hours by default.
        :param queues: the only queues that it may add to. Mirrors, states and drains of other queues then need not wait
            for its end, which may be hours away.
        :returns: a JSON object for :meth:`resume`, :meth:`commit` and :meth:`abort`.
        :raises UnknownQueue: the store has no such queue.
        """
        opened = OpenTransaction(self._checked, kind="long", timeout=timeout, queues=self._known(queues))
        return opened.value.to_json()

    def _known(self, queues: Iterable[str] | None) -> list[str] | None:
        """Check names of queues to which a transaction may add."""
        if queues is None:
            return None
        if isinstance(queues, str):
            raise InvalidArgument(f"queues: expected a list of queues, found the text {queues!r}")
        names = list(queues)
        with self._checked.read() as work:
            for name in names:
                if stored.find_queue(work, name).parent is not None:
                    raise added_to_subscription(name)
        return names

    @contextmanager
    def resume(self, transaction: dict[str, Any]) -> Iterator[TransactionContext]:
        """Run a block in a long transaction that has begun already. The end of the block stages its writes.

        :param transaction: the result of :meth:`begin` or ``tx.to_json()``.
        :raises RegistrationLost: the transaction has ended.
        :raises StoreUnavailable: the store did not answer when the writes were staged; the transaction is aborted.
        """
        opened = self._resumed(transaction)
        yield self._context(opened)
        opened.flush()

    def commit(self, transaction: dict[str, Any], *, idempotency_key: str | None = None) -> int:
        """Commit a long transaction. Committing it again changes nothing.

        :param transaction: the result of :meth:`begin` or ``tx.to_json()``.
        :param idempotency_key: identifies the unit of work, with the transaction's id, as text, as its result (I14).
        :returns: the transaction's id.
        :raises ConflictError: another transaction has written a key of this one.
        :raises RegistrationLost: the transaction was aborted, or its time-out has passed.
        :raises AlreadyCommitted: another transaction has committed under the idempotency key.
        """
        value = Transaction.from_json(transaction)
        generation = 1 if idempotency_key is None else self.idempotency(idempotency_key).generation
        opened = OpenTransaction.resume(self._checked, value, idempotency_key=idempotency_key, generation=generation)
        committed = opened.commit(None if idempotency_key is None else str(value.id))
        assert committed is not None
        return committed

    def abort(self, transaction: dict[str, Any] | int) -> None:
        """Abort a long transaction and delete its staged writes. Aborting it again changes nothing.

        :param transaction: the result of :meth:`begin` or ``tx.to_json()``; or the id of a transaction whose program is
            gone, from :meth:`transactions_in_progress`.
        :raises InvalidArgument: the id is that of a transaction in progress that is not long.
        :raises StoreUnavailable: the store cannot be reached. If the transaction was given by its value, this process
            tries again when it starts a transaction.
        """
        if isinstance(transaction, int):
            abort_by_id(self._checked, transaction)
            delete_aborted(self.database, transaction)
            return
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
        """Run a function in a transaction. If the commit meets a conflict, run it again from its start.

        A function that takes longer than the time-out by itself is not run again.

        :param function: called with the transaction. With an idempotency key it must return a JSON value.
        :param idempotency_key: identifies the unit of work, which takes effect once. Later calls return the stored
            result (I14).
        :param timeout: seconds from the first read of a run until its commit is refused; 30 by default.
        :param retry: how often to run the function, and how long to wait between runs; ``Retry()`` by default.
        :returns: the function's result.
        :raises TransactionTimeout: the time-out passed before the commit. The error contains both durations.
        """
        check_runs(function, "function")
        _ = self.identity
        begun, runs = time.monotonic(), 0

        def attempt() -> Result:
            nonlocal runs
            runs += 1
            opened = OpenTransaction(self.database, timeout=timeout, idempotency_key=idempotency_key)
            try:
                with opened.abort_on_error():
                    result = returned(function(self._context(opened)), f"function {name_of(function)}")
                    opened.commit(result)
            except BaseException as error:
                overrun = None if isinstance(error, TransactionTimeout) else opened.overrun(error)
                if overrun is None:
                    raise
                raise overrun from error
            return result

        def is_run_again(error: Exception) -> bool:
            # An error of a sink or a lock comes from the function. Only these say that nothing has taken effect:
            if not (isinstance(error, TransactionError | StoreError) and error.transient):
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
        """Return the outcome of a commit. If it has not taken effect by now, it never will.

        :param request: ``tx.request`` of the transaction.
        """
        return outcome(self.database, UUID(str(request)))

    def transactions_in_progress(self) -> list[queries.monitoring.TransactionInProgress]:
        """Return the transactions that have neither committed nor ended, oldest first.

        Mirrors, settled readers and clean-up wait for them. A short transaction is listed once it has an id, which most
        draw in their commit; SQLite lists only those that were asked for it.
        """
        with self._checked.read() as work:
            return queries.monitoring.transactions_in_progress(work)

    def kept_invalid(self) -> list[queries.registrations.KeptInvalid]:
        """Return the ids that stay invalid because a participant could not undo its writes."""
        with self.database.read() as work:
            return queries.registrations.kept_invalid(work)

    def forget_invalid(self, transaction: int, *, who: str | None = None) -> bool:
        """Declare that no writes are left under an id of :meth:`kept_invalid`, so that clean-up can forget it.

        If a participant did leave writes, ``Transaction.is_visible`` shows them from then on. A mark records the act
        (:meth:`marks`).

        :returns: whether the id was kept.
        """
        with self.database.begin() as work:
            left_to = {kept.id: kept.left_to for kept in queries.registrations.kept_invalid(work)}.get(transaction)
            if not queries.registrations.forget_invalid(work, transaction):
                return False
            details = {"transaction": str(transaction), "left_to": left_to}
            queries.acts.record(work, queue_id="", act="forget", who=who or user_at_host(), selection=details)
            return True

    def token(self, transaction: dict[str, Any] | None = None, *, idempotency_key: str | None = None) -> str:
        """Return a token for :meth:`wait_exported` that stands for everything that is committed now.

        :param transaction: instead of everything, this long transaction, before or after its commit: the result of
            :meth:`begin` or ``tx.to_json()``.
        :param idempotency_key: instead, the transaction that has committed under this key, also if a repetition got
            ``AlreadyCommitted`` or the stored result.
        :raises InvalidArgument: nothing has committed under the key, or the key was closed; or both were passed.
        """
        if idempotency_key is not None:
            if transaction is not None:
                raise InvalidArgument("token: expected a transaction or an idempotency key, found both")
            return self._token_of_work(idempotency_key)
        if transaction is None:
            return ExportToken.of_cut(self.id, take_snapshot(self.database)).text
        return token_of_long(self.id, Transaction.from_json(transaction))

    def _token_of_work(self, idempotency_key: str) -> str:
        seq = self.idempotency(idempotency_key).id
        if seq is None:
            raise InvalidArgument(
                f"token: expected an idempotency key that has committed, found {idempotency_key!r}, which has not",
                hint="run the work under this key; keys that were closed, or are older than 30 days, are unknown, too",
            )
        return ExportToken(store_id=self.id, seq=seq, added=None).text

    def is_exported(self, token: str, reader: str) -> bool:
        """Return whether the sink of a reader has acknowledged everything that a transaction added to its queue.

        It reads the pending rows of a few buckets if the transaction added at most 32 keys; otherwise, and for a long
        transaction, the primary keys of all pending rows of the reader.

        :param token: ``tx.token``, or the result of :meth:`token`.
        :param reader: a subscription, such as ``airports/search``, or a queue without subscriptions.
        :raises NotExported: a part will not arrive: a dead letter, discarded entries, or a sink that lost data.
        :raises TransactionEnded: the transaction was aborted or rolled back.
        :raises InvalidArgument: the text is no token, or one of another store.
        :raises HasSubscriptions: the queue has subscriptions; the error names them.
        """
        return is_exported(self.database, ExportToken.parse(token, store_id=self.id), reader).is_exported

    def wait_exported(
        self,
        token: str,
        reader: str,
        *,
        timeout: float = 30.0,
        searchable: bool = False,
        sink: SinkSpec | Sink | FencedSink | None = None,
    ) -> None:
        """Wait until the sink of a reader has acknowledged everything that a transaction added to its queue.

        It waits for drains and starts none. Readers of the sink see the transaction afterwards, or something newer.

        :param token: ``tx.token``, or the result of :meth:`token`.
        :param reader: a subscription, such as ``airports/search``, or a queue without subscriptions.
        :param timeout: maximum number of seconds to wait.
        :param searchable: then refresh the indices, so that searches in Elasticsearch see it, too.
        :param sink: with ``searchable``: the sink of the reader, as a description or open. An open one stays open.
        :raises ExportTimedOut: the time is over; the error says what is pending.
        :raises NotExported: a part will not arrive: a dead letter, discarded entries, or a sink that lost data.
        :raises TransactionEnded: the transaction was aborted or rolled back.
        :raises InvalidArgument: the text is no token, or one of another store; or ``sink`` is missing.
        :raises SinkConfigurationError: the sink has no searches to refresh.
        :raises HasSubscriptions: the queue has subscriptions; the error names them.
        """
        wait_exported(self, token, reader, timeout=timeout, searchable=searchable, sink=sink)

    def idempotency(self, idempotency_key: str) -> IdempotencyState:
        """Return whether a unit of work has taken effect, and its result."""
        return idempotency_state(self.database, idempotency_key)

    def close_idempotency_key(
        self, idempotency_key: str, *, generation: int | None = None, who: str | None = None, has_ended: bool = False
    ) -> bool:
        """Allow the same unit of work to take effect again. A mark records the act (:meth:`marks`).

        :param generation: close only this generation, so that a late caller cannot close a newer one.
        :param has_ended: the caller knows that nobody will repeat the work; no mark is recorded.
        :returns: whether the key was open.
        """
        with self.database.begin() as work:
            if not queries.reports.close_idempotency_key(work, idempotency_key, generation):
                return False
            if not has_ended:
                details = {"idempotency_key": idempotency_key}
                queries.acts.record(work, queue_id="", act="close key", who=who or user_at_host(), selection=details)
            return True

    configure_queue = _method(stored.configure_queue)
    alter_queue = _method(stored.alter_queue)
    configure_table = _method(tables.configure_table)

    def subscribe(self, queue_id: str, name: str) -> Queue:
        """Add a subscription. It receives entries committed from now on. An existing subscription is left unchanged.

        :param queue_id: the queue.
        :param name: name of the subscription; its id is ``queue_id/name``, such as ``airports/search``.
        :returns: the subscription. It is empty until its :meth:`first_load` has been made.
        :raises EntriesWait: it would be the first subscription, and the queue has pending entries.
        :raises QueueBusy: transactions that add to the queue were in progress for ten seconds.
        """
        return stored.subscribe(self._checked, queue_id, name)

    def unsubscribe(
        self, queue_id: str, name: str, *, discard: bool = False, who: str | None = None
    ) -> Discarded | None:
        """Remove a subscription permanently. Its records stay in its sink.

        :param queue_id: the queue.
        :param name: name of the subscription.
        :param discard: discard its pending entries and dead letters. If there are any, the store records the act
            (:meth:`DeadLetters.audit` of the queue) and the log reports it.
        :returns: what was discarded; None if there was nothing.
        :raises EntriesWait: entries or dead letters are pending; the error counts them.
        :raises InvalidArgument: it is the only subscription of the queue, or a rebuild needs it.
        :raises QueueBusy: transactions that add to the queue were in progress for ten seconds.
        """
        who = who or user_at_host()
        lost = stored.unsubscribe(self._checked, queue_id, name, discard=discard, who=who)
        if lost is not None:
            discarded = (who, queue_id, name, lost.entries, lost.dead_letters)
            log.warning("%s discarded subscription %s/%s with %d entries and %d dead letters", *discarded)
        return lost

    def subscriptions(self, queue_id: str) -> list[Queue]:
        """Return the subscriptions of a queue, ordered by name."""
        with self._checked.read() as work:
            return stored.subscriptions(work, queue_id)

    def waive_first_load(self, subscription: str, *, who: str | None = None) -> None:
        """Declare that a subscription needs no data from before it existed. The store records the act.

        :param subscription: id of the subscription, such as ``airports/reports``.
        """
        stored.waive_first_load(self._checked, subscription, who=who or user_at_host())

    @overload
    def first_load(
        self, subscription: str, *, timeout: float | None = None, settle_timeout: float = 60.0
    ) -> AbstractContextManager[FirstLoad]: ...

    @overload
    def first_load(
        self,
        subscription: str,
        *,
        source: AnySource,
        on_progress: Callable[[int], object] | None = None,
        timeout: float | None = None,
        settle_timeout: float = 60.0,
    ) -> FirstLoadReport: ...

    def first_load(
        self,
        subscription: str,
        *,
        source: AnySource | None = None,
        on_progress: Callable[[int], object] | None = None,
        timeout: float | None = None,
        settle_timeout: float = 60.0,
    ) -> AbstractContextManager[FirstLoad] | FirstLoadReport:
        """Load data from before a subscription existed, in its own long transaction: from a source, or in a block.

        ``store.first_load("airports/reports", source="state")`` adds the whole content of a source and returns a
        report. Without a source, ``with store.first_load("airports/reports") as load:`` runs a block that adds entries.

        Both read a snapshot that contains every older transaction, and add to this subscription only. The entries never
        overwrite newer ones. The commit completes the first load. If an older first load of the same subscription is in
        progress, this one replaces it: the commit of the older one is refused. So a load that was killed is repeated.

        :param subscription: id of the subscription, such as ``airports/reports``.
        :param source: where the content comes from: ``"state"``, the state of the queue; ``"table:NAME"``, a table of
            the store; a :class:`TableSource`, :class:`SqlSource` or other :class:`Source`; a function that yields pairs
            of key and value; or the import path ``module:name`` of one of these.
        :param on_progress: called repeatedly with the number of entries added so far.
        :param timeout: seconds until the commit is refused; 24 hours by default.
        :param settle_timeout: seconds to wait for older transactions to end.
        :raises InvalidArgument: the first load is not missing, or has been completed by another. A waived first load
            can still be made. Or the source is wrong.
        :raises RegistrationLost: a newer first load of the subscription has replaced this one.
        :raises TransactionsInProgress: older transactions did not end in time; the error names them.
        """
        loading = begun_first_load(self._checked, subscription, timeout=timeout, settle_timeout=settle_timeout)
        if source is None:
            return self._first_load_block(loading)
        _ = find_source(source)  # a wrong name is refused before anything begins
        with loading as (opened, reader):
            return load_from(opened, reader, source, on_progress and checked(on_progress, "on_progress"))

    @contextmanager
    def _first_load_block(self, loading: AbstractContextManager[tuple[OpenTransaction, Queue]]) -> Iterator[FirstLoad]:
        with loading as (opened, reader):
            yield FirstLoad(self._context(opened), opened, reader)

    def state(self, queue_id: str) -> State:
        """Return the state of a queue: the latest entry of each key.

        :raises InvalidArgument: the queue has no state, which is an option: ``configure_queue(…, state=True)``.
        """
        return State(self._checked, queue_id)

    def mirror(self, queue_id: str, data: Any, *, timeout: float | None = None, **options: Any) -> MirrorReport:
        """Make the state of a queue equal to a data set, in a long transaction of its own.

        :param queue_id: the queue, which has a state.
        :param data: the data set; see :meth:`MirrorWriter.mirror`, which has the options and errors, too.
        :param timeout: seconds until the commit is refused; 24 hours by default.
        :param options: ``key``, ``value``, ``scope``, ``max_deletes``, ``dry_run`` and ``settle_timeout``.
        :returns: the numbers of new, changed, deleted and unchanged records.
        """
        with self._checked.read() as work:
            queue = stored.find_queue(work, queue_id)
        if queue.parent is not None:
            raise added_to_subscription(queue_id)
        scope, dry_run = options.get("scope"), bool(options.get("dry_run"))
        with begun_mirror(self.database, queue, scope, dry_run=dry_run, timeout=timeout) as opened:
            return MirrorWriter(opened, queue).mirror(data, **options)

    def replay(
        self,
        queue_id: str,
        *,
        keys: Iterable[Any] | None = None,
        prefix: str | bytes | None = None,
        key_range: Sequence[Any] | None = None,
        all_keys: bool = False,
        source: AnySource = STATE,
        settle_timeout: float = 60.0,
    ) -> ReplayReport:
        """Add keys and values from a source to a queue once more, as new entries.

        The entries go to all subscriptions of the queue. They are added in transactions of bounded size, each of which
        waits for older ones and reads after them, so that no newer value is overwritten. Repeat a replay that was
        interrupted. Give exactly one of ``keys``, ``prefix``, ``key_range`` and ``all_keys``.

        :param queue_id: the queue, not one of its subscriptions.
        :param keys: these keys. For one that the source says is deleted, a delete is added; for one that it does not
            know, nothing.
        :param prefix: keys that begin so.
        :param key_range: a pair of keys: from the first one to before the second one, compared as encoded bytes.
        :param all_keys: every key.
        :param source: ``"state"``, the queue's own state; a :class:`~export_queue.Source`, a function that yields pairs
            of key and value, or the import path ``module:name`` of either.
        :param settle_timeout: seconds that each transaction waits for older ones to end.
        :returns: the numbers of entries, deletes and transactions, and the keys that the source does not know.
        :raises InvalidArgument: not exactly one selection, a bad source, or the queue has no state.
        :raises StateIncomplete: the first load of the state is missing.
        :raises TransactionsInProgress: older transactions did not end in time; the error names them.
        :raises RegistrationLost: the same replay was started again meanwhile, and has taken the place of this one.
        """
        return replay(
            self._checked,
            queue_id,
            keys=keys,
            prefix=prefix,
            key_range=key_range,
            all_keys=all_keys,
            source=source,
            settle_timeout=settle_timeout,
        )

    def observe(self, table: str, column: str | bytes, function: Observer, kind: str = "strong") -> None:
        """Register a function that :meth:`process_notifications` calls for each row whose cell in a column was written.

        :param function: called with its own transaction, the row and the column, as ``table.scan`` returns them: both
            are bytes unless the table has a type of rows.
        :param kind: ``strong``: every write to the column notifies, and exactly one of the transactions that process a
            notification commits. ``weak``: only ``table.notify`` notifies, and the function runs at least once.
        :raises OptionsDiffer: the column is observed with the other kind.
        """
        _ = self.identity
        self._observers.register(self._catalogue.table(table), column, function, kind)
        self._catalogue.observed.refresh()

    def watch(self, table: str, column: str | bytes, kind: str = "strong") -> None:
        """Declare that a column is observed, without a function. From now on, writes to it notify.

        Notifications stay pending until a process with an observer handles them, such as an Airflow task that they
        start. Declaring the column again changes nothing.

        :param kind: ``strong`` or ``weak``, as for :meth:`observe`.
        :raises OptionsDiffer: the column is observed with the other kind.
        :raises InvalidArgument: the table cannot have such a column.
        """
        _ = self.identity
        self._observers.declare(self._catalogue.table(table), column, kind)
        self._catalogue.observed.refresh()

    def waiting_rows(self, table: str, column: str | bytes, *, limit: int = 100) -> WaitingRows:
        """Return the rows whose notifications of a column are due, oldest first. Nothing is consumed.

        A row whose observer failed is included when the observer is due again. Rows have the table's type.

        :param limit: maximum number of rows, 1 to 1000.
        :raises ColumnNotObserved: the column has not been declared.
        """
        snapshot = take_snapshot(self._checked)
        with self.database.read() as work:
            return waiting_rows(work, table, column, snapshot, limit=limit)

    def process_notifications(
        self, *, limit: int | None = None, timeout: float | None = None, stop: Callable[[], bool] | None = None
    ) -> Processed:
        """Call this process's observers for all notifications that are due, oldest first, each in its own transaction.

        Notifications that arrive during the call are left for the next one. An observer that raises an error is called
        again after 1 s, 2 s, 4 s … 5 min.

        :param limit: maximum number of observers to call.
        :param timeout: time-out of each observer's transaction in seconds; 30 by default.
        :param stop: called before each notification; True ends the call.
        """
        return self._observers.process(limit=limit, timeout=timeout, stop=stop)

    def observer_failures(self, *, limit: int = 100) -> list[ObserverFailure]:
        """Return the notifications whose observer failed, in the order in which they are retried."""
        return self._observers.failures(limit=limit)

    def queue(self, queue_id: str) -> Queue:
        """Return the stored options of a queue or subscription."""
        with self._checked.read() as work:
            return stored.find_queue(work, queue_id)

    def _reader(self, queue_id: str) -> Queue:
        """Return the options of a queue or subscription that has its own entries."""
        with self._checked.read() as work:
            return stored.find_reader(work, queue_id)

    def _seen(self, queue_id: str) -> tuple[Snapshot, Queue]:
        """Take a snapshot, then read the options: by then the queue has all layouts of entries in the snapshot."""
        return take_snapshot(self._checked), self._reader(queue_id)

    def queues(self) -> list[Queue]:
        """Return all queues and subscriptions, ordered by name."""
        with self._checked.read() as work:
            return stored.list_queues(work)

    def rebind(self, queue_id: str, sink: str, *, complete: bool = False, who: str | None = None) -> list[Mark]:
        """Allow a queue to drain into another sink, or with other options.

        Exported records stay where they are. The next drain stores its own options. The new sink lacks everything that
        was drained before. Drains report it as incomplete until a first load has delivered everything again, or
        until somebody declares it complete.

        :param sink: name of the sink. Pass the current name to change only its options or the exporter.
        :param complete: promise that the new sink lacks nothing, for example because only its name has changed. The
            promise is recorded.
        :returns: marks of what the sink lacks.
        """
        who = who or user_at_host()
        with self.database.begin() as work:
            queue = stored.find_reader(work, queue_id)
            stored.bind_sink(work, queue, sink, rebind=True)
            if queue.sink is not None and queries.queues.shown_fence(work, queue.id, queue.sink):
                # the new sink may hold old records, if the queue has been drained into it before
                is_older = sink != queue.sink and bool(queries.queues.shown_fence(work, queue.id, sink))
                details = {"before": queue.sink, "sink": sink, "older": is_older}
                stored.mark_incomplete(work, queue, "rebind", who=who, details=details)
        if complete:
            stored.declare_complete(self.database, queue_id, who=who)
        with self.database.read() as work:
            found = stored.losses(work, queue_id)
        for mark in found:
            log.warning("%s: the sink is incomplete: %s", queue_id, mark.line())
        return found

    def declare_complete(self, queue_id: str | None = None, *, who: str | None = None) -> int:
        """Promise that a sink lacks nothing. Drains stop reporting it as incomplete; the promise is recorded.

        :param queue_id: the queue or subscription; None for the marks of the whole store.
        :returns: the number of marks of losses that were open.
        """
        who = who or user_at_host()
        closed = stored.declare_complete(self.database, queue_id, who=who)
        what = "the store" if queue_id is None else f"the sink of {queue_id}"
        log.warning("%s declared %s complete, which had %d open marks", who, what, closed)
        return closed

    def marks(self, queue_id: str | None = None) -> list[Mark]:
        """Return the recorded losses and promises of a queue, oldest first.

        :param queue_id: the queue or subscription; None for acts on the whole store: adoptions, floors, forgotten
            invalid ids and closed idempotency keys.
        """
        with self._checked.read() as work:
            return stored.marks(work, "" if queue_id is None else stored.find_queue(work, queue_id).id)

    def backlog(self, queue_id: str, ranges: Sequence[Range | Sequence[int]] | None = None) -> list[Backlog]:
        """Count the pending entries of each unit.

        :param ranges: ranges of buckets; None for all.
        :raises HasSubscriptions: the queue has subscriptions; pass the id of one of them.
        """
        snapshot, queue = self._seen(queue_id)
        with self.database.read() as work:
            units, _ = stored.units_asked_for(work, queue, ranges)
            return stored.backlog(work, queue, snapshot, units)

    def waiting_ranges(self, queue_id: str, ranges: Sequence[Range | Sequence[int]] | None = None) -> list[Range]:
        """Return the units that have pending entries. This is cheaper than :meth:`backlog`.

        :param ranges: ranges of buckets; None for all.
        :raises HasSubscriptions: the queue has subscriptions; pass the id of one of them.
        """
        snapshot, queue = self._seen(queue_id)
        with self.database.read() as work:
            return stored.waiting_ranges(work, queue, snapshot, stored.units_to_watch(work, queue, ranges))

    def peek(self, queue_id: str, *, key: Any = None, limit: int = 10, values: bool = False) -> list[QueuedEntry]:
        """Return pending entries in the order in which a drain takes them. Nothing is removed.

        :param key: return only entries of this key.
        :param limit: maximum number of entries, 1 to 1000.
        :param values: also read the values.
        :raises HasSubscriptions: the queue has subscriptions; the error names them.
        """
        snapshot, queue = self._seen(queue_id)
        encoded = None if key is None else queue.encode_key(key)
        with self.database.read() as work:
            return peek(work, queue, snapshot, key=encoded, limit=limit, values=values)

    def why(self, queue_id: str, key: Any) -> KeyStory:
        """Return what the store knows about one key: its last commit, pending entries, dead letters and drains.

        :param key: the key, of the queue's key type.
        :raises HasSubscriptions: the queue has subscriptions; the error names them.
        """
        queue = self._reader(queue_id)
        return why(self.database, queue, queue.encode_key(key))

    def bulk_files(self) -> list[str]:
        """List the files of committed bulk entries that have not been drained. A backup must include them."""
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
        """Merge small segments and settled rows of a queue or subscription. It can run, and be interrupted, any time.

        See :func:`export_queue.core.segments.compact` for the errors.

        :param wanted: which units to compact. With ``older_layouts`` only its ``most_bytes`` is used.
        :param older_layouts: instead, move all pending entries of older layouts into the current layout.
        :param dry_run: only report what would be done.
        """
        return compact(self._checked, queue_id, wanted=wanted, older_layouts=older_layouts, dry_run=dry_run)

    def maintain(self, *, limit: int = 100_000) -> MaintenanceReport:
        """Delete data that can no longer be read or queried. It can run, and be interrupted, any time.

        Outcomes of commits are kept for a day; idempotency keys and reports of drains for 30 days.

        :param limit: maximum number of rows to check of each kind. The report says whether there are more.
        """
        return maintain(self._checked, limit=limit)

    def sweep_sink(self, sink: SinkSpec | Sink, *, sink_name: str | None = None) -> SinkSweep:
        """Delete the tombstones of a sink that no later delivery can need. It can run during drains.

        :param sink: a description of the sink, or an open sink, which stays open. Only this store may feed it.
        :param sink_name: name for the report; by default the name in the description, or the class of an open sink.
        :raises SinkConfigurationError: the sink does not support this.
        :raises SinkBelongsToAnother: another store feeds the sink too.
        :raises SinkError: the sink does not answer or refuses; the next call continues.
        """
        return sweep_sink(self.database, self.id, sink, sink_name=sink_name)

    def metrics(self) -> str:
        """Return the metrics of the store and of this process as OpenMetrics text."""
        return render(read_metrics(self._checked, counters=self.database.counters))

    def reports(
        self, *, drain_id: str | None = None, queue_id: str | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Return reports of drains, newest first."""
        with self.database.read() as work:
            return queries.reports.find_reports(work, drain_id=drain_id, queue_id=queue_id, limit=limit)

    def finished_drains(
        self, queue_id: str | None = None, *, idle: bool = True, limit: int = 100
    ) -> list[FinishedDrain]:
        """Return the drains of a queue or subscription, or of all, newest first: when each ended, and its report.

        The store keeps the report of a drain for 30 days, and that of one that found nothing for an hour.

        :param idle: whether to include drains that found nothing.
        """
        with self._checked.read() as work:
            return finished_drains(work, queue_id, idle=idle, limit=limit)

    def finished_comparisons(self, queue_id: str | None = None, *, limit: int = 100) -> list[FinishedComparison]:
        """Return the comparisons of a queue or subscription with its sink, or of all, newest first.

        Each has the time at which it ended, in milliseconds, and its report. The store keeps them for 30 days.
        """
        with self._checked.read() as work:
            return finished_comparisons(work, queue_id, limit=limit)
