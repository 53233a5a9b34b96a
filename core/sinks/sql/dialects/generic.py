"""Any database that SQLAlchemy speaks to: portable statements, correct before quick.

A row that is there is changed by an ``UPDATE`` whose own condition compares the ranks; one that is missing is
inserted, and the primary key decides between two writers of one row: the loser repeats its transaction and
finds the row. No guarantee here depends on an isolation level, on locks, or on how a database reads.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateTable

from export_queue.core.errors import ExportQueueError, SinkConfigurationError
from export_queue.core.sinks.error_table import ErrorRow, ErrorTable, Fate
from export_queue.core.sinks.protocol import Capabilities
from export_queue.core.sinks.sql.control_tables import control_tables
from export_queue.core.sinks.sql.dialects.protocol import (
    KEPT_OUT,
    URL_OPTION,
    Clash,
    Password,
    Poison,
    TryAgain,
    give_password,
    judged,
)
from export_queue.core.sinks.sql.rows import Limits, Rows
from export_queue.core.sinks.sql.tables import DELETED, RANK, Table
from export_queue.core.sinks.sql.values import as_python

ERRORS = ErrorTable(
    "other databases",
    [
        ErrorRow(
            "IntegrityError", Fate.AGAIN, "another writer was first with a row, or a constraint: then a rejection"
        ),
        ErrorRow("DataError", Fate.REJECTED, "data that the column does not take"),
        ErrorRow("OperationalError", Fate.AGAIN, "drivers do not tell a deadlock from a server that is away"),
        ErrorRow("InterfaceError", Fate.LATER, "the connection broke"),
        ErrorRow("InternalError", Fate.LATER, "the server is not well; see its log"),
        ErrorRow("*", Fate.REFUSED, "rights, a missing table: the database's own words say what"),
    ],
)
Row = tuple[Any, ...]
"""Key (a value or several), and for a table that has them a value for each column, rank and tombstone mark."""

_KEY_CHARACTERS = 450
_AT_ONCE = 400
"""Parameters of one statement that reads; some databases take no more than a thousand."""
_HIGHEST = (1 << 63) - 1
_TRICKY = ("a", "A", "a ", "á", "ß", "ss")


class GenericDialect:
    """A database of some SQLAlchemy dialect.

    :param url: with user, without password.
    :param password: the password, or a function that finds it.
    """

    capabilities = Capabilities(batch_rows=1000, batch_bytes=8 << 20, binary_ids=False)
    locks_reads = False  # not every database does

    def __init__(self, url: sa.URL, *, password: Password, timeout: float) -> None:
        try:
            dialect = url.get_dialect()
            dbapi: Any = dialect.import_dbapi()
        except (ImportError, sa.exc.NoSuchModuleError) as error:
            raise SinkConfigurationError(
                f"a sink on {url.drivername} needs a SQLAlchemy dialect and its driver: {error}",
                hint="URLs of other sinks are redis://host:6379/0 and, for Elasticsearch and OpenSearch, https://host:9200",
            ) from None
        if dropped := [name for name in sorted(url.query) if not _hands_over(dialect(), url, name)]:
            raise SinkConfigurationError(
                f"{URL_OPTION}: SQLAlchemy does not hand {', '.join(dropped)} over to the driver of {url.drivername}",
                hint="options are never ignored: correct the name, or remove it",
            )
        convert = partial(as_python, decimals=dialect.supports_native_decimal)
        self.limits = Limits(id_bytes=4 * _KEY_CHARACTERS, convert=convert)
        self.name = url.get_backend_name()
        self.server = f"{self.name} at {url.host or 'this machine'}, database {url.database}"
        self.driver_error: type[Exception] = dbapi.Error
        self._dbapi = dbapi
        self._url = url
        self._password = password
        self._timeout = timeout

    def engine(self) -> sa.Engine:
        engine = sa.create_engine(self._url, hide_parameters=True, pool_timeout=self._timeout)

        give_password(engine, self._password)

        @sa.event.listens_for(engine, "do_connect")
        def connect(dialect: Any, _record: Any, arguments: Any, parameters: dict[str, Any]) -> Any:
            try:
                return dialect.connect(*arguments, **parameters)
            except TypeError as error:  # of an argument that the driver does not have
                raise SinkConfigurationError(f"{URL_OPTION}: {error}") from None

        return engine

    def folds_names(self, connection: sa.Connection) -> bool:
        return False

    def begin(self, connection: sa.Connection) -> None:
        """Nothing: any transaction will do."""

    def limit_ddl(self, connection: sa.Connection) -> None:
        """Nothing: each database has a way of its own."""

    def create_control(self, connection: sa.Connection, schema: str | None) -> Mapping[str, str]:
        return {table.name: _text(CreateTable(table), connection) for table in control_tables(schema)}

    def create_table(self, connection: sa.Connection, table: Table) -> list[str]:
        create = _text(CreateTable(_described(table)), connection)
        return [create, _view(table, connection)] if table.ranked else [create]

    def add_columns(self, connection: sa.Connection, table: Table, missing: Sequence[str]) -> list[str]:
        described, compiler = (
            _described(table),
            connection.dialect.ddl_compiler(connection.dialect, CreateTable(_described(table))),
        )
        name = compiler.preparer.format_table(described)
        added = [
            compiler.get_column_specification(sa.Column(one.name, one.type))
            for one in described.c
            if one.name in missing
        ]
        commands = [f"ALTER TABLE {name} ADD {one}" for one in added]
        if not table.ranked:
            return commands
        if sa.inspect(connection).has_table(table.live, schema=table.schema):
            live = sa.Table(table.live, sa.MetaData(), schema=table.schema)
            commands.append(f"DROP VIEW {compiler.preparer.format_table(live)}")
        return [*commands, _view(table, connection)]

    def shape(self, connection: sa.Connection, table: Table) -> None:
        """Nothing: rows are read before they are written, and are found by the key alone."""

    def problems(self, connection: sa.Connection, table: Table) -> list[str]:
        described, odd = _described(table), secrets.token_hex(8)
        texts = [f"{odd}{tail}" for tail in _TRICKY] if any(key.type == "text" for key in table.key.columns) else [odd]
        blank = dict.fromkeys((column.name for column in table.contents.columns), None)
        marks = {RANK: _HIGHEST, DELETED: True} if table.ranked else {}
        rows = [{**_probe(table, text), **blank, **marks} for text in texts]
        probed = sa.or_(*(sa.and_(*(described.c[key] == row[key] for key in table.keys)) for row in rows))
        try:
            connection.execute(sa.insert(described), rows)
        except sa.exc.IntegrityError as error:
            return [f"the key takes different ids for one, or the table has other rules: {error.orig}"]
        found = connection.execute(sa.select(described).where(probed)).all()
        if {tuple(row)[: len(table.keys)] for row in found} != {tuple(row[key] for key in table.keys) for row in rows}:
            return ["the key does not give ids back as they are"]
        if table.ranked and {getattr(row, RANK) for row in found} != {_HIGHEST}:
            return [f"column {RANK} does not hold 64 bits"]
        try:
            connection.execute(sa.insert(described), rows[:1])
        except sa.exc.IntegrityError:
            return []
        return ["the database does not enforce the primary key"]

    def upsert(self, connection: sa.Connection, table: Table, rows: Rows) -> int:
        return self._upsert(connection, table, list(zip(*rows.columns(table), strict=True)))

    def _upsert(self, connection: sa.Connection, table: Table, rows: Sequence[Row]) -> int:
        described, width = _described(table), len(table.keys)
        known = _ranks(connection, described, table, rows)
        newer = [row for row in rows if row[:width] in known and (not table.ranked or known[row[:width]] < row[-2])]
        missing = [row for row in rows if row[:width] not in known]
        written = 0
        if newer:
            guarded = sa.update(described).where(*_at(described, table))
            if table.ranked:
                guarded = guarded.where(sa.func.coalesce(described.c[RANK], -1) < sa.bindparam("new_rank"))
            named = [name for name in table.columns if name not in table.keys]
            guarded = guarded.values({name: sa.bindparam(f"to_{name}") for name in named})
            places = [*(f"at_{key}" for key in table.keys), *(f"to_{name}" for name in named)]
            values = [dict(zip(places, row, strict=True)) for row in newer]
            if table.ranked:
                values = [{**one, "new_rank": row[-2]} for one, row in zip(values, newer, strict=True)]
            if connection.dialect.supports_sane_multi_rowcount:
                written += connection.execute(guarded, values).rowcount
            else:
                written += sum(connection.execute(guarded, one).rowcount for one in values)
            if written < len(newer):
                _require_newer(_ranks(connection, described, table, newer), table, newer)
        if missing:
            names = table.columns
            connection.execute(sa.insert(described), [dict(zip(names, row, strict=True)) for row in missing])
            # few databases say how many rows several inserts have made
            written += len(missing) - len(_older(_ranks(connection, described, table, missing), table, missing))
        return written

    def held(self, connection: sa.Connection, table: Table, rows: Rows) -> int:
        wanted = list(zip(*rows.columns(table), strict=True))
        return len(wanted) - len(_older(_ranks(connection, _described(table), table, wanted), table, wanted))

    def delete(self, connection: sa.Connection, table: Table, rows: Rows) -> int:
        described, places = _described(table), [f"at_{key}" for key in table.keys]
        keys = list(zip(*rows.keys, strict=True))
        gone = sa.delete(described).where(*_at(described, table))
        connection.execute(gone, [dict(zip(places, key, strict=True)) for key in keys])
        return len(_ranks(connection, described, table, keys))

    def explain(self, error: Exception) -> ExportQueueError | Poison | TryAgain:
        words = str(error).strip()
        if isinstance(error, self._dbapi.IntegrityError):
            return Clash(words)
        known = (row.code for row in ERRORS.rows if isinstance(error, getattr(self._dbapi, row.code, ())))
        return judged(ERRORS.find(next(known, "")), words, self.server)


class _IsoDate(sa.TypeDecorator[str]):
    """A date that is text on our side."""

    impl = sa.Date
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> Any:
        return None if value is None else date.fromisoformat(value)

    def process_result_value(self, value: Any, dialect: Any) -> str | None:
        return None if value is None else str(value.isoformat()[:10])


_TYPES: Mapping[str, sa.types.TypeEngine[Any]] = {
    "text": sa.UnicodeText(),
    "integer": sa.BigInteger(),
    "real": sa.Double(),
    "numeric": sa.Numeric(),
    "boolean": sa.Boolean(),
    "json": sa.UnicodeText(),
    "timestamp": sa.DateTime(timezone=True),
}
_KEY_TYPES: Mapping[str, sa.types.TypeEngine[Any]] = {
    "text": sa.Unicode(_KEY_CHARACTERS),
    "integer": sa.BigInteger(),
    "uuid": sa.Uuid(as_uuid=False),
    "date": _IsoDate(),
}


def _described(table: Table) -> sa.Table:
    # no default: a row that was there before the sink has the rank NULL, which is older than all
    marks = (sa.Column(RANK, sa.BigInteger()), sa.Column(DELETED, sa.Boolean())) if table.ranked else ()
    return sa.Table(
        table.name,
        sa.MetaData(),
        *(
            sa.Column(key.name, _KEY_TYPES[key.type], primary_key=True, autoincrement=False)
            for key in table.key.columns
        ),
        *(sa.Column(column.name, _TYPES[column.type]) for column in table.contents.columns),
        *marks,
        schema=table.schema,
    )


def _at(described: sa.Table, table: Table) -> list[sa.ColumnElement[bool]]:
    """Say which row a statement is about; its parameters are ``at_`` and the names of the key's columns."""
    return [described.c[key] == sa.bindparam(f"at_{key}") for key in table.keys]


