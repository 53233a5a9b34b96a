"""The baseline of transactions: the outbox as people write it, on the driver itself.

``BEGIN``, a row into a business table, a row into an outbox table, ``COMMIT``: prepared statements, one connection
kept open, full durability, in the same database as the store. Where a transaction reads first, it locks what it read.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence

import orjson
import psycopg

Step = Callable[[int], None]
"""One transaction; given a number to make its keys from."""

ROWS = 10_000
"""Rows of the business table, all there from the beginning."""
VALUE = {"status": "paid", "total": 1234, "note": "x" * 60}
"""What an entry of the outbox, and of a queue, carries."""

_SQLITE = (
    "create table if not exists business (id text primary key, status blob)",
    "create table if not exists outbox (id integer primary key, key text, value text)",
)
_POSTGRES = (
    "create table if not exists business (id text primary key, status bytea)",
    "create table if not exists outbox (id bigserial primary key, key text, value text)",
)
_FILL = "insert into business values ({p}, {p})"
_READ = "select status from business where id = {p}"
_UPSERT = "insert into business values ({p}, {p}) on conflict (id) do update set status = excluded.status"
_APPEND = "insert into outbox (key, value) values ({p}, {p})"


def status_of(number: int) -> bytes:
    """Return what a row of the business table, or a cell, carries: SQLite writes no page whose bytes stay the same."""
    return b"paid" * 20 + b"%016d" % number


def key_of(number: int) -> str:
    """Spread numbers over the keys of the business table."""
    return f"order-{number * 7919 % ROWS}"


def all_keys() -> Sequence[str]:
    """All keys of the business table."""
    return [key_of(number) for number in range(ROWS)]


def create(url: str) -> None:
    """Create the two tables and fill the business table."""
    rows = [(key, status_of(0)) for key in all_keys()]
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(_path(url), isolation_level=None)) as connection:
            for table in _SQLITE:
                connection.execute(table)
            connection.execute("begin immediate")
            connection.executemany(_FILL.format(p="?"), rows)
            connection.execute("commit")
        return
    with psycopg.connect(_dsn(url)) as postgres:
        for table in _POSTGRES:
            postgres.execute(table)
        postgres.cursor().executemany(_FILL.format(p="%s"), rows)


@contextlib.contextmanager
def outbox(url: str, *, reads: bool = False) -> Iterator[Step]:
    """Give a function that runs one transaction of the outbox."""
    with (_on_sqlite if url.startswith("sqlite") else _on_postgres)(url, reads) as step:
        yield step


@contextlib.contextmanager
def _on_sqlite(url: str, reads: bool) -> Iterator[Step]:
    with contextlib.closing(sqlite3.connect(_path(url), timeout=60, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        read, upsert, append = (statement.format(p="?") for statement in (_READ, _UPSERT, _APPEND))
        execute = connection.execute

        def step(number: int) -> None:
            key = key_of(number)
            execute("begin immediate")
            if reads:
                execute(read, (key,)).fetchone()
            execute(upsert, (key, status_of(number)))
            execute(append, (key, orjson.dumps(VALUE).decode()))
            execute("commit")

        yield step


@contextlib.contextmanager
def _on_postgres(url: str, reads: bool) -> Iterator[Step]:
    with psycopg.connect(_dsn(url), prepare_threshold=0) as connection, connection.cursor() as cursor:
        read, upsert, append = (statement.format(p="%s") for statement in (_READ + " for update", _UPSERT, _APPEND))

        def step(number: int) -> None:
            key = key_of(number)
            if reads:
                cursor.execute(read, (key,)).fetchone()
            cursor.execute(upsert, (key, status_of(number)))
            cursor.execute(append, (key, orjson.dumps(VALUE).decode()))
            connection.commit()

        yield step


def _path(url: str) -> str:
    return url.removeprefix("sqlite:///")


def _dsn(url: str) -> str:
    return url.replace("+psycopg", "")
