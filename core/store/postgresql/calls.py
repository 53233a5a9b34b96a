"""One call to a PostgreSQL server: its arguments, its answer, and the meaning of its errors."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.rows import tuple_row

from export_queue.core.postgresql_connection import BoundedConnection
from export_queue.core.store.dialect import Handle, Writes
from export_queue.core.store.postgresql import errors as errors
from export_queue.core.store.postgresql.arrays import (
    NO_BIGINTS,
    NO_BYTEAS,
    NO_INTS,
    BigintArray,
    ByteaArray,
    IntArray,
)


def raw(connection: Handle) -> psycopg.Connection[Any]:
    """Return the driver's connection."""
    found = connection.connection.driver_connection if isinstance(connection, sa.Connection) else connection
    assert isinstance(found, psycopg.Connection)
    return found


def rows(connection: Handle, statement: bytes, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run a statement and fetch all of its rows, in binary form."""
    with Translated(), _cursor(connection) as cursor:
        return cursor.execute(statement, arguments, binary=True).fetchall()


def one(connection: Handle, statement: bytes, arguments: Sequence[Any] = ()) -> tuple[Any, ...]:
    """Run a statement that gives one row."""
    session = raw(connection)
    if not isinstance(session, BoundedConnection):  # a user's own
        (row,) = rows(connection, statement, arguments)
        return row
    with Translated():
        (row,) = session.single.execute(statement, arguments).fetchall()
    return row


def run(connection: Handle, statement: bytes, arguments: Sequence[Any] = ()) -> None:
    """Run a statement that gives no rows."""
    with Translated(), _cursor(connection) as cursor:
        cursor.execute(statement, arguments)


def _cursor(connection: Handle) -> psycopg.Cursor[tuple[Any, ...]]:
    """Make a cursor of the driver's plain kind: a user's connection may make others (Django's binds in the client)."""
    return psycopg.Cursor(raw(connection), row_factory=tuple_row)


class Translated:
    """A block whose errors, of the functions and of the connection, come out as this library's."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Nothing: only the end counts."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, psycopg.Error):
            return
        refusal = errors.refusal(error)
        if refusal is None and errors.is_transient(error):
            refusal = errors.unavailable(error)
        if refusal is not None:
            raise refusal from error


def cells(notifications: Sequence[tuple[int, bytes, bytes]]) -> tuple[BigintArray, ByteaArray, ByteaArray]:
    """Turn rows of table, row and column into columns."""
    if not notifications:
        return NO_BIGINTS, NO_BYTEAS, NO_BYTEAS
    tables, row_keys, columns = zip(*notifications, strict=True)
    return BigintArray.of(tables), ByteaArray.of(row_keys), ByteaArray.of(columns)


def columns(writes: Writes) -> list[BigintArray | IntArray | ByteaArray]:
    """Turn keys, cells and entries into columns, as the functions take them."""
    found: list[BigintArray | IntArray | ByteaArray] = [ByteaArray.of(writes.keys) if writes.keys else NO_BYTEAS]
    if writes.cells:
        tables, row_keys, column_keys, values = zip(*writes.cells, strict=True)
        found += (BigintArray.of(tables), ByteaArray.of(row_keys), ByteaArray.of(column_keys), ByteaArray.of(values))
    else:
        found += (NO_BIGINTS, NO_BYTEAS, NO_BYTEAS, NO_BYTEAS)
    if writes.entries:
        queues, layouts, buckets, keys, payloads = zip(*writes.entries, strict=True)
        found += (BigintArray.of(queues), IntArray.of(layouts), IntArray.of(buckets))
        found += (ByteaArray.of(keys), ByteaArray.of(payloads))
    else:
        found += (NO_BIGINTS, NO_INTS, NO_INTS, NO_BYTEAS, NO_BYTEAS)
    return found
