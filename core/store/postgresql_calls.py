"""One call to a PostgreSQL server: its arguments, its answer, and what its errors mean."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.rows import tuple_row

from export_queue.core.store import postgresql_errors as errors
from export_queue.core.store.protocol import Handle, Writes


def raw(connection: Handle) -> psycopg.Connection[Any]:
    """Return the driver's connection."""
    found = connection.connection.driver_connection if isinstance(connection, sa.Connection) else connection
    assert isinstance(found, psycopg.Connection)
    return found


def rows(connection: Handle, statement: bytes, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run a statement and fetch all of its rows, in binary form."""
    with translated(), raw(connection).cursor(binary=True, row_factory=tuple_row) as cursor:
        return cursor.execute(statement, arguments).fetchall()


def one(connection: Handle, statement: bytes, arguments: Sequence[Any] = ()) -> tuple[Any, ...]:
    """Run a statement that gives one row."""
    (row,) = rows(connection, statement, arguments)
    return row


def run(connection: Handle, statement: bytes, arguments: Sequence[Any] = ()) -> None:
    """Run a statement that gives no rows."""
    with translated():
        raw(connection).execute(statement, arguments)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn what the functions raise, and what may pass, into errors of ours."""
    try:
        yield
    except psycopg.Error as error:
        refusal = errors.refusal(error)
        if refusal is None:
            if errors.is_transient(error):
                raise errors.unavailable(error) from error
            raise
        raise refusal from error


def ids(numbers: Sequence[int]) -> str:
    """Write an array of numbers as text.

    psycopg gives arrays of small and of large numbers different types, and so different prepared statements.
    """
    return "{" + ",".join(map(str, numbers)) + "}"


def cells(notes: Sequence[tuple[int, bytes, bytes]]) -> tuple[Any, ...]:
    """Turn rows of table, row and column into columns."""
    tables, row_keys, columns = list(zip(*notes, strict=True)) or ((), (), ())
    return ids(tables), list(row_keys), list(columns)


def columns(writes: Writes) -> tuple[Any, ...]:
    """Turn keys, cells and entries into columns, as the functions take them."""
    written, added = list(zip(*writes.cells, strict=True)), list(zip(*writes.entries, strict=True))
    tables, row_keys, column_keys, values = written or ((), (), (), ())
    queues, layouts, buckets, keys, payloads = added or ((), (), (), (), ())
    return (
        list(writes.keys),
        ids(tables),
        list(row_keys),
        list(column_keys),
        list(values),
        ids(queues),
        ids(layouts),
        ids(buckets),
        list(keys),
        list(payloads),
    )
