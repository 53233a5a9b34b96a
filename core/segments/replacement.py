"""Replacing segments and rows of a reader by new segments: the job that compactions and moves are.

1. Read what is pending, and choose what to replace.
2. Lock it. Units that others work in are passed over.
3. Choose again under the locks, begin a long transaction, and write what the reader has not drained into files.
4. Publish in one SQL transaction, in the critical section of the locks.

A job that dies before the publication leaves files of a transaction that expires; clean-up deletes them. Adds and loads
are not held back: entries that are not settled, and everything that commits meanwhile, stay where they are.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from export_queue.core.errors import ExportQueueError, LayoutClosed, LeaseLost, LockNotAvailable, SegmentLost
from export_queue.core.locks import (
    COMPACTION_PRIORITY,
    Area,
    Lease,
    LeaseKeeper,
    Owner,
    acquire,
    begin_attempt,
    check_leases,
    end_attempt,
)
from export_queue.core.queue import Queue, Range, oldest_kept
from export_queue.core.segments.candidates import Candidates, UnitPlan
from export_queue.core.segments.catalogue import begin_load, waiting_segments
from export_queue.core.segments.compaction_report import CompactionProgress, CompactionReport, UnitCompacted
from export_queue.core.segments.files import check_base, load_pyarrow
from export_queue.core.segments.mergers import Merge, Merger
from export_queue.core.segments.model import Segment
from export_queue.core.segments.publication import Written, publish
from export_queue.core.segments.watched_steps import reached
from export_queue.core.store import Database, Reading, identity_of, queries
from export_queue.core.transactions import NO_READER, OpenTransaction, Snapshot, settled_snapshot

UNITS_AT_ONCE = 256
"""Maximum number of units in one publication."""

log = logging.getLogger("export_queue.segments")


class Stopped(Exception):
    """The job was told to stop."""


@dataclass(slots=True, kw_only=True)
class Replacement(ABC):
    """A job for one reader. A subclass says what to replace, and writes it."""

    name: ClassVar[str]
    takes_rows_alone: ClassVar[bool]
    """Whether rows are replaced where no segment is pending."""
    database: Database
    queue: Queue
    wanted: Candidates
    owner: Owner
    lease_seconds: float
    on_progress: Callable[[CompactionProgress], None] | None
    stops: Callable[[], bool]
    merger: Merger
    report: CompactionReport
    total: int = 0
    """Approximate number of entries to replace."""
    done: int = 0

    @abstractmethod
    def choose(
        self, work: Reading, queue: Queue, pending: Sequence[UnitPlan], leases: Sequence[Lease]
    ) -> list[UnitPlan]:
        """Choose what to replace.

        :param queue: the queue in the layout of the units.
        :param pending: everything that is pending in some units.
        :param leases: the locks that the job holds. If there are any, only what they cover is chosen.
        """

    @abstractmethod
    def area(self, plan: UnitPlan) -> Area:
        """Return what to lock."""

    @abstractmethod
    def target(self, queue: Queue, transaction: int) -> Queue:
        """Return the queue in the layout that is written."""

    @abstractmethod
    def write(self, merge: Merge, target: Queue, plans: Sequence[UnitPlan], check: Callable[[], None]) -> Written:
        """Write new segments.

        :param check: to call often; raises if the job must end.
        """

    def run(self, layouts: Sequence[Queue]) -> None:
        """Replace what is worth it, some units at a time.

        :param layouts: the queue in each layout to work in.
        """
        settled = settled_snapshot(self.database, self.queue.number)
        found = [(queue, self._plan(queue, settled, queue.units())) for queue in layouts]
        plans = [plan for _, in_layout in found for plan in in_layout]
        if self.report.dry_run:
            self.report.units = [
                UnitCompacted(plan.unit, len(plan.segments), plan.row_entries, plan.entries, 0, 0) for plan in plans
            ]
            return
        self.total = sum(plan.entries for plan in plans)
        if plans:
            check_base(self.database.segments)
            load_pyarrow()
        with self._attempt():
            try:
                end = 0
                for queue, in_layout in found:
                    for batch in batches(in_layout, self.wanted.most_bytes * self.merger.shares):
                        self._check_stop()
                        self._replace(queue, batch)
                        end += sum(plan.entries for plan in batch)
                        self.progress(end)
            except Stopped:
                log.info("the %s of %s was told to stop", self.name, self.queue.id)

    def progress(self, done: int) -> None:
        """Report how many entries are done."""
        self.done = done
        if self.on_progress is not None:
            self.on_progress(CompactionProgress(min(done, self.total), self.total))

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[None]:
        """Refuse further locks to older attempts of the task, including those that hold none now."""
        begin_attempt(self.database, self.queue, self.owner)
        try:
            yield
        finally:
            # an attempt that stays on record does no harm
            with contextlib.suppress(ExportQueueError), self.database.begin() as work:
                end_attempt(work, self.owner)

    def _check_stop(self) -> None:
        if self.stops():
            raise Stopped

    def _plan(
        self, queue: Queue, settled: Snapshot, units: Sequence[Range], leases: Sequence[Lease] = ()
    ) -> list[UnitPlan]:
        within = Range(units[0].first, units[-1].end)
        size = queue.buckets_per_range
        bounds = {"first": within.first, "end": within.end, "buckets_per_range": size}
        by_unit: defaultdict[int, list[Segment]] = defaultdict(list)
        with self.database.read() as work:
            for segment in waiting_segments(work, queue, settled, within):
                by_unit[segment.first].append(segment)
            if not by_unit and not self.takes_rows_alone:
                return []
            counted = queries.entries.count_by_unit(work, queue.number, queue.layout, settled, **bounds)
            rows = {number * size: (entries, total) for number, entries, total, _ in counted}
            pending = [
                UnitPlan(unit, tuple(by_unit[unit.first]), *rows.get(unit.first, (0, 0)))
                for unit in units
                if unit.first in by_unit or unit.first in rows
            ]
            return self.choose(work, queue, pending, leases)

    def _replace(self, queue: Queue, plans: Sequence[UnitPlan]) -> None:
        claimed_at = time.monotonic()
        leases = self._acquire_free(queue, [self.area(plan) for plan in plans])
        self.report.passed_over += len(plans) - len(leases)
        if not leases:
            return
        reached("locked")
        with LeaseKeeper(self.database, leases, lease_seconds=self.lease_seconds, claimed_at=claimed_at) as keeper:
            try:
                self._replace_locked(queue, leases, keeper)
            except (LeaseLost, LayoutClosed) as error:
                log.warning("a %s of %s has published nothing: %s", self.name, self.queue.id, error.message)
                self.report.lost += len(leases)

    def _acquire_free(self, queue: Queue, areas: Sequence[Area]) -> list[Lease]:
        """Lock the areas that are free, normally all of them in one request."""

        def take(some: Sequence[Area]) -> list[Lease]:
            try:
                return acquire(
                    self.database,
                    queue,
                    some,
                    owner=self.owner,
                    priority=COMPACTION_PRIORITY,
                    lease_seconds=self.lease_seconds,
                )
            except LockNotAvailable:
                return []

        if (leases := take(areas)) or len(areas) == 1:
            return leases
        # Others have locked some units since the plan was made.
        return [lease for area in areas for lease in take([area])]

    def _replace_locked(self, queue: Queue, leases: Sequence[Lease], keeper: LeaseKeeper) -> None:
        database = self.database
        # Every snapshot sees settled entries, also that of a fenced drain, which must take nothing that is not settled.
        settled = settled_snapshot(database, self.queue.number)
        plans = self._plan(queue, settled, sorted(lease.range for lease in leases), leases)
        if not plans:
            return
        with database.read() as work:
            kept_from = oldest_kept(queue, settled, work.now())
        needed = {plan.unit for plan in plans}
        held = [lease for lease in leases if lease.range in needed]

        def check() -> None:
            keeper.check()
            self._check_stop()

        opened = OpenTransaction(database, kind="long", load=NO_READER)
        with opened.abort_on_error():  # after a publication nothing is left to abort
            base = begin_load(database, opened)
            target = self.target(queue, opened.id)
            reached("begun")
            store_id = identity_of(database).store_id
            merge = Merge(
                queue=queue,
                settled=settled,
                base=base,
                store_id=store_id,
                transaction=opened.id,
                kept_from=kept_from,
            )
            try:
                written = self.write(merge, target, plans, check)
            except SegmentLost:
                # If a drain took the locks, it may have drained what was to be read, and clean-up deleted it.
                check_leases(database, held)
                raise
            if not written.merged:
                opened.abort()
                return
            reached("written")
            publish(database, merge, target, held, written)
        reached("published")
        self.report.outputs += len(written.merged)
        self.report.files += [one.file for one in written.files]
        self.report.units += [
            UnitCompacted(
                one.plan.unit, len(one.plan.segments), one.rows, one.read, one.written, one.read - one.written
            )
            for one in written.units
        ]


def batches(plans: Sequence[UnitPlan], most_bytes: int) -> Iterator[list[UnitPlan]]:
    """Group units up to about a size; a larger unit is a group of its own."""
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
