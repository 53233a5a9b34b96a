"""A copy of a SQLite store that is in use. The copy gets its name only once it is complete."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from export_queue.core.errors import InvalidArgument, StoreError
from export_queue.core.store.creation import identity_of
from export_queue.core.store.database import Database
from export_queue.core.store.sqlite import statements as sql
from export_queue.core.store.sqlite.file import StoreFile, explain

_PAGES = 1024
"""Pages of one step, after which progress is reported."""
_BESIDE = ("", "-wal", "-shm", "-journal")
"""SQLite would treat such files next to a copy as a part of it."""


def back_up(database: Database, target: Path, on_progress: Callable[[int, int], None]) -> int:
    """Copy everything that is committed at this moment into a new file, and return its bytes.

    The copy contains no transactions in progress: one that a process continued after a restore would commit without
    what it has staged since the backup.

    :param target: the file; it must not exist.
    :param on_progress: called repeatedly with the copied bytes and their total.
    :raises InvalidArgument: the store is on a server, which has its own tools.
    :raises StoreError: the file exists, its folder does not, or it cannot be written.
    """
    file = database.dialect.file
    if file is None:
        raise InvalidArgument(
            "a store on PostgreSQL is backed up with its database, by pg_basebackup or pg_dump",
            hint="docs/backups.md says under 'Backups' what a backup needs",
        )
    identity_of(database)
    folder = target.parent
    if not folder.is_dir():
        raise StoreError(f"backup {target}: there is no folder {folder}", hint="create the folder")
    for beside in _BESIDE:
        _require_free(Path(f"{target}{beside}"))
    try:
        with _partial(target) as partial:
            _copy(file, partial, on_progress)
            _sync(partial)
            _name(partial, target)
        _sync(folder)
    except sqlite3.Error as error:
        raise explain(error, f"{file.url} or its backup {target}") or error from error
    except OSError as error:
        raise StoreError(f"backup {target}: {error.strerror}") from error
    return target.stat().st_size


@contextlib.contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """Make a file next to the target that only this user may read, and remove it at the end."""
    number, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)
    os.close(number)
    partial = Path(name)
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _copy(file: StoreFile, partial: Path, on_progress: Callable[[int, int], None]) -> None:
    with (
        contextlib.closing(file.connect()) as source,
        contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as copy,
    ):
        # One reading transaction for all steps: otherwise a commit between two steps would restart the copy.
        source.execute("begin")
        size = int(source.execute("select page_size from pragma_page_size, xq_store").fetchone()[0])
        # An incomplete copy is deleted, so nothing needs a rollback, and all of it is flushed at the end.
        copy.execute("pragma synchronous = off")
        copy.execute("pragma journal_mode = off")
        source.backup(
            copy, pages=_PAGES, progress=lambda status, left, pages: on_progress((pages - left) * size, pages * size)
        )
        copy.execute("pragma journal_mode = off")  # the copy has the store's mode, a separate log
        for statement in sql.END_ALL:
            copy.execute(statement)
    partial.chmod(Path(file.path).stat().st_mode & 0o777)


def _name(partial: Path, target: Path) -> None:
    """Give the complete copy its name, unless another file was created under it meanwhile."""
    try:
        target.hardlink_to(partial)
    except FileExistsError:
        _require_free(target)
        raise
    except OSError:  # a file system without links
        _require_free(target)
        partial.rename(target)


def _require_free(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise StoreError(f"backup {path}: the file exists", hint="name a new file, or remove this one first")


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
