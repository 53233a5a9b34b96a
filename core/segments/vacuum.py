"""Deleting files that no entry needs any more.

A file goes when its transaction has ended, committed or not, no segment refers to it, and a grace time has passed since
a run has first found it so: it was drained by all, or was never staged. Before its end a transaction may stage any of
its files; after it, none. As long as the end is not known for good, that is while an active or an invalid id is there,
no file of it is touched.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from export_queue.core.errors import ExportQueueError
from export_queue.core.segments.files import delete_file, delete_folder, list_files
from export_queue.core.store import Database, queries

log = logging.getLogger("export_queue.segments")

GRACE_SECONDS = 3600.0
"""How long a file stays to which nothing refers.

Longer than a drain goes on with a plan that names it, or than the list of an object store lags behind; short enough for
a queue of 100 GB an hour, which needs room for what was drained in this time and since the last clean-up."""
ZOMBIE_SECONDS = 24 * 3600.0
"""How long after the end of a transaction an attempt of its tasks may still write files that nobody knows."""
HIDDEN_SECONDS = 24 * 3600.0
"""How long the inputs of a compaction are kept, unless what stands for them is drained before."""
_LOADS = 100
"""Transactions that one statement reads."""


@dataclass(frozen=True, slots=True)
class UnusedFile:
    """A file to which nothing refers, in its grace time."""

    file: str
    seconds: float
    """How long it stays at least."""


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What one run did, or would do."""

    deleted: tuple[str, ...]
    """Files that were deleted; in a dry run those that would be."""
    waiting: tuple[UnusedFile, ...]
    """Files that go once their grace time is over."""
    more: bool
    """Whether it came to its limit."""

    @property
    def files(self) -> int:
        """How many files were deleted."""
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
    """Delete the files of ended transactions to which no segment refers; safe beside everything, and to interrupt.

    A filesystem that does not answer ends nothing: the next run looks at the same transactions again.

    :param limit: most transactions that are looked at.
    :param grace_seconds: for so long a file stays after a run has first found that nothing refers to it.
    :param zombie_seconds: for so long after its end, by the store's clock, a transaction's folder is looked at.
    :param hidden_seconds: for so long a segment is kept for which a merged one stands; 0 keeps none, whatever its age.
    :param aged_to_ms: the time to which ages count, where the store's clock is not trusted; 0 makes nothing old, and
        corrects no time.
    :param dry_run: only say which files would be deleted; nothing is written, and nobody waits.
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


@dataclass(frozen=True, slots=True)
class Unused:
    """What to do with the files of a transaction to which nothing refers."""

    since: Mapping[str, int]
    """Each file, and since when nothing refers to it, in milliseconds of the store's clock."""
    due: tuple[str, ...]
    waiting: tuple[UnusedFile, ...]


def sort_unused(
    files: Collection[str], known: Mapping[str, int], *, now_ms: int, aged_to_ms: int, grace_seconds: float
) -> Unused:
    """Tell the files that go from those that are in their grace time.

    :param files: files to which nothing refers.
    :param known: since when, of those that an earlier run has found; a time of the future becomes now.
    :param aged_to_ms: the time to which ages count; 0 corrects no time, since the clock may be behind.
    """
    since = {file: known.get(file, now_ms) for file in files}
    if aged_to_ms:
        since = {file: min(at, now_ms) for file, at in since.items()}
    left = {file: grace_seconds - max(0, aged_to_ms - at) / 1000 for file, at in since.items()}
    return Unused(
        since=since,
        due=tuple(file for file, seconds in left.items() if seconds <= 0),
        waiting=tuple(UnusedFile(file, seconds) for file, seconds in left.items() if seconds > 0),
    )


class _Run:
    def __init__(
        self,
        database: Database,
        grace_seconds: float,
        zombie_seconds: float,
        hidden_seconds: float,
        aged_to_ms: int | None,
    ) -> None:
        self._database = database
        self._grace_seconds = grace_seconds
        self._zombie_seconds = zombie_seconds
        self._hidden_seconds = hidden_seconds
        self._aged_to_ms = aged_to_ms
        self._deleted: list[str] = []
        self._waiting: list[UnusedFile] = []

    def hidden_before(self, now_ms: int) -> int:
        aged_to_ms = self.aged_to(now_ms) if self._hidden_seconds > 0 else now_ms
        return aged_to_ms - int(self._hidden_seconds * 1000)

    def aged_to(self, now_ms: int) -> int:
        return now_ms if self._aged_to_ms is None else min(self._aged_to_ms, now_ms)

    def report(self, *, more: bool) -> Vacuumed:
        return Vacuumed(tuple(self._deleted), tuple(self._waiting), more)

    def vacuum(self, load: Mapping[str, Any]) -> None:
        transaction, folder = load["transaction_id"], load["folder"]
        with self._database.begin() as work:
            queries.vacuum.delete_unread(work, transaction)
            queries.vacuum.note_end(work, transaction)
            needed = queries.vacuum.files(work, transaction)
            known = queries.vacuum.unused_since(work, [transaction])
            now_ms = work.now()
        try:
            unused = self._sorted(folder, needed, known, now_ms)
            self._note(transaction, known, unused)
            for file in unused.due:
                delete_file(file)
                self._deleted.append(file)
            self._waiting += unused.waiting
            ended_ms = load["ended_ms"]
            over = ended_ms is not None and self.aged_to(now_ms) - ended_ms >= self._zombie_seconds * 1000
            if over and not needed and not unused.waiting:
                delete_folder(folder)
                with self._database.begin() as work:
                    queries.vacuum.forget(work, transaction)
        except ExportQueueError as error:
            log.warning("files of transaction %s in %s were not deleted: %s", transaction, folder, error.message)

    def foretell(self, loads: list[Mapping[str, Any]]) -> None:
        """Say what :meth:`vacuum` would do behind the deletions of a run, and write nothing."""
        numbers = [load["transaction_id"] for load in loads]
        with self._database.read() as work:
            now_ms = work.now()
            needed = queries.vacuum.files_kept(work, numbers, before_ms=self.hidden_before(now_ms))
            known = queries.vacuum.unused_since(work, numbers)
        for load in loads:
            try:
                unused = self._sorted(load["folder"], needed, known, now_ms)
            except ExportQueueError as error:
                log.warning("files in %s cannot be listed: %s", load["folder"], error.message)
            else:
                self._deleted += unused.due
                self._waiting += unused.waiting

    def _sorted(self, folder: str, needed: Collection[str], known: Mapping[str, int], now_ms: int) -> Unused:
        files = [file for file in list_files(folder) if file not in needed]
        aged_to_ms = self.aged_to(now_ms)
        return sort_unused(files, known, now_ms=now_ms, aged_to_ms=aged_to_ms, grace_seconds=self._grace_seconds)

    def _note(self, transaction: int, known: Mapping[str, int], unused: Unused) -> None:
        """Note what is new before anything is deleted: a run that is killed leaves to the next what it has found."""
        since = {file: at for file, at in unused.since.items() if known.get(file) != at}
        gone = known.keys() - unused.since.keys()
        if since or gone:
            with self._database.begin() as work:
                queries.vacuum.note_unused(work, transaction, since=since, gone=gone)