def _ranks(connection: sa.Connection, described: sa.Table, table: Table, rows: Sequence[Row]) -> dict[Row, int]:
    """Read the ranks of the rows that are there, by key; where there are none, 0."""
    width = len(table.keys)
    rank: sa.ColumnElement[int] = described.c[RANK] if table.ranked else sa.literal(0)
    keys = [described.c[key] for key in table.keys]
    found: dict[Row, int] = {}
    for start in range(0, len(rows), _AT_ONCE // width):
        part = [row[:width] for row in rows[start : start + _AT_ONCE // width]]
        chosen: sa.ColumnElement[bool]
        if width == 1:
            chosen = keys[0].in_([key for (key,) in part])
        else:
            chosen = sa.or_(
                *(sa.and_(*(column == value for column, value in zip(keys, one, strict=True))) for one in part)
            )
        for row in connection.execute(sa.select(*keys, rank).where(chosen)):
            found[tuple(row)[:width]] = -1 if row[-1] is None else row[-1]
    return found


def _require_newer(now: Mapping[Row, int], table: Table, rows: Sequence[Row]) -> None:
    """Check that the rows that could not be changed are newer by now.

    :param now: ranks after the change.
    :raises Clash: a row has gone since it was read, as a tombstone that is swept; or it cannot be changed.
    """
    if _older(now, table, rows):
        raise Clash(f"a row was removed as it was about to be changed, or {KEPT_OUT}")


def _hands_over(dialect: sa.Dialect, url: sa.URL, option: str) -> bool:
    """Tell whether a dialect makes anything of an option of a URL."""
    try:
        return dialect.create_connect_args(url) != dialect.create_connect_args(url.difference_update_query([option]))
    except (TypeError, ValueError, sa.exc.ArgumentError) as error:
        raise SinkConfigurationError(f"{URL_OPTION}: option {option!r}: {type(error).__name__}") from None


def _older(now: Mapping[Row, int], table: Table, rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are missing, or older than they should be."""
    width = len(table.keys)
    return [row for row in rows if row[:width] not in now or (table.ranked and now[row[:width]] < row[-2])]


def _probe(table: Table, text: str) -> dict[str, Any]:
    """Make a key that no row has."""
    number = secrets.randbits(31)
    identity = f"{secrets.token_hex(4)}-0000-4000-8000-{secrets.token_hex(6)}"
    values = {"text": text, "integer": number, "uuid": identity, "date": "9999-12-31"}
    return {key.name: values[key.type] for key in table.key.columns}


def _view(table: Table, connection: sa.Connection) -> str:
    described = _described(table)
    gone = described.c[DELETED]
    shown = sa.select(*(described.c[name] for name in table.columns[:-2])).where(
        sa.or_(gone.is_(None), gone == sa.false())
    )
    name = connection.dialect.identifier_preparer.format_table(sa.Table(table.live, sa.MetaData(), schema=table.schema))
    return f"CREATE VIEW {name} AS\n{_text(shown, connection)}"


def _text(statement: Any, connection: sa.Connection) -> str:
    compiled = statement.compile(
        dialect=connection.dialect,
        **({} if isinstance(statement, CreateTable) else {"compile_kwargs": {"literal_binds": True}}),
    )
    return str(compiled).strip()
