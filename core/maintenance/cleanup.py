"""One run of clean-up, with a limit for each subject.

1. End transactions that are past their deadline, and prune invalid ones.
2. Raise the horizon, in its own SQL transaction: a reader that sees a deletion sees the horizon, too.
3. Delete, page by page, versions and conflict keys below the horizon, and old outcomes, idempotency keys and records.
4. Delete files of bulk entries that are no longer needed.
5. Let the database reclaim the space.

The *horizon* is the number below which versions that no transaction reads may be deleted. Each run records a low-water
mark: the time, and the smallest id that a snapshot does not see. Marks never fall, so a snapshot that is younger than a
mark lies above it. The horizon is raised to a mark that is older than the longest time limit of short transactions: by
then every short transaction that may lie below it has passed its deadline. It is never raised above what the start of a
long transaction in progress recorded. Marks alone would be safe, since a snapshot below the horizon is refused; their
age keeps live transactions from that refusal.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from export_queue.core.errors import ExportQueueError, InvalidArgument
from export_queue.core.maintenance import pages
from export_queue.core.maintenance.pages import CELLS, KEYS, CleanPage, pages_of
from export_queue.core.queue import KEPT
from export_queue.core.segments import GRACE_SECONDS, HIDDEN_SECONDS, Vacuumed, vacuum_segments
from export_queue.core.state import trim
from export_queue.core.store import Database, queries
from export_queue.core.transactions import MAX_SHORT_SECONDS, expire, prune

log = logging.getLogger("export_queue.maintenance")

DAY = 24 * 3600.0
KEEP_ACTS = 366 * DAY
KEEP_ATTEMPTS = 30 * DAY
"""No process is still working after so long."""
VACUUM_AFTER = 20_000
"""Number of dead rows in a table after which it may be vacuumed."""
MARKS_PER_AGE = 60
"""Maximum number of low-water marks. With more, the horizon would hardly follow more closely."""
MOST_PRUNED = 20
"""Invalid transactions that one SQL transaction prunes."""

_TABLES = {
    "versions": "xq_cell",
    "conflict_keys": "xq_conflict_key",
    "outcomes": "xq_outcome",
    "idempotency_keys": "xq_idempotency",
    "removed": "xq_entry",
}
_COUNTED = (*_TABLES, "drain_reports", "comparisons", "dead_letter_acts", "attempts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Age limits for clean-up. Only tests lower them."""

    seconds: float = MAX_SHORT_SECONDS
    """Data younger than this is kept, because a short transaction may read and retry for so long."""
    between_calls: float = 600.0
    """Seconds of the store's clock. Data is old only if an earlier call, at least so long ago, found it old, so that a
    clock that jumps forward for a moment ages nothing."""
    files: float = GRACE_SECONDS
    """Seconds for which a file of bulk entries is kept after a run first finds that nothing refers to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceReport:
    """The result of one run."""

    expired: int
    """Transactions past their deadline that were ended."""
    pruned: int
    """Invalid transactions whose rows were deleted."""
    horizon: int
    """Snapshots that reach below this id are refused from now on."""
    versions: int
    """Deleted versions of cells, tombstones included."""
    conflict_keys: int
    outcomes: int
    idempotency_keys: int
    drain_reports: int
    comparisons: int
    """Deleted reports of comparisons."""
    dead_letter_acts: int
    attempts: int
    """Deleted attempts of drains that were killed or revoked long ago."""
    removed: int
    """Deleted entries, dead letters and locks of removed subscriptions."""
    replaced: int
    """Deleted rows of states that later ones of their keys replace."""
    segment_files: int
    """Deleted files of bulk entries that every reader has read, or that no transaction has committed."""
    more: bool
    """Whether a subject reached the limit, so that another run is needed."""
    busy: bool
    """Whether another process was cleaning up, so that this one skipped work."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; the id is a string, since it exceeds 2⁵³."""
        return {**asdict(self), "horizon": str(self.horizon)}

    def line(self) -> str:
        """Summarise the run in one line."""
        return (
            f"{self.expired} expired, {self.pruned} pruned, {self.versions} versions, "
            f"{self.conflict_keys} conflict keys, {self.outcomes} outcomes, {self.idempotency_keys} idempotency keys, "
            f"{self.drain_reports} drain reports"
            + (f", {self.removed} rows of removed subscriptions" if self.removed else "")
            + (f", {self.replaced} replaced rows of states" if self.replaced else "")
            + (f", {self.segment_files} files of bulk entries" if self.segment_files else "")
            + ("; more is left" if self.more else "")
            + ("; another process is cleaning up" if self.busy else "")
        )


