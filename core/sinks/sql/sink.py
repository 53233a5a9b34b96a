"""The SQL sink: a table per collection, a rank and a tombstone mark in each row."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter

from sqlalchemy import Connection, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from export_queue.core.errors import ExportQueueError, SinkConfigurationError, SinkRefused, SinkUnavailable
from export_queue.core.sinks.batch import Reasons, apply_batch, refuse_collections, refuse_seqs, retarget
from export_queue.core.sinks.control import ControlRecord, admission
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult, Capabilities, Rejection
from export_queue.core.sinks.sql import statements
from export_queue.core.sinks.sql.dialect import Dialect, Password, Poison, TryAgain
from export_queue.core.sinks.sql.fitting import misfits
from export_queue.core.sinks.sql.tables import (
    Contents,
    Row,
    Table,
    check_template,
    fill_collections,
    rows_of,
)

_TRIES = 5
_PAUSE_SECONDS = 0.05


class SqlSink:
    """Tables of a SQLite file or a PostgreSQL database.

    A table has the key column ``id``, the document's column or columns, ``_rank`` and ``_deleted``. A
    deleted record stays as a row without a document; the view ``<table>_live`` hides such rows.

    :param url: SQLAlchemy's URL, ``sqlite:///path`` or ``postgresql://user@host/database``.
    :param password: the password, or a callable that returns it, asked at each new connection.
    :param table: template of the table names, from ``{collection}``.
    :param columns: fields of the document that become columns: names, or names and types (``text``,
        ``integer``, ``real``, ``numeric``, ``boolean``, ``json``, ``timestamp``). Other fields are not kept.
    :param document: without ``columns`` the document is one column, of the type ``text`` or ``json``.
    :param create_tables: whether missing tables and the control table are created.
    :param timeout: seconds to wait for locks and for an answer.
    :raises SinkConfigurationError: an option is not valid.
    """

    def __init__(
        self,
        url: str,
        password: Password = None,
        table: str = "{collection}",
        columns: Sequence[str] | Mapping[str, str] | None = None,
        document: str = "text",
        create_tables: bool = True,
        timeout: float = 60.0,
    ) -> None:
        check_template(table)
        self._template = table
        self._contents = Contents.of(columns, document)
        self._create = create_tables
        self._dialect = _dialect(url, password, timeout)
        self._engine = self._dialect.engine()
        self._ready: set[str] = set()

    @property
    def capabilities(self) -> Capabilities:
        """Batch sizes and abilities."""
        return self._dialect.capabilities

    def admit(self, *, queue_id: str, store_id: str, fence: int) -> None:
        """Check the database and remember which store feeds it; see :class:`~export_queue.core.sinks.Sink`."""
        self._ensure(statements.CONTROL_TABLE, [statements.CREATE_CONTROL])
        if "{collection}" not in self._template:
            self._prepare(self._template)
        wanted = admission(None, queue_id=queue_id, store_id=store_id, fence=fence, sink=str(self))
        fields = {"queue_id": queue_id, "store_id": store_id, "fence": fence, "floor": wanted.floor}
        with self._transaction() as connection:
            connection.execute(text(statements.INSERT_CONTROL), fields)
            row = connection.execute(text(self._dialect.select_control), {"queue_id": queue_id}).one()
            found = ControlRecord(row.store_id, row.fence, row.floor)
            wanted = admission(found, queue_id=queue_id, store_id=store_id, fence=fence, sink=str(self))
            if wanted != found:
                connection.execute(text(statements.UPDATE_CONTROL), {"queue_id": queue_id, "fence": wanted.fence})

    def apply(self, operations: Operations) -> ApplyResult:
        """Apply a batch; see :class:`~export_queue.core.sinks.Sink`."""
        tables, refused = fill_collections(self._template, set(operations.collections), fold=self._dialect.folds_names)
        reasons: Reasons = {}
        refuse_collections(operations, reasons, refused)
        refuse_seqs(operations, reasons)
        return apply_batch(retarget(operations, tables), reasons=reasons, write=self._write)

    def create(self, collection: str) -> None:
        """Create the table of a collection, and its view, if the table is missing.

        :param collection: the collection.
        """
        self._prepare(self._table(collection).name)

    def ddl(self, *collections: str) -> str:
        """Return the statements that create what the sink needs, to be run by somebody with more rights.

        :param collections: whose tables are wanted; the control table always comes first.
        """
        found = [statements.CREATE_CONTROL]
        for collection in collections:
            found += statements.create_table(self._table(collection), self._dialect.name)
        return _script(found)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _write(self, operations: Operations) -> ApplyResult:
        """Write operations on distinct records, in one transaction a table."""
        by_table: dict[str, list[int]] = {}
        for i, name in enumerate(operations.collections):
            by_table.setdefault(name, []).append(i)
        written, rejected = 0, dict[int, str]()
        for name, positions in sorted(by_table.items()):
            table = self._prepare(name)
            part = operations if len(by_table) == 1 else operations.take(positions)
            rows, unfit = rows_of(part, self._contents, self._dialect.limits)
            # in the order of the keys, so that two writers cannot lock each other out
            rows.sort(key=itemgetter(0))
            poison: dict[bytes, str] = {}
            written += self._upsert(table, rows, poison)
            if poison:
                unfit |= {i: poison[key] for i, key in enumerate(part.ids) if key in poison}
            rejected |= {positions[i]: reason for i, reason in unfit.items()}
        return ApplyResult(
            written,
            len(operations) - written - len(rejected),
            tuple(Rejection(*pair) for pair in sorted(rejected.items())),
        )

    def _upsert(self, table: Table, rows: Sequence[Row], poison: dict[bytes, str]) -> int:
        """Write rows; a batch that the database refuses is halved until the culprits stand alone."""
        if not rows:
            return 0
        try:
            return self._upsert_all(table, rows)
        except Poison as error:
            if len(rows) == 1:
                poison[rows[0][0].encode()] = str(error)
                return 0
        middle = len(rows) // 2
        return sum(self._upsert(table, half, poison) for half in (rows[:middle], rows[middle:]))

    def _upsert_all(self, table: Table, rows: Sequence[Row]) -> int:
        for attempt in range(1, _TRIES + 1):
            try:
                with self._transaction() as connection:
                    return self._dialect.upsert(connection, table, rows)
            except TryAgain as error:
                if attempt == _TRIES:
                    raise SinkUnavailable(f"{self}: {attempt} tries of a batch failed, the last: {error}") from error
                time.sleep(random.uniform(0, _PAUSE_SECONDS * attempt))
        raise AssertionError("the loop returns or raises")

    def _table(self, collection: str) -> Table:
        tables, refused = fill_collections(self._template, [collection], fold=self._dialect.folds_names)
        if refused:
            raise SinkConfigurationError(refused[collection])
        return Table(tables[collection], self._contents)

    def _prepare(self, name: str) -> Table:
        """Make sure, once, that a table is there and can hold the guarantees."""
        table = Table(name, self._contents)
        if name in self._ready:
            return table
        commands = statements.create_table(table, self._dialect.name)
        self._ensure(name, commands)
        with self._transaction() as connection:
            problems = misfits(connection, table, self._dialect)
        if problems:
            raise SinkConfigurationError(
                f"table {name!r} of {self} cannot be a sink:\n  " + "\n  ".join(problems),
                hint=f"name another table, or make it like this one:\n{_script(commands)}",
            )
        self._ready.add(name)
        return table

    def _ensure(self, table: str, commands: Sequence[str]) -> None:
        """Create what is missing; another process may do the same at this moment."""
        for attempt in range(1, _TRIES + 1):
            with self._transaction() as connection:
                if inspect(connection).has_table(table):
                    return
            if not self._create:
                raise SinkRefused(f"{self} has no table {table!r}", hint=f"create it:\n{_script(commands)}")
            try:
                with self._transaction() as connection:
                    for command in commands:
                        connection.exec_driver_sql(command)
                return
            except (Poison, TryAgain, SinkRefused) as error:
                # PostgreSQL answers a race of two CREATE … IF NOT EXISTS with one of several errors
                if attempt == _TRIES:
                    hint = f"let somebody with more rights run:\n{_script(commands)}"
                    words = error.message if isinstance(error, SinkRefused) else error
                    raise SinkRefused(f"{self}: {words}", hint=hint) from error
                time.sleep(random.uniform(0, _PAUSE_SECONDS * attempt))

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Run a transaction that writes; errors of the driver come out as ours, Poison or TryAgain."""
        try:
            with self._engine.connect() as connection:
                try:
                    with connection.begin():
                        self._dialect.begin(connection)
                        yield connection
                except (DBAPIError, self._dialect.driver_error) as error:
                    explained = self._explain(error)
                    if not isinstance(explained, Poison | TryAgain):
                        connection.invalidate()
                    raise explained from error
        except (SQLAlchemyError, self._dialect.driver_error) as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> ExportQueueError | Poison | TryAgain:
        original = error.orig if isinstance(error, DBAPIError) else error
        if not isinstance(original, self._dialect.driver_error):
            return SinkUnavailable(f"{self}: {original}")
        return self._dialect.explain(original)

    def __str__(self) -> str:
        return self._dialect.server

    def __repr__(self) -> str:
        return f"<SqlSink {self}>"


def _script(commands: Sequence[str]) -> str:
    return "".join(f"{command};\n" for command in commands)


def _dialect(url: str, password: Password, timeout: float) -> Dialect:
    try:
        parsed = make_url(url)
    except ArgumentError:
        # the text is not repeated: it may hold a password
        raise SinkConfigurationError("url: expected sqlite:///path or postgresql://user@host/database") from None
    kind = parsed.get_backend_name()
    if kind == "sqlite":
        from export_queue.core.sinks.sql.sqlite import SQLite

        return SQLite(parsed, timeout=timeout)
    if kind in ("postgresql", "postgres"):
        try:
            from export_queue.core.sinks.sql.postgresql import PostgreSQL
        except ModuleNotFoundError as error:
            raise SinkConfigurationError(
                f"a sink on PostgreSQL needs the module {error.name}",
                hint="pip install 'airflow-provider-export-queue[postgres]'",
            ) from None
        bare = parsed.set(drivername="postgresql+psycopg")._replace(password=None)
        return PostgreSQL(bare, password=password if password is not None else parsed.password, timeout=timeout)
    raise SinkConfigurationError(f"a sink on {kind} is not supported: expected sqlite or postgresql")
