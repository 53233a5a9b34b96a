"""What a store has of one kind of database: an implementation of each seam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from export_queue.core.store.seams import Administration, Driver, LockSteps, TransactionSteps, WakeUps

if TYPE_CHECKING:
    from export_queue.core.store.postgresql.administration import PostgresServer
    from export_queue.core.store.sqlite.file import StoreFile
    from export_queue.core.store.sqlite.user_connections import SqliteUserConnections


@dataclass(slots=True, kw_only=True)
class Dialect:
    """The seams of one database. A seam that is None names something that this kind of database does not need."""

    name: str
    driver: Driver
    steps: TransactionSteps
    administration: Administration
    locks: LockSteps | None = None
    """None where there is one writer at a time: its SQL transaction locks everything."""
    wake_ups: WakeUps | None = None
    """None where commits wake nobody: followers poll."""
    user_connections: SqliteUserConnections | None = None
    """None where the connections of users can be used as they are."""
    server: PostgresServer | None = None
    """None where the store is a file."""
    file: StoreFile | None = None
    """The file that is the store. No process may inherit its locks."""