def maintain(
    database: Database,
    *,
    limit: int = 100_000,
    keep_outcomes: float = DAY,
    keep_idempotency_keys: float = 30 * DAY,
    keep_reports: float = 30 * DAY,
    patience: Patience | None = None,
) -> MaintenanceReport:
    """Delete data that no transaction can read and no client asks for.

    Other work may go on meanwhile, and the call may be interrupted. It works in short SQL transactions, one process at
    a time; the next call continues where this one ended.

    :param limit: maximum number of rows to read for each subject.
    :param keep_outcomes: seconds to keep the outcomes of commits; at least an hour, as for the others.
    :param keep_idempotency_keys: seconds to keep idempotency keys.
    :param keep_reports: seconds to keep reports of drains and comparisons. Those of drains that found nothing are kept
        for a day.
    :param patience: for tests.
    """
    patience = patience or Patience()
    if not limit > 0:
        raise InvalidArgument(f"limit: expected more than 0, found {limit}")
    ages = {
        "keep_outcomes": keep_outcomes,
        "keep_idempotency_keys": keep_idempotency_keys,
        "keep_reports": keep_reports,
    }
    for name, value in ages.items():
        if not (value > 0 and value >= patience.seconds):
            raise InvalidArgument(
                f"{name}: expected at least {patience.seconds:g} seconds, found {value:g}",
                hint="a short transaction may run, and retry, for so long",
            )
    age_ms, gap_ms = int(patience.seconds * 1000), int(patience.between_calls * 1000)
    expired = expire(database)
    pruned = _prune_invalid(database, limit)
    went_back = record_low_watermark(database, age_ms=age_ms)
    turn = _Turn(database, limit)
    settled_ms = turn.prepare(age_ms, gap_ms)
    turn.repeat(pages.clean_conflict_keys)
    turn.repeat(pages.clean_versions)
    turn.repeat(pages_of("removed", queries.readers.delete_removed))
    replaced = trim(database, limit=limit)
    if settled_ms is not None:
        turn.forget_records(settled_ms, **ages)
    vacuumed = _vacuum(database, patience, HIDDEN_SECONDS, limit=limit, went_back=went_back)
    turn.tidy()
    with database.read() as work:
        horizon = queries.cleanup.horizon(work)
    return MaintenanceReport(
        expired=expired,
        pruned=pruned,
        horizon=horizon,
        replaced=replaced,
        segment_files=vacuumed.files,
        more=turn.more or pruned >= limit or replaced >= limit or vacuumed.more,
        busy=turn.busy,
        **{name: turn.deleted[name] for name in _COUNTED},
    )


def vacuum(
    database: Database,
    *,
    limit: int = 10_000,
    hidden_seconds: float = HIDDEN_SECONDS,
    patience: Patience,
    dry_run: bool = False,
) -> Vacuumed:
    """Delete files of bulk entries that are no longer needed, by the ages that an earlier call recorded.

    :param limit: maximum number of transactions to read.
    :param hidden_seconds: how long to keep the inputs of a compaction; 0 keeps none.
    :param dry_run: only report which files would be deleted; nothing is written.
    """
    went_back = not dry_run and record_low_watermark(database, age_ms=int(patience.seconds * 1000))
    return _vacuum(database, patience, hidden_seconds, limit=limit, went_back=went_back, dry_run=dry_run)


def _vacuum(
    database: Database,
    patience: Patience,
    hidden_seconds: float,
    *,
    limit: int,
    went_back: bool,
    dry_run: bool = False,
) -> Vacuumed:
    gap_ms = int(patience.between_calls * 1000)
    with database.read() as work:
        settled_ms = queries.cleanup.settled_time(work, gap_ms=gap_ms)
    return vacuum_segments(
        database,
        limit=limit,
        grace_seconds=patience.files,
        hidden_seconds=hidden_seconds,
        aged_to_ms=0 if settled_ms is None or went_back else settled_ms + gap_ms,
        dry_run=dry_run,
    )


