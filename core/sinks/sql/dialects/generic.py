"""Any database that SQLAlchemy supports: portable statements, correct rather than fast.

An existing row is changed by an ``UPDATE`` whose condition compares the ranks. A missing row is inserted, and the
primary key decides between two writers of one row: the loser repeats its transaction and finds the row. No guarantee
here depends on an isolation level, on locks, or on how a database reads.
"""

from __future__ import annotations

import operator
import secrets
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

import sqlalchemy as sa

from export_queue.core.errors import ExportQueueError, SinkConfigurationError
from export_queue.core.sinks.error_table import ErrorRow, ErrorTable, Fate
from export_queue.core.sinks.protocol import Capabilities
from export_queue.core.sinks.sql.dialects.protocol import (
    KEPT_OUT,
    URL_OPTION,
    Clash,
    Dialect,
    Password,
    Poison,
    TryAgain,
    give_password,
    judged,
)
from export_queue.core.sinks.sql.rows import Limits, Rows
from export_queue.core.sinks.sql.statements import Syntax
from export_queue.core.sinks.sql.tables import DELETED, RANK, Table
from export_queue.core.sinks.sql.values import as_python

ERRORS = ErrorTable(
    "other databases",
    [
        ErrorRow(
            "IntegrityError", Fate.AGAIN, "another writer inserted the row first, or a constraint: then a rejection"
        ),
        ErrorRow("DataError", Fate.REJECTED, "data that the column does not take"),
        ErrorRow("OperationalError", Fate.AGAIN, "drivers do not distinguish a deadlock from an unavailable server"),
        ErrorRow("InterfaceError", Fate.LATER, "the connection broke"),
        ErrorRow("InternalError", Fate.LATER, "an error inside the server; see its log"),
        ErrorRow("*", Fate.REFUSED, "rights, a missing table: the database's message says which"),
    ],
)
Row = tuple[Any, ...]
"""The values of the key, and for whole rows those of the columns, and of a ranked table rank and tombstone mark."""

_KEY_CHARACTERS = 450
_AT_ONCE = 400
"""Parameters of one reading statement; some databases allow only a thousand."""
_HIGHEST = (1 << 63) - 1
_TRICKY = ("a", "A", "a ", "á", "ß", "ss")


