"""Bound transactions in a SQLite file: the user's own connection."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

import sqlalchemy as sa

from export_queue.core.store.sqlite.writing import LentConnection, begin_own


@contextlib.contextmanager
def _lent(raw: sqlite3.Connection) -> Iterator[sa.Connection]:
    """Run SQLAlchemy's statements in the user's SQL transaction."""
    engine = sa.create_engine("sqlite://", creator=lambda: LentConnection(raw), poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield connection


class SqliteUserConnections:
    """Connections that their users have set up, for bound transactions.

    A cursor cannot override the connection's text factory, and the user's SQL transaction holds the write lock.
    """

    @contextlib.contextmanager
    def plainly(self, raw: object) -> Iterator[None]:
        """Make a connection return values as its driver does by default, for a block."""
        assert isinstance(raw, sqlite3.Connection)
        kept = (raw.row_factory, raw.text_factory)
        raw.row_factory, raw.text_factory = None, str
        try:
            yield
        finally:
            raw.row_factory, raw.text_factory = kept

    def lend(self, raw: object) -> contextlib.AbstractContextManager[sa.Connection]:
        """Lend the connection for a write that would wait for the user's commit on any other connection."""
        assert isinstance(raw, sqlite3.Connection)
        begin_own(raw)
        return _lent(raw)
