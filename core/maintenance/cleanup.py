"""One run of clean-up through all subjects, bounded in each.

1. End transactions that are past their deadline, and prune invalid ones.
2. Raise the horizon, in a SQL transaction of its own: a reader that sees a deletion sees the horizon, too.
3. Delete, page by page, versions and conflict keys below the horizon, and outcomes, idempotency keys and records that
   are old.
4. Delete the files of bulk entries that are no longer needed.
5. Have the database reclaim the space.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from export_queue.core.errors import ExportQueueError, InvalidArgument
from export_queue.core.maintenance import conflict_keys, idempotency_keys, invalid, outcomes, records, versions
from export_queue.core.maintenance.horizon import raise_horizon, record_low_watermark
from export_queue.core.maintenance.pages import CleanPage
from export_queue.core.segments import GRACE_SECONDS, HIDDEN_SECONDS, Vacuumed, vacuum_segments
from export_queue.core.store import Database, queries
from export_queue.core.transactions import MAX_SHORT_SECONDS, expire

log = logging.getLogger("export_queue.maintenance")

DAY = 24 * 3600.0
VACUUM_AFTER = 20_000
"""Dead rows of a table from which on it may be vacuumed."""

_SUBJECTS = (conflict_keys.SUBJECT, versions.SUBJECT, queries.outcomes.SUBJECT)
_TABLES = {
    "versions": "xq_cell",
    "conflict_keys": "xq_conflict_key",
    "outcomes": "xq_outcome",
    "idempotency_keys": "xq_idempotency",
    "removed": "xq_entry",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Age limits for clean-up. Only tests lower them."""

    seconds: float = MAX_SHORT_SECONDS
    """Data younger than this is kept: a short transaction may read and retry for as long."""
    between_calls: float = 600.0
    """Seconds of the store's clock. Data is old only if an earlier call, at least so long ago, found it old: a clock
    that steps forward for a moment ages nothing."""
    files: float = GRACE_SECONDS
    """Seconds for which a file of bulk entries stays after a run has first found that nothing refers to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceReport:
    """What one run did."""

    expired: int
    """Transactions past their deadline that were ended."""
    pruned: int
    """Invalid transactions whose rows were deleted."""
    horizon: int
    """Snapshots that reach below this id are refused from now on."""
    versions: int
    """Versions of cells that were deleted, tombstones included."""
    conflict_keys: int
    outcomes: int
    idempotency_keys: int
    drain_reports: int
    dead_letter_acts: int
    attempts: int
    """Attempts of drains that were killed or revoked long ago."""
    removed: int
    """Entries, dead letters and locks of subscriptions that were removed."""
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
        """Say it in one line."""
        return (
            f"{self.expired} expired, {self.pruned} pruned, {self.versions} versions, "
            f"{self.conflict_keys} conflict keys, {self.outcomes} outcomes, {self.idempotency_keys} idempotency keys, "
            f"{self.drain_reports} drain reports"
            + (f", {self.removed} rows of removed subscriptions" if self.removed else "")
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
    """Delete rows that no transaction can read, and no client asks for; safe beside other work, and to interrupt.

    It works in short SQL transactions, one process at a time; the next call continues where this one ended.

    :param limit: most rows of each subject that are looked at.
    :param keep_outcomes: seconds for which the outcome of a commit can be asked; an hour or more, as all of these.
    :param keep_idempotency_keys: seconds for which a unit of work is known to have taken effect.
    :param keep_reports: seconds for which reports of drains can be read; those of drains that found nothing, a day.
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
                hint="a short transaction may run, and ask, for as long",
            )
    age_ms, gap_ms = int(patience.seconds * 1000), int(patience.between_calls * 1000)
    expired = expire(database)
    pruned = invalid.prune_invalid(database, limit)
    went_back = record_low_watermark(database, age_ms=age_ms)
    turn = _Turn(database, limit)
    settled_ms = turn.prepare(age_ms, gap_ms)
    turn.repeat(conflict_keys.clean_conflict_keys)
    turn.repeat(versions.clean_versions)
    turn.repeat(records.forget_subscriptions)
    if settled_ms is not None:
        turn.repeat(partial(outcomes.forget_outcomes, before_ms=settled_ms - int(keep_outcomes * 1000)))
        keep_ms = int(keep_idempotency_keys * 1000)
        turn.repeat(partial(idempotency_keys.forget_idempotency_keys, now_ms=settled_ms, keep_ms=keep_ms))
        turn.repeat(partial(records.forget_reports, now_ms=settled_ms, keep_ms=int(keep_reports * 1000)))
        turn.repeat(partial(records.forget_acts, now_ms=settled_ms))
        turn.repeat(partial(records.forget_attempts, now_ms=settled_ms))
    vacuumed = _vacuum(database, patience, HIDDEN_SECONDS, limit=limit, went_back=went_back)
    turn.tidy()
    with database.read() as work:
        horizon = queries.cleanup.horizon(work)
    deleted = turn.deleted
    return MaintenanceReport(
        expired=expired,
        pruned=pruned,
        horizon=horizon,
        versions=deleted["versions"],
        conflict_keys=deleted["conflict_keys"],
        outcomes=deleted["outcomes"],
        idempotency_keys=deleted["idempotency_keys"],
        drain_reports=deleted["drain_reports"],
        dead_letter_acts=deleted["dead_letter_acts"],
        attempts=deleted["attempts"],
        removed=deleted["removed"],
        segment_files=vacuumed.files,
        more=turn.more or pruned >= limit or vacuumed.more,
        busy=turn.busy,
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

    :param limit: most transactions that are looked at.
    :param hidden_seconds: how long the inputs of a compaction are kept; 0 keeps none.
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


class _Turn:
    def __init__(self, database: Database, limit: int) -> None:
        self._database = database
        self._limit = limit
        self.deleted: Counter[str] = Counter()
        self.more = self.busy = False

    def prepare(self, age_ms: int, gap_ms: int) -> int | None:
        """Raise the horizon and return the time from which ages count; None if there is none yet."""
        with self._database.begin() as work:
            queries.cleanup.add_subjects(work, _SUBJECTS)
            settled_ms = queries.cleanup.settled_time(work, gap_ms=gap_ms)
            if not queries.cleanup.take_turn(work):
                self.busy = True
            elif settled_ms is not None:
                raise_horizon(work, before_ms=settled_ms - age_ms)
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
                    "the log beside %s has %d MiB and cannot be cut: a program reads in a SQL transaction that it does"
                    " not end",
                    self._database.shown_url,
                    kept >> 20,
                )
