"""One run of clean-up through all subjects, bounded in each."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from export_queue.core.errors import InvalidArgument
from export_queue.core.maintenance import steps
from export_queue.core.maintenance.horizon import note_low, raise_horizon
from export_queue.core.store import Database, queries
from export_queue.core.transactions import MAX_SHORT_SECONDS, expire, prune

DAY = 24 * 3600.0
MOST_PRUNED = 20
"""Invalid ids that one SQL transaction rolls back."""
VACUUM_AFTER = 20_000
"""Rows deleted from one table in one run, from which on it may be vacuumed."""

_TABLES = {"versions": "xq_cell", "conflict_keys": "xq_conflict_key", "outcomes": "xq_outcome"}


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
    more: bool
    """Whether a subject came to the limit, so that another run would go on with it."""
    busy: bool
    """Whether another process was cleaning up, so that this one left something to it."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; the id is a string, since it exceeds 2⁵³."""
        return {**asdict(self), "horizon": str(self.horizon)}

    def line(self) -> str:
        """Say it in one line."""
        return (
            f"{self.expired} expired, {self.pruned} pruned, {self.versions} versions, "
            f"{self.conflict_keys} conflict keys, {self.outcomes} outcomes, {self.idempotency_keys} idempotency keys"
            + ("; more is left" if self.more else "")
            + ("; another process is cleaning up" if self.busy else "")
        )


def maintain(
    database: Database,
    *,
    limit: int = 100_000,
    keep_outcomes: float = DAY,
    keep_idempotency_keys: float = 30 * DAY,
    snapshot_age: float = MAX_SHORT_SECONDS,
) -> MaintenanceReport:
    """Delete what nobody can read or ask for any more; safe beside everything, and if it is interrupted.

    Work is done in short SQL transactions, by one process at a time; the next call goes on where this one ended.

    :param limit: rows of each subject that are looked at, at most.
    :param keep_outcomes: seconds for which the outcome of a commit can be asked.
    :param keep_tokens: seconds for which a unit of work is known to have taken effect.
    :param snapshot_age: seconds for which a short transaction may read; shorter only where none takes so long.
    """
    for name, value in (("limit", limit), ("keep_outcomes", keep_outcomes), ("keep_tokens", keep_idempotency_keys)):
        if not value > 0:
            raise InvalidArgument(f"{name}: expected more than 0, found {value}")
    age_ms = int(snapshot_age * 1000)
    expired = expire(database)
    pruned = _prune(database, limit)
    note_low(database, age_ms=age_ms)
    run = _Run(database, limit)
    run.prepare(age_ms)
    run.repeat(steps.clean_by_keys)
    run.repeat(steps.clean_cells)
    run.repeat(partial(steps.forget_outcomes, keep_ms=int(keep_outcomes * 1000)))
    run.repeat(partial(steps.forget_idempotency_keys, keep_ms=int(keep_idempotency_keys * 1000)))
    run.tidy()
    with database.read() as work:
        horizon = queries.cleanup.horizon(work)
    deleted = run.deleted
    return MaintenanceReport(
        expired=expired,
        pruned=pruned,
        horizon=horizon,
        versions=deleted["versions"],
        conflict_keys=deleted["conflict_keys"],
        outcomes=deleted["outcomes"],
        idempotency_keys=deleted["idempotency_keys"],
        more=run.more or pruned >= limit,
        busy=run.busy,
    )


def _prune(database: Database, limit: int) -> int:
    pruned = 0
    while pruned < limit:
        most = min(MOST_PRUNED, limit - pruned)
        done = prune(database, limit=most)
        pruned += done
        if done < most:
            break
    return pruned


class _Run:
    def __init__(self, database: Database, limit: int) -> None:
        self._database = database
        self._limit = limit
        self.deleted: Counter[str] = Counter()
        self.more = self.busy = False

    def prepare(self, age_ms: int) -> None:
        # The horizon is raised before anything is deleted, in a SQL transaction of its own: whoever sees a deletion
        # sees the horizon, too.
        with self._database.begin() as work:
            queries.cleanup.add_subjects(work, steps.SUBJECTS)
            if queries.cleanup.take_turn(work):
                raise_horizon(work, age_ms=age_ms)
            else:
                self.busy = True

    def repeat(self, step: steps.Step) -> None:
        left = self._limit
        while left > 0:
            with self._database.begin() as work:
                if not queries.cleanup.take_turn(work):
                    self.busy = True
                    return
                page = step(work, left)
            self.deleted += page.deleted
            left -= page.looked_at
            if not page.more:
                return
        self.more = True

    def tidy(self) -> None:
        for subject, table in _TABLES.items():
            if self.deleted[subject] > VACUUM_AFTER:
                with contextlib.suppress(Exception):  # the work is done, come what may
                    queries.cleanup.vacuum(self._database, table, deleted=self.deleted[subject])
