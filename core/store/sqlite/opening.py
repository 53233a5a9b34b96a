"""The seams of a store in a SQLite file."""

from __future__ import annotations

import sqlite3
from typing import ClassVar

from export_queue.core.errors import StoreError
from export_queue.core.store.dialect import Dialect
from export_queue.core.store.registration import floor_refused
from export_queue.core.store.seams import Administration, Clock, Driver, Handle
from export_queue.core.store.sqlite import statements as sql
from export_queue.core.store.sqlite.file import StoreConnection, StoreFile, explain
from export_queue.core.store.sqlite.transactions import SqliteSteps
from export_queue.core.store.sqlite.user_connections import SqliteUserConnections
from export_queue.core.store.sqlite.writing import raw_of


class SqliteDriver(Driver):
    """The driver of Python's standard library."""

    error: ClassVar[type[Exception]] = sqlite3.Error

    def is_idle(self, raw: object) -> bool:
        try:
            return isinstance(raw, StoreConnection) and raw.is_clean
        except sqlite3.ProgrammingError:  # closed
            return False

    is_alive = is_idle

    def is_missing_table(self, error: BaseException) -> bool:
        return "no such table: xq_" in str(error)

    def explain(self, error: BaseException, url: str) -> StoreError | None:
        return explain(error, url)


class SqliteAdministration(Administration):
    """Creates the triggers that show a process whether the ids which it has read are still valid."""

    def create(self, connection: Handle) -> None:
        raw = raw_of(connection)
        for statement in sql.TRIGGERS:
            raw.execute(statement)

    def last_id(self, connection: Handle) -> int:
        return int(raw_of(connection).execute(sql.LAST_ID).fetchone()[0])

    def set_floor(self, connection: Handle, floor: int) -> None:
        raw = raw_of(connection)
        if raw.execute(sql.KEEPS_FROM_FLOOR, (floor,)).fetchone() is not None:
            raise floor_refused(floor)
        raw.execute(sql.SET_FLOOR, (floor,))


def open_dialect(file: StoreFile, clock: Clock) -> Dialect:
    """Make the seams of a store."""
    return Dialect(
        name="sqlite",
        driver=SqliteDriver(),
        steps=SqliteSteps(file, clock),
        administration=SqliteAdministration(),
        user_connections=SqliteUserConnections(),
        file=file,
    )
