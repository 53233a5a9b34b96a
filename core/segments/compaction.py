"""Compaction: many small segments of a unit, and rows, become one segment of their reader.

1. Look what waits and what others work on, and choose what is worth it.
2. Lock what was chosen: segments by name, and the rows. Units in which another one was quicker are passed over.
3. Look again under the locks, begin a long transaction, and write what its reader has not drained into a file.
4. Publish in one SQL transaction, in the critical section of the locks: merged segments are there, their inputs are
   hidden, merged rows are gone, and the long transaction and the locks have ended.

What dies before the publication has left a file of a transaction that expires: clean-up deletes it. Appends and loads
are not held back: rows that are not settled, and all that commits meanwhile, stay where they are.

In one unit one compaction works at a time: another one would find little that is small and free.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from export_queue.core.errors import ExportQueueError, LeaseLost, LockNotAvailable, SegmentLost
from export_queue.core.locks import (
    COMPACTION_PRIORITY,
    Area,
    Lease,
    LeaseKeeper,
    Lock,
    Owner,
    acquire,
    begin_attempt,
    check_leases,
    end_attempt,
    standing_locks,
)
from export_queue.core.queue import Queue, Range, find_reader
from export_queue.core.segments.candidates import Candidates, UnitPlan, choose_candidates
from export_queue.core.segments.catalogue import begin_load, waiting_segments
from export_queue.core.segments.compaction_report import CompactionProgress, CompactionReport, UnitCompacted
from export_queue.core.segments.files import check_base, load_pyarrow
from export_queue.core.segments.merged_unit import MergedUnit
from export_queue.core.segments.mergers import LocalMerger, Merge, Merger
from export_queue.core.segments.model import FileReport
from export_queue.core.segments.publication import Publication, publish
from export_queue.core.segments.watched_steps import reached
from export_queue.core.store import Database, identity_of, queries
from export_queue.core.transactions import OpenTransaction, Snapshot, settled_snapshot

LEASE_SECONDS = 60.0
UNITS_AT_ONCE = 256
"""Most units that one publication merges."""
NO_READER = 0
"""As for a first load of nobody: fenced drains and sweeps do not wait for a transaction that adds no entries."""

log = logging.getLogger("export_queue.segments")


def compact(
    database: Database,
    queue_id: str,
    *,
    wanted: Candidates | None = None,
    owner: Owner | None = None,
    dry_run: bool = False,
    lease_seconds: float = LEASE_SECONDS,
    on_progress: Callable[[CompactionProgress], None] | None = None,
    stops: Callable[[], bool] = lambda: False,
    merger: Merger | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> CompactionReport:
    """Merge small segments and settled rows of one reader, unit by unit; safe beside everything, and to interrupt.

    :param queue_id: a queue without subscriptions, or a subscription.
    :param wanted: what is worth it.
    :param owner: the task; a newer attempt of it takes over from an older one. By default one that nobody shares.
    :param dry_run: only say what would be merged.
    :param lease_seconds: how long locks last unless they are renewed.
    :param on_progress: called after each publication.
    :param stops: asked between two publications whether to end early.
    :param merger: reads what is merged, and writes it; by default this process.
    :param clock: tells seconds; only differences count.
    :raises SegmentLost: a file is missing or damaged.
    :raises SegmentUnavailable: a filesystem does not answer.
    :raises LeaseLost: the attempt was revoked, or a newer one has begun.
    :raises FoldError: the queue's fold cannot be loaded, or does not take the values of a key.
    """
    begun = clock()
    wanted = wanted or Candidates()
    with database.read() as work:
        queue = find_reader(work, queue_id)
    report = CompactionReport(queue.id, dry_run=dry_run)
    owner = owner or Owner.unique()
    found = _plan(database, queue, queue.units(), wanted, owner)
    report.passed_over = found.worked_on
    if dry_run:
        report.units = [
            UnitCompacted(plan.unit, len(plan.segments), plan.row_entries, plan.entries, 0, 0) for plan in found.plans
        ]
        return report
    check_base(database.segments)
    load_pyarrow()
    merger = merger or LocalMerger(database)
    worker = _Worker(database, queue, wanted, owner, merger, lease_seconds, clock, report)
    total, done = sum(plan.entries for plan in found.plans), 0
    with attempt(database, queue, owner):
        for batch in batches(found.plans, wanted.most_bytes * merger.shares):
            if stops():
                break
            worker.merge(batch)
            done += sum(plan.entries for plan in batch)
            if on_progress is not None:
                on_progress(CompactionProgress(done, total))
    report.seconds = clock() - begun
    return report


@contextlib.contextmanager
def attempt(database: Database, queue: Queue, owner: Owner) -> Iterator[None]:
    """Let older attempts of the task get no lock any more, also those that hold none at this moment."""
    begin_attempt(database, queue, owner)
    try:
        yield
    finally:
        # one that stays on record harms nobody
        with contextlib.suppress(ExportQueueError), database.begin() as work:
            end_attempt(work, owner)


@dataclass(frozen=True, slots=True)
class _Found:
    """What is worth a compaction."""

    settled: Snapshot
    plans: list[UnitPlan]
    worked_on: int = 0
    """Units with segments of which others hold so much that nothing is left to do."""


def _plan(
    database: Database,
    queue: Queue,
    units: Sequence[Range],
    wanted: Candidates,
    owner: Owner,
    leases: Sequence[Lease] = (),
) -> _Found:
    """Choose what is merged.

    :param owner: what older attempts of it hold is in nobody's way.
    :param leases: what is held for it already: nothing else is chosen then.
    """
    # Every snapshot sees what is merged, also that of a fenced drain, which must take nothing that is not settled.
    settled = settled_snapshot(database, queue.number)
    if not units:
        return _Found(settled, [])
    within = Range(min(unit.first for unit in units), max(unit.end for unit in units))
    with database.read() as work:
        locks = standing_locks(work, queue)
        segments = waiting_segments(work, queue, settled, within)
        if not segments:
            return _Found(settled, [])
        rows = {
            number: (entries, size)
            for number, entries, size, _ in queries.entries.count_by_unit(
                work,
                queue.number,
                queue.layout,
                settled,
                first=within.first,
                end=within.end,
                buckets_per_range=queue.buckets_per_range,
            )
        }
        now_ms = work.now()
    by_unit: dict[int, list[Any]] = {}
    for segment in segments:
        by_unit.setdefault(segment.first, []).append(segment)
    plans, worked_on = [], 0
    held_by_us = {lease.range: lease for lease in leases}
    for unit in units:
        number = unit.first // queue.buckets_per_range
        entries, size = rows.get(number, (0, 0))
        others = [lock for lock in locks if lock.task != owner.task and _meets(lock, unit)]
        lease = held_by_us.get(unit)
        is_free = _free_beside(others) if lease is None else lease.covers
        plan = None
        if not any(_bars(lock) for lock in others):
            plan = choose_candidates(
                unit,
                by_unit.get(unit.first, ()),
                row_entries=entries,
                row_bytes=size,
                wanted=wanted,
                now_ms=now_ms,
                is_free=is_free,
            )
        if plan is not None:
            plans.append(plan)
        elif others and len(by_unit.get(unit.first, ())) >= wanted.least:
            worked_on += 1
    return _Found(settled, plans, worked_on)


def _meets(lock: Lock, unit: Range) -> bool:
    return lock.area.first < unit.end and lock.area.end > unit.first


def _bars(lock: Lock) -> bool:
    return lock.area.members is None or lock.priority == COMPACTION_PRIORITY


def _free_beside(others: Sequence[Lock]) -> Callable[[str], bool]:
    held: frozenset[str] = frozenset().union(*(lock.area.members or () for lock in others))
    return lambda name: name not in held


def batches(plans: Sequence[UnitPlan], most_bytes: int) -> Iterator[list[UnitPlan]]:
    """Put units together that are merged at once: about so many bytes, or one unit."""
    batch: list[UnitPlan] = []
    size = 0
    for plan in plans:
        if batch and (size + plan.bytes > most_bytes or len(batch) == UNITS_AT_ONCE):
            yield batch
            batch, size = [], 0
        batch.append(plan)
        size += plan.bytes
    if batch:
        yield batch


def _shares(plans: Sequence[UnitPlan], most: int, most_bytes: int) -> list[list[UnitPlan]]:
    """Cut the units of one publication into about so many shares, of about as many bytes each.

    :param most_bytes: a share has no more, or one unit.
    """
    total, before = max(sum(plan.bytes for plan in plans), 1), 0
    shares: list[list[UnitPlan]] = [[] for _ in range(most)]
    for plan in plans:
        # a unit belongs where its middle is
        shares[min((2 * before + plan.bytes) * most // (2 * total), most - 1)].append(plan)
        before += plan.bytes
    # Among large units a share may get twice its part, which is more than a process is meant to hold.
    return [part for share in shares for part in batches(share, most_bytes)]


def acquire_free(
    database: Database, queue: Queue, areas: Sequence[Area], *, owner: Owner, lease_seconds: float
) -> list[Lease]:
    """Take the locks that are free now; as a rule that is all of them, in one request.

    :param areas: each is taken or not.
    """

    def take(some: Sequence[Area]) -> list[Lease]:
        try:
            return acquire(
                database, queue, some, owner=owner, priority=COMPACTION_PRIORITY, lease_seconds=lease_seconds
            )
        except LockNotAvailable:
            return []

    if (leases := take(areas)) or len(areas) == 1:
        return leases
    # Somebody has come between the look and the question; as a rule, in few of the units.
    return [lease for area in areas for lease in take([area])]


@dataclass(slots=True)
class _Worker:
    database: Database
    queue: Queue
    wanted: Candidates
    owner: Owner
    merger: Merger
    lease_seconds: float
    clock: Callable[[], float]
    report: CompactionReport

    def merge(self, plans: Sequence[UnitPlan]) -> None:
        """Merge what is worth it in some units; what cannot be locked is passed over."""
        claimed_at = self.clock()
        leases = self._lock(plans)
        self.report.passed_over += len(plans) - len(leases)
        if not leases:
            return
        reached("locked")
        with LeaseKeeper(
            self.database, leases, lease_seconds=self.lease_seconds, claimed_at=claimed_at, clock=self.clock
        ) as keeper:
            try:
                found = _plan(
                    self.database, self.queue, [lease.range for lease in leases], self.wanted, self.owner, leases
                )
                needed = {plan.unit for plan in found.plans}
                self.report.passed_over += found.worked_on
                if found.plans:
                    used = [lease for lease in leases if lease.range in needed]
                    self._merge(found, used, keeper.check)
            except LeaseLost as error:
                log.warning("a compaction of %s has lost its locks: %s", self.queue.id, error.message)
                self.report.lost += len(leases)

    def _lock(self, plans: Sequence[UnitPlan]) -> list[Lease]:
        areas = [Area(plan.unit.first, plan.unit.end, plan.members) for plan in plans]
        return acquire_free(self.database, self.queue, areas, owner=self.owner, lease_seconds=self.lease_seconds)

    def _merge(self, found: _Found, leases: Sequence[Lease], check: Callable[[], None]) -> None:
        database = self.database
        opened = OpenTransaction(database, kind="long", load=NO_READER)
        reports: list[FileReport] = []
        try:
            base = begin_load(database, opened)
            reached("begun")
            merge = Merge(
                queue=self.queue,
                settled=found.settled,
                base=base,
                store_id=identity_of(database).store_id,
                transaction=opened.id,
            )
            shares = _shares(found.plans, self.merger.shares, self.wanted.most_bytes)
            try:
                done = self.merger.merge(merge, shares, check=check)
            except SegmentLost:
                # Whoever has taken the locks may have drained what was to be read, and clean-up deleted it.
                check_leases(database, leases)
                raise
            # in the order of the plans, whoever has come first
            units = sorted((unit for one in done for unit in one.units), key=lambda unit: unit.plan.unit.first)
            reports = [file for one in done for file in one.files]
            reached("written")
            self._publish(opened.id, found, leases, units, reports)
        except BaseException as error:
            opened.abort(error)  # after a publication there is nothing left to abort
            raise
        reached("published")
        self.report.files += [one.file for one in reports]
        self.report.units += [
            UnitCompacted(
                one.plan.unit, len(one.plan.segments), one.rows, one.read, one.written, one.read - one.written
            )
            for one in units
        ]

    def _publish(
        self,
        transaction: int,
        found: _Found,
        leases: Sequence[Lease],
        units: Sequence[MergedUnit],
        reports: Sequence[FileReport],
    ) -> None:
        written = {part.first: (report, part) for report in reports for part in report.slices}
        merged: list[queries.compactions.Merged] = []
        replaced: dict[tuple[int, int], tuple[int, int]] = {}
        for number, unit in enumerate(units, 1):
            if (of_unit := written.get(unit.plan.unit.first)) is not None:
                merged.append(unit.segment((transaction, number), self.queue, *of_unit))
                replaced |= dict.fromkeys(unit.plan.names, (transaction, number))
        publish(
            self.database,
            Publication(
                queue=self.queue,
                target=self.queue,
                transaction=transaction,
                settled=found.settled,
                leases=leases,
                rows=[rows for unit in units if (rows := unit.merged_rows) is not None],
                merged=merged,
                replaced=replaced,
            ),
        )