class GenericDialect(Dialect):
    """A database of any SQLAlchemy dialect; its URL has no password."""

    capabilities = Capabilities(batch_rows=1000, batch_bytes=8 << 20, binary_ids=False)
    locks_reads = False  # not every database does

    def __init__(self, url: sa.URL, *, password: Password, timeout: float) -> None:
        try:
            dialect = url.get_dialect()
            dbapi: Any = dialect.import_dbapi()
        except (ImportError, sa.exc.NoSuchModuleError) as error:
            raise SinkConfigurationError(
                f"a sink on {url.drivername} needs a SQLAlchemy dialect and its driver: {error}",
                hint="URLs of other sinks are redis://host:6379/0, https://host:9200 for Elasticsearch, and "
                "opensearch+https://host:9200",
            ) from None
        if dropped := [name for name in sorted(url.query) if not _passes_on(dialect(), url, name)]:
            raise SinkConfigurationError(
                f"{URL_OPTION}: SQLAlchemy does not pass {', '.join(dropped)} to the driver of {url.drivername}",
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
            except TypeError as error:  # the driver has no such argument
                raise SinkConfigurationError(f"{URL_OPTION}: {error}") from None

        return engine

    def syntax(self, connection: sa.Connection, table: Table | None = None) -> Syntax:
        dialect, gone = connection.dialect, sa.column(DELETED, sa.Boolean())
        compiled = sa.or_(gone.is_(None), gone == sa.false()).compile(
            dialect=dialect, compile_kwargs={"literal_binds": True}
        )
        types, keys = (
            {name: dialect.type_compiler_instance.process(kind) for name, kind in kinds.items()}
            for kinds in (_TYPES, KEY_TYPES)
        )
        return Syntax(
            dialect.identifier_preparer.quote,
            types,
            keys,
            ranks=(types["integer"], types["boolean"]),
            create_table="CREATE TABLE",
            create_view="CREATE VIEW",
            add_column="ADD",
            is_live=str(compiled),
        )

    def shape(self, connection: sa.Connection, table: Table) -> None:
        """Return nothing: rows are read before they are written, and are found only by the key."""

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
            return [f"the key treats different ids as equal, or the table has other rules: {error.orig}"]
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
        given = list(zip(*rows.columns(table), strict=True))
        described, width = _described(table), len(table.keys)
        known = _ranks(connection, described, table, given)
        below = operator.le if table.repairs else operator.lt
        found = [row for row in given if row[:width] in known]
        newer = [row for row in found if not table.ranked or below(known[row[:width]], row[-2])]
        missing = [row for row in given if row[:width] not in known]
        written = 0
        if newer:
            guarded = sa.update(described).where(*_at(described, table))
            if table.ranked:
                guarded = guarded.where(below(sa.func.coalesce(described.c[RANK], -1), sa.bindparam("new_rank")))
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
            # the other rows must have become newer; a row may also be gone, as swept tombstones are
            if written < len(newer) and _older(_ranks(connection, described, table, newer), table, newer):
                raise Clash(f"a row was removed before it could be changed, or {KEPT_OUT}")
        if missing:
            names = table.columns
            connection.execute(sa.insert(described), [dict(zip(names, row, strict=True)) for row in missing])
            # few databases report how many rows several inserts have made
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
    """A date that is text in Python."""

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
KEY_TYPES: Mapping[str, sa.types.TypeEngine[Any]] = {
    "text": sa.Unicode(_KEY_CHARACTERS),
    "integer": sa.BigInteger(),
    "uuid": sa.Uuid(as_uuid=False),
    "date": _IsoDate(),
}


def _described(table: Table) -> sa.Table:
    # the rank is NULL in a row that is older than the sink, and counts as lower than all others
    marks = (sa.Column(RANK, sa.BigInteger()), sa.Column(DELETED, sa.Boolean())) if table.ranked else ()
    keys = [
        sa.Column(key.name, KEY_TYPES[key.type], primary_key=True, autoincrement=False) for key in table.key.columns
    ]
    columns = [sa.Column(column.name, _TYPES[column.type]) for column in table.contents.columns]
    return sa.Table(table.name, sa.MetaData(), *keys, *columns, *marks, schema=table.schema)


def _at(described: sa.Table, table: Table) -> list[sa.ColumnElement[bool]]:
    """Return the condition on a row's key; its parameters are ``at_`` and the names of the key's columns."""
    return [described.c[key] == sa.bindparam(f"at_{key}") for key in table.keys]


def _ranks(connection: sa.Connection, described: sa.Table, table: Table, rows: Sequence[Row]) -> dict[Row, int]:
    """Read the ranks of existing rows, by key; 0 in a table without ranks."""
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


def _passes_on(dialect: sa.Dialect, url: sa.URL, option: str) -> bool:
    """Return whether a dialect uses an option of a URL."""
    try:
        return dialect.create_connect_args(url) != dialect.create_connect_args(url.difference_update_query([option]))
    except (TypeError, ValueError, sa.exc.ArgumentError) as error:
        raise SinkConfigurationError(f"{URL_OPTION}: option {option!r}: {type(error).__name__}") from None


def _older(now: Mapping[Row, int], table: Table, rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are missing, or have a lower rank than they should."""
    width = len(table.keys)
    return [row for row in rows if row[:width] not in now or (table.ranked and now[row[:width]] < row[-2])]


def _probe(table: Table, text: str) -> dict[str, Any]:
    """Return a key that no row has."""
    number = secrets.randbits(31)
    identity = f"{secrets.token_hex(4)}-0000-4000-8000-{secrets.token_hex(6)}"
    values = {"text": text, "integer": number, "uuid": identity, "date": "9999-12-31"}
    return {key.name: values[key.type] for key in table.key.columns}
