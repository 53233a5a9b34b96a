"""Deleting files that are no longer needed.

A file is deleted if its transaction has ended, no segment refers to it, and a grace time has passed since a run first
found it so: all readers have drained it, or it was never staged. A transaction may stage files only before its end.
While its id is active or invalid, its end is not certain, and none of its files is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from export_queue.core.errors import ExportQueueError
from export_queue.core.segments.files import delete_file, delete_folder, list_files
from export_queue.core.store import Database, queries

log = logging.getLogger("export_queue.segments")

GRACE_SECONDS = 3600.0
"""How long an unused file is kept.

Longer than a drain uses a plan that names it, and than an object store's listing may lag; short enough for a queue of
100 GB an hour, which needs room for everything drained in this time and since the last clean-up."""
ZOMBIE_SECONDS = 24 * 3600.0
"""How long after the end of a transaction its tasks may still write files."""
HIDDEN_SECONDS = 24 * 3600.0
"""How long the inputs of a compaction are kept, unless its output is drained before."""
_LOADS = 100
"""Maximum number of transactions that one statement reads."""


@dataclass(frozen=True, slots=True)
class UnusedFile:
    """An unused file in its grace time."""

    file: str
    seconds: float
    """Minimum time until it is deleted."""


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What one run did, or would do."""

    deleted: tuple[str, ...]
    """Deleted files; in a dry run those that would be."""
    waiting: tuple[UnusedFile, ...]
    """Files to delete after their grace time."""
    more: bool
    """Whether the limit was reached."""

    @property
    def files(self) -> int:
        return len(self.deleted)


def vacuum_segments(
    database: Database,
    *,
    limit: int = 10_000,
    grace_seconds: float = GRACE_SECONDS,
    zombie_seconds: float = ZOMBIE_SECONDS,
    hidden_seconds: float = HIDDEN_SECONDS,
    aged_to_ms: int | None = None,
    dry_run: bool = False,
) -> Vacuumed:
    """Delete files of ended transactions that no segment refers to; safe at any time, and to interrupt.

    If a filesystem does not answer, the next run examines the same transactions again.

    :param limit: maximum number of transactions to examine.
    :param grace_seconds: how long an unused file is kept after a run first found it.
    :param zombie_seconds: how long after its end, by the store's clock, a transaction's folder is examined.
    :param hidden_seconds: how long a replaced segment is kept; 0 keeps none, whatever its age.
    :param aged_to_ms: the time to which ages count, if the store's clock is not trusted; 0 makes nothing old, and
        corrects no time.
    :param dry_run: only report which files would be deleted; nothing is written or locked.
    """
    run = _Run(database, grace_seconds, zombie_seconds, hidden_seconds, aged_to_ms)
    if not dry_run:
        with database.begin() as work:
            now_ms = work.now()
            queries.vacuum.correct_times(work, now_ms=now_ms, seen_by_ms=run.aged_to(now_ms))
            queries.vacuum.forget_hidden(work, before_ms=run.hidden_before(now_ms))
            queries.vacuum.forget_strays(work)
    seen = after = 0
    while seen < limit:
        with database.read() as work:
            loads = queries.vacuum.ended_loads(work, min(_LOADS, limit - seen), after=after)
        if not loads:
            return run.report(more=False)
        if dry_run:
            run.foretell(loads)
        else:
            for load in loads:
                run.vacuum(load)
        seen, after = seen + len(loads), loads[-1]["transaction_id"]
    return run.report(more=True)


@dataclass(slots=True)
class _Run:
    database: Database
    grace_seconds: float
    zombie_seconds: float
    hidden_seconds: float
    aged_to_ms: int | None
    deleted: list[str] = field(default_factory=list)
    waiting: list[UnusedFile] = field(default_factory=list)

    def hidden_before(self, now_ms: int) -> int:
        aged_to_ms = self.aged_to(now_ms) if self.hidden_seconds > 0 else now_ms
        return aged_to_ms - int(self.hidden_seconds * 1000)

    def aged_to(self, now_ms: int) -> int:
        return now_ms if self.aged_to_ms is None else min(self.aged_to_ms, now_ms)

    def report(self, *, more: bool) -> Vacuumed:
        return Vacuumed(tuple(self.deleted), tuple(self.waiting), more)

    def vacuum(self, load: Mapping[str, Any]) -> None:
        transaction, folder = load["transaction_id"], load["folder"]
        with self.database.begin() as work:
            queries.vacuum.delete_unread(work, transaction)
            queries.vacuum.note_end(work, transaction)
            needed = queries.vacuum.files(work, transaction)
            known = queries.vacuum.unused_since(work, [transaction])
            now_ms = work.now()
        try:
            since, unused = self._find_unused(folder, needed, known, now_ms)
            self._note(transaction, known, since)
            for one in unused:
                if one.seconds <= 0:
                    delete_file(one.file)
                self._report(one)
            ended_ms = load["ended_ms"]
            over = ended_ms is not None and self.aged_to(now_ms) - ended_ms >= self.zombie_seconds * 1000
            if over and not needed and all(one.seconds <= 0 for one in unused):
                delete_folder(folder)
                with self.database.begin() as work:
                    queries.vacuum.forget(work, transaction)
        except ExportQueueError as error:
            log.warning("files of transaction %s in %s were not deleted: %s", transaction, folder, error.message)

    def foretell(self, loads: list[Mapping[str, Any]]) -> None:
        """Find what :meth:`vacuum` would do, and write nothing."""
        numbers = [load["transaction_id"] for load in loads]
        with self.database.read() as work:
            now_ms = work.now()
            needed = queries.vacuum.files_kept(work, numbers, before_ms=self.hidden_before(now_ms))
            known = queries.vacuum.unused_since(work, numbers)
        for load in loads:
            try:
                _, unused = self._find_unused(load["folder"], needed, known, now_ms)
            except ExportQueueError as error:
                log.warning("files in %s cannot be listed: %s", load["folder"], error.message)
            else:
                for one in unused:
                    self._report(one)

    def _report(self, unused: UnusedFile) -> None:
        if unused.seconds <= 0:
            self.deleted.append(unused.file)
        else:
            self.waiting.append(unused)

    def _find_unused(
        self, folder: str, needed: Collection[str], known: Mapping[str, int], now_ms: int
    ) -> tuple[dict[str, int], list[UnusedFile]]:
        """Find the unused files of a folder, and the times, in the store's milliseconds, since which they are unused.

        :param known: the times of the files that earlier runs found.
        """
        aged_to_ms = self.aged_to(now_ms)
        since = {file: known.get(file, now_ms) for file in list_files(folder) if file not in needed}
        if aged_to_ms:  # otherwise the clock may be slow: no time is corrected
            since = {file: min(at, now_ms) for file, at in since.items()}
        return since, [
            UnusedFile(file, self.grace_seconds - max(0, aged_to_ms - at) / 1000) for file, at in since.items()
        ]

    def _note(self, transaction: int, known: Mapping[str, int], unused: Mapping[str, int]) -> None:
        """Record what is new before anything is deleted, so that the next run knows it if this one is killed."""
        since = {file: at for file, at in unused.items() if known.get(file) != at}
        gone = known.keys() - unused.keys()
        if since or gone:
            with self.database.begin() as work:
                queries.vacuum.note_unused(work, transaction, since=since, gone=gone)
