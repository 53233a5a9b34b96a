"""A copy of a store, as far as the store itself makes one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from export_queue.core.errors import InvalidArgument
from export_queue.core.store.creation import identity_of
from export_queue.core.store.database import Database
from export_queue.core.store.sqlite import backup


def back_up(database: Database, target: Path, on_progress: Callable[[int, int], None]) -> int:
    """Copy everything that is committed at this moment into a new file, and return its bytes.

    :param on_progress: called repeatedly with the bytes that are copied, and with their total.
    :raises InvalidArgument: the store is on a server, which has its own tools.
    :raises StoreError: the file exists, or cannot be written.
    """
    file = database.dialect.file
    if file is None:
        raise InvalidArgument(
            "a store on PostgreSQL is backed up with its database, by pg_basebackup or pg_dump",
            hint="docs/backups.md says under 'Backups' what a backup needs",
        )
    identity_of(database)
    return backup.back_up(file, target, on_progress)
