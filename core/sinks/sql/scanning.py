"""Reads the rows of the sink's tables back, in one normal form for all databases."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import orjson
import sqlalchemy as sa

from export_queue.core.sinks.json_texts import normal_decimal, normal_json
from export_queue.core.sinks.protocol import StoredRecords
from export_queue.core.sinks.sql.dialects.generic import KEY_TYPES
from export_queue.core.sinks.sql.rows import Rows
from export_queue.core.sinks.sql.sweep import beyond
from export_queue.core.sinks.sql.tables import DELETED, RANK, Column, Contents, Key, Table

PAGE = 5000
"""Rows that one transaction reads."""
_AT_ONCE = 200
"""Values that one statement looks up."""
_TRUE = ("t", "true", "y", "yes", "on", "1")

_Result = TypeVar("_Result")
Run = Callable[[Callable[[sa.Connection], _Result]], _Result]


def exists(connection: sa.Connection, table: Table) -> bool:
    """Return whether a table exists."""
    return bool(sa.inspect(connection).has_table(table.name, schema=table.schema))


def scan_table(run: Run[Any], table: Table) -> Iterator[StoredRecords]:
    """Read a table by pages of its key, each in its own transaction."""
    after: sa.Row[Any] | None = None
    while True:

        def page(connection: sa.Connection) -> Sequence[sa.Row[Any]]:
            described = _described(connection, table)
            keys = [described.c[key] for key in table.keys]
            rest = [] if after is None else [beyond(keys, after[: len(keys)], upwards=True)]  # noqa: B023
            return connection.execute(
                _select(connection, described, table).where(*rest).order_by(*keys).limit(PAGE)
            ).all()

        rows = run(page)
        if rows:
            yield _records(table, rows)
        if len(rows) < PAGE:
            return
        after = rows[-1]


def look_up(run: Run[Any], table: Table, keys: Sequence[tuple[Any, ...]]) -> StoredRecords:
    """Read the rows of some keys; of those that exist."""

    def read(connection: sa.Connection) -> list[sa.Row[Any]]:
        described, found = _described(connection, table), list[sa.Row[Any]]()
        columns = [described.c[key] for key in table.keys]
        step = max(1, _AT_ONCE // len(columns))
        for start in range(0, len(keys), step):
            wanted = [
                sa.and_(*(column == value for column, value in zip(columns, key, strict=True)))
                for key in keys[start : start + step]
            ]
            found += connection.execute(_select(connection, described, table).where(sa.or_(*wanted))).all()
        return found

    return _records(table, run(read) if keys else [])


def _described(connection: sa.Connection, table: Table) -> sa.TableClause:
    # PostgreSQL compares a key with a text only if its type is said; SQLite and MySQL store all these as they are sent
    is_typed = connection.dialect.name not in ("sqlite", "mysql", "mariadb")
    keys = [sa.column(key.name, KEY_TYPES[key.type] if is_typed else None) for key in table.key.columns]
    columns: list[sa.ColumnClause[Any]] = [sa.column(column.name) for column in table.contents.columns]
    marks: list[sa.ColumnClause[Any]] = [sa.column(RANK, sa.BigInteger()), sa.column(DELETED, sa.Boolean())]
    return sa.table(table.name, *keys, *columns, *(marks if table.ranked else ()), schema=table.schema)


def _select(connection: sa.Connection, described: sa.TableClause, table: Table) -> sa.Select[Any]:
    is_postgresql = connection.dialect.name == "postgresql"
    columns = [
        # as text, in which no digit of a number is lost
        sa.cast(described.c[column.name], sa.Text)
        if is_postgresql and column.type == "json"
        else described.c[column.name]
        for column in table.contents.columns
    ]
    marks = [described.c[RANK], described.c[DELETED]] if table.ranked else []
    return sa.select(*(described.c[key] for key in table.keys), *columns, *marks)


def _records(table: Table, rows: Sequence[sa.Row[Any]]) -> StoredRecords:
    width, contents = len(table.keys), table.contents
    mark = table.key.mark
    ids, ranks, documents = [], [], []
    for row in map(tuple, rows):
        key = tuple(map(_key_value, row[:width], table.key.columns))
        if key == mark:
            continue  # the sink's own row
        ids.append(id_of(key, table.key))
        ranks.append(-1 if not table.ranked or row[-2] is None else int(row[-2]))
        is_gone = table.ranked and bool(row[-1])
        documents.append(None if is_gone else document_of(row[width : width + len(contents.columns)], contents))
    return StoredRecords([table.name] * len(ids), ids, ranks, documents)


def rendered(table: Table, rows: Rows) -> StoredRecords:
    """Return rows as they are read back."""
    keys = zip(*rows.keys, strict=True)
    ids = [id_of(tuple(map(_key_value, key, table.key.columns)), table.key) for key in keys]
    documents = [
        None if gone else document_of(values, table.contents)
        for gone, *values in zip(rows.deleted, *rows.values, strict=True)
    ]
    ranks = rows.ranks if table.ranked else [-1] * len(ids)
    return StoredRecords([table.name] * len(ids), ids, ranks, documents)


def id_of(values: tuple[Any, ...], key: Key) -> bytes:
    """Return the id whose key has these values."""
    return str(values[0]).encode() if len(key.columns) == 1 else orjson.dumps(values)


def _key_value(value: Any, column: Column) -> str | int:
    if isinstance(value, bytes):
        value = value.decode()
    if column.type == "integer":
        return int(value)
    if column.type == "uuid":
        return str(uuid.UUID(str(value)))
    return value.isoformat()[:10] if isinstance(value, date) else str(value)


def document_of(values: Sequence[Any], contents: Contents) -> bytes:
    """Return the normal form of a document from the values of its columns."""
    if contents.whole and contents.columns[0].type == "text":
        return _text(values[0]).encode() if values[0] is not None else b""
    normal = [_normal(value, column) for value, column in zip(values, contents.columns, strict=True)]
    return orjson.dumps(normal)


def _normal(value: Any, column: Column) -> str | None:
    if value is None:
        return None
    try:
        return _NORMAL[column.type](value)
    except (ValueError, InvalidOperation):  # a notation that only the database reads
        return f"\0{_text(value)}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _decimal(value: Any) -> str:
    return normal_decimal(Decimal(repr(value) if isinstance(value, float) else _text(value).strip()))


def _real(value: float) -> str:
    return repr(value or 0.0)  # not every database keeps the sign of zero


def _boolean(value: Any) -> str:
    return str(_text(value).strip().lower() in _TRUE)


def _json(value: Any) -> str:
    return normal_json(value if isinstance(value, str | bytes) else orjson.dumps(value)).decode(
        "utf-8", "surrogatepass"
    )


def _moment(value: Any) -> str:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(_text(value))
    return (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)).isoformat()


_NORMAL: Mapping[str, Callable[[Any], str]] = {
    "text": _text,
    "integer": lambda value: str(int(value if isinstance(value, int) else _text(value))),
    "real": lambda value: _real(float(value if isinstance(value, int | float | Decimal) else _text(value))),
    "numeric": _decimal,
    "boolean": _boolean,
    "json": _json,
    "timestamp": _moment,
}
"""How each type of a column is compared, whatever type the driver gives or takes."""
