"""Calls to a PostgreSQL server: arguments, answers and errors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import psycopg
import sqlalchemy as sa
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row

from export_queue.core.postgresql_arrays import (
    NO_BIGINTS,
    NO_BYTEAS,
    PLAIN,
    BigintArray,
    ByteaArray,
    Packed,
)
from export_queue.core.postgresql_connection import BoundedConnection, Prepared
from export_queue.core.store.postgresql import errors as errors
from export_queue.core.store.postgresql.connection import is_idle, may_prepare
from export_queue.core.store.seams import Handle, Writes

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

INT = struct.Struct(">i")
BIGINT = struct.Struct(">q")


def raw(connection: Handle) -> psycopg.Connection[Any]:
    """Return the driver's connection."""
    found = connection.connection.driver_connection if isinstance(connection, sa.Connection) else connection
    assert isinstance(found, psycopg.Connection)
    return found


def rows(connection: Handle, statement: bytes, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run a statement and fetch all of its rows, in binary form."""
    with Translated(), _cursor(connection) as cursor:
        return cursor.execute(statement, arguments, prepare=_prepares(connection), binary=True).fetchall()


def one(connection: Handle, statement: bytes, arguments: Sequence[Any] = ()) -> tuple[Any, ...]:
    """Run a statement that returns one row."""
    session = raw(connection)
    if not isinstance(session, BoundedConnection):  # a user's own
        (row,) = rows(connection, statement, arguments)
        return row
    with Translated():
        (row,) = session.single.execute(statement, arguments).fetchall()
    return row


def ask(connection: Handle, statement: Prepared, values: Sequence[bytes | None]) -> PGresult:
    """Run one of the few statements of short transactions.

    Through the driver's cursor (medians of pairs), a transaction that reads one cell takes 1.42 times as long, and one
    that reads and writes 1.25 times without flushes.

    :param values: the arguments, packed in binary form.
    :returns: the answer in binary form.
    """
    session = connection if isinstance(connection, BoundedConnection) else raw(connection)
    try:
        if isinstance(session, BoundedConnection) and may_prepare(session) and is_idle(session):
            return session.call(statement, values)
        with _PlainRawCursor(session, row_factory=tuple_row) as cursor:
            packed = [None if value is None else Packed(value) for value in values]
            cursor.execute(statement.text, packed, prepare=False, binary=True)
            cursor.fetchone()  # in a user's pipeline the answer comes now
            answer = cursor.pgresult
        assert answer is not None
        return answer
    except psycopg.Error as error:
        translated = errors.translated(error)
        if translated is None:
            raise
        raise translated from error


def run(connection: Handle, statement: bytes, arguments: Sequence[Any] = ()) -> None:
    """Run a statement that returns no rows."""
    with Translated(), _cursor(connection) as cursor:
        cursor.execute(statement, arguments, prepare=_prepares(connection))


class _PlainAdapters:
    """Makes a cursor send and read values in our way, whatever its connection's user has registered."""

    __slots__ = ()

    @property
    def adapters(self) -> AdaptersMap:
        return PLAIN


class _PlainCursor(_PlainAdapters, psycopg.Cursor[tuple[Any, ...]]):
    __slots__ = ()


class _PlainRawCursor(_PlainAdapters, psycopg.RawCursor[tuple[Any, ...]]):
    __slots__ = ()


def _cursor(connection: Handle) -> psycopg.Cursor[tuple[Any, ...]]:
    """Make a plain cursor. A user's connection may make others (Django's binds arguments in the client)."""
    return _PlainCursor(raw(connection), row_factory=tuple_row)


def _prepares(connection: Handle) -> bool | None:
    """Let the driver decide on our sessions. On a user's session nothing is prepared, since the user may drop it."""
    return None if isinstance(raw(connection), BoundedConnection) else False


class Translated:
    """Translates errors of the functions and of the connection in a block."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        translated = errors.translated(error) if isinstance(error, psycopg.Error) else None
        if translated is not None:
            raise translated from error


def cells(notifications: Sequence[tuple[int, bytes, bytes]]) -> tuple[BigintArray, ByteaArray, ByteaArray]:
    """Turn rows of table, row and column into columns."""
    if not notifications:
        return NO_BIGINTS, NO_BYTEAS, NO_BYTEAS
    tables, row_keys, columns = zip(*notifications, strict=True)
    return BigintArray.of(tables), ByteaArray.of(row_keys), ByteaArray.of(columns)


def columns(writes: Writes) -> list[BigintArray | ByteaArray]:
    """Turn keys, cells and entries into columns, as the functions take them."""
    found: list[BigintArray | ByteaArray] = [ByteaArray.of(writes.keys) if writes.keys else NO_BYTEAS]
    if writes.cells:
        tables, row_keys, column_keys, values = zip(*writes.cells, strict=True)
        found += (BigintArray.of(tables), ByteaArray.of(row_keys), ByteaArray.of(column_keys), ByteaArray.of(values))
    else:
        found += (NO_BIGINTS, NO_BYTEAS, NO_BYTEAS, NO_BYTEAS)
    if writes.entries:
        queues, hashes, keys, payloads = zip(*writes.entries, strict=True)
        found += (BigintArray.of(queues), BigintArray.of(hashes), ByteaArray.of(keys), ByteaArray.of(payloads))
    else:
        found += (NO_BIGINTS, NO_BIGINTS, NO_BYTEAS, NO_BYTEAS)
    return found
