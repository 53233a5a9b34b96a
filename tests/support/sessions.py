"""The sessions that clients of a store have on its PostgreSQL server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import psycopg

_COUNT = """
    select count(*) from pg_stat_activity
    where datname = current_database() and application_name = 'export-queue' and backend_type = 'client backend'"""


@contextlib.contextmanager
def sessions_counted(url: str) -> Iterator[Callable[[], int]]:
    """Yield a function that counts the sessions of all clients of a store, through a connection of its own.

    :param url: of the store's database, as SQLAlchemy takes it.
    """
    with psycopg.connect(url.replace("+psycopg", "", 1), autocommit=True) as connection:

        def count() -> int:
            row = connection.execute(_COUNT).fetchone()
            assert row is not None
            return int(row[0])

        yield count
