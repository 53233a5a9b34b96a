"""Deleting files that no entry needs any more.

A file goes when its transaction has ended, committed or not, and no segment refers to it: it was drained by
all, or was never staged. Before its end a transaction may stage any of its files; after it, none. As long as the end is
not known for good, that is while an active or an invalid id is there, no file of it is touched.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export_queue.core.errors import ExportQueueError
from export_queue.core.segments.files import delete_file, delete_folder, list_files
from export_queue.core.store import Database, queries

log = logging.getLogger("export_queue.segments")

ZOMBIE_SECONDS = 24 * 3600.0
"""How long after the end of a transaction an attempt of its tasks may still write files that nobody knows."""
HIDDEN_SECONDS = 24 * 3600.0
"""How long the inputs of a compaction are kept, unless what stands for them is drained before."""
_LOADS = 100
"""Transactions that one statement reads."""


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What one run did, or would do."""

    deleted: tuple[str, ...]
    """Files that were deleted; in a dry run those that would be."""
    more: bool
    """Whether it came to its limit."""

    @property
    def files(self) -> int:
        """How many files were deleted."""
        return len(self.deleted)


class _Undo(Exception):
    """Rolls back the SQL transaction of a dry run."""


def vacuum_segments(
    database: Database,
    *,
    limit: int = 10_000,
    zombie_seconds: float = ZOMBIE_SECONDS,
    hidden_seconds: float = HIDDEN_SECONDS,
    dry_run: bool = False,
) -> Vacuumed:
    """Delete the files of ended transactions to which no segment refers; safe beside everything, and to interrupt.

    A filesystem that does not answer ends nothing: the next run looks at the same transactions again.

    :param limit: most transactions that are looked at.
    :param zombie_seconds: for so long after its end, by the store's clock, a transaction's folder is looked at.
    :param hidden_seconds: for so long a segment is kept for which a merged one stands.
    :param dry_run: only say which files would be deleted.
    """
    if dry_run:
        return _foretell(database, limit, hidden_seconds)
    with database.begin() as work:
        queries.compactions.forget_hidden(work, before_ms=work.now() - int(hidden_seconds * 1000))
    deleted: list[str] = []
    seen = after = 0
    while seen < limit:
        with database.read() as work:
            loads = queries.segments.ended_loads(work, min(_LOADS, limit - seen), after=after)
        if not loads:
            return Vacuumed(tuple(deleted), more=False)
        for load in loads:
            _vacuum(database, load, zombie_seconds, deleted)
        seen, after = seen + len(loads), loads[-1]["transaction_id"]
    return Vacuumed(tuple(deleted), more=True)


def _vacuum(database: Database, load: Mapping[str, Any], zombie_seconds: float, deleted: list[str]) -> None:
    transaction, folder = load["transaction_id"], load["folder"]
    with database.begin() as work:
        queries.segments.delete_unread(work, transaction)
        queries.segments.note_end(work, transaction)
        needed = queries.segments.files(work, transaction)
        over = load["ended_ms"] is not None and work.now() - load["ended_ms"] >= zombie_seconds * 1000
    try:
        for file in list_files(folder):
            if file not in needed:
                delete_file(file)
                deleted.append(file)
        if over and not needed:
            delete_folder(folder)
            with database.begin() as work:
                queries.segments.forget(work, transaction)
    except ExportQueueError as error:
        log.warning("files of transaction %s in %s were not deleted: %s", transaction, folder, error.message)


def _foretell(database: Database, limit: int, hidden_seconds: float) -> Vacuumed:
    """Do what a run does to the store, take it back, and say which files nothing would refer to."""
    needed: dict[str, set[str]] = {}
    with contextlib.suppress(_Undo), database.begin() as work:
        queries.compactions.forget_hidden(work, before_ms=work.now() - int(hidden_seconds * 1000))
        for load in queries.segments.ended_loads(work, limit, after=0):
            queries.segments.delete_unread(work, load["transaction_id"])
            needed[load["folder"]] = queries.segments.files(work, load["transaction_id"])
        raise _Undo
    found: list[str] = []
    for folder, kept in needed.items():
        try:
            found += [file for file in list_files(folder) if file not in kept]
        except ExportQueueError as error:
            log.warning("files in %s cannot be listed: %s", folder, error.message)
    return Vacuumed(tuple(found), more=len(needed) == limit)
