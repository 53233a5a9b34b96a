"""A store in a file of SQLite: its seams."""

from __future__ import annotations

from export_queue.core.store.registration import floor_refused
from export_queue.core.store.seams import Administration, Clock, Dialect, Handle
from export_queue.core.store.sqlite import statements as sql
from export_queue.core.store.sqlite.connection import SqliteDriver, SqliteUserConnections, raw_of
from export_queue.core.store.sqlite.file import StoreFile
from export_queue.core.store.sqlite.transactions import SqliteSteps


class SqliteAdministration(Administration):
    """Creates the triggers by which a process knows that the ids which it has read are still those of the store."""

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