def _prune_invalid(database: Database, limit: int) -> int:
    pruned = 0
    while pruned < limit:
        done = prune(database, limit=min(MOST_PRUNED, limit - pruned))
        pruned += done
        if not done:  # those that are left cannot be pruned now
            break
    return pruned


def record_low_watermark(database: Database, *, age_ms: int = int(MAX_SHORT_SECONDS * 1000)) -> bool:
    """Record a low-water mark, unless there is a recent one.

    :returns: whether the clock has gone back since the last mark: the time was wrong then or is wrong now.
    """
    with database.read() as work:
        last, now = queries.cleanup.last_watermark(work), work.now()
    if last is not None and 0 <= now - last < age_ms / MARKS_PER_AGE:
        return False
    with database.connect() as connection:
        low = database.dialect.steps.take_snapshot(connection).low
    with database.begin() as work:  # the mark's time may be later than its snapshot, never earlier
        queries.cleanup.add_watermark(work, low)
    return last is not None and last > now


class _Turn:
    def __init__(self, database: Database, limit: int) -> None:
        self._database = database
        self._limit = limit
        self.deleted: Counter[str] = Counter()
        self.more = self.busy = False

    def prepare(self, age_ms: int, gap_ms: int) -> int | None:
        """Raise the horizon and return the time from which ages are counted; None if there is none yet."""
        with self._database.begin() as work:
            queries.cleanup.add_subjects(work, (KEYS, CELLS, queries.outcomes.SUBJECT))
            settled_ms = queries.cleanup.settled_time(work, gap_ms=gap_ms)
            if not queries.cleanup.take_turn(work):
                self.busy = True
            elif settled_ms is not None:
                queries.cleanup.raise_horizon(work, before_ms=settled_ms - age_ms)
        return settled_ms

    def repeat(self, clean_page: CleanPage) -> None:
        left = self._limit
        while left > 0:
            with self._database.begin() as work:
                if not queries.cleanup.take_turn(work):
                    self.busy = True
                    return
                page = clean_page(work, left)
            self.deleted += page.deleted
            left -= page.looked_at
            if not page.more:
                return
        self.more = True

    def forget_records(
        self, now_ms: int, *, keep_outcomes: float, keep_idempotency_keys: float, keep_reports: float
    ) -> None:
        """Delete old records. Their ids contain the time, so that old ones are found without another index."""

        def before(seconds: float) -> int:
            return now_ms - int(seconds * 1000)

        attempts = before(KEEP_ATTEMPTS)
        statements: dict[str, Callable[..., int]] = {
            "outcomes": partial(queries.outcomes.delete_outcomes, before_ms=before(keep_outcomes)),
            "idempotency_keys": partial(
                queries.cleanup.delete_idempotency_keys,
                before_ms=before(keep_idempotency_keys),
                tallies_before_ms=attempts,
            ),
            "drain_reports": partial(
                queries.reports.delete_reports,
                before_ms=before(keep_reports),
                idle_before_ms=before(min(keep_reports, DAY)),
            ),
            "comparisons": partial(queries.reports.delete_comparisons, before_ms=before(keep_reports)),
            "dead_letter_acts": partial(queries.acts.delete_old, keep=KEPT, before_ms=before(KEEP_ACTS)),
            "attempts": partial(queries.locks.delete_old_attempts, before_ms=attempts),
        }
        for name, delete in statements.items():
            self.repeat(pages_of(name, delete))

    def tidy(self) -> None:
        deleted = {table: self.deleted[subject] for subject, table in _TABLES.items()}
        with contextlib.suppress(Exception):  # the work itself is done
            queries.cleanup.vacuum(self._database, deleted, after=VACUUM_AFTER)
        if (file := self._database.dialect.file) is None:
            return
        with contextlib.suppress(ExportQueueError), self._database.connect() as connection:
            kept = file.shrink_log(connection)
            if kept:
                log.warning(
                    "the log of %s has %d MiB and cannot be truncated: a program keeps a SQL transaction open for"
                    " reading",
                    self._database.shown_url,
                    kept >> 20,
                )
