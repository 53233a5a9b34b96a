"""Rewriting: what waits in the older layouts of a queue moves into the current one, so that its units share the work.

It is a compaction with a change of granularity: a layout's number is the version of what lies in it.

1. Look what waits in the units of older layouts.
2. Take an interval lock on each unit: nothing in it is drained, merged or retried meanwhile. Units that others work on
   are passed over.
3. Look again under the locks, and begin a long transaction: the layout in which it adds is the target. Read everything
   settled in order, rows and segments of any size, and write it in the order of the target, in pieces of bounded size.
4. Publish in one SQL transaction, in the critical section of the locks: new segments are there, the inputs are hidden,
   rows are gone, and the long transaction and the locks have ended.
5. Close the layouts that are empty, and to which nobody can add any more.

What dies before the publication has left files of a transaction that expires: clean-up deletes them. Entries that are
not settled, and what long transactions of an older layout commit later, drain out or are moved by the next run.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from export_queue.core.errors import InvalidArgument, LayoutClosed, LeaseLost, SegmentLost
from export_queue.core.locks import Area, Lease, LeaseKeeper, Owner, check_leases
from export_queue.core.queue import Queue, Range, close_layouts, find_reader, queue_of
from export_queue.core.segments.candidates import Candidates, UnitPlan
from export_queue.core.segments.catalogue import begin_load, waiting_segments
from export_queue.core.segments.compaction import (
    LEASE_SECONDS,
    NO_READER,
    acquire_free,
    attempt,
    batches,
)
from export_queue.core.segments.compaction_report import CompactionProgress, CompactionReport, UnitCompacted
from export_queue.core.segments.files import check_base, load_pyarrow
from export_queue.core.segments.merging import UnitReader
from export_queue.core.segments.model import Segment
from export_queue.core.segments.moving import MovedUnit, Pieces, publication
from export_queue.core.segments.publication import publish
from export_queue.core.segments.watched_steps import reached
from export_queue.core.store import Database, identity_of, queries
from export_queue.core.transactions import OpenTransaction, Snapshot, settled_snapshot

_CHUNK_ROWS = 8192
_CHUNK_BYTES = 4 << 20

log = logging.getLogger("export_queue.segments")


@dataclass(slots=True)
class RewritingReport(CompactionReport):
    """What one rewriting did for one reader, or would do; its units are those of older layouts."""

    segments: int = 0
    """Segments that were written for the current layout."""
    still_open: tuple[int, ...] = ()
    """Older layouts in which something waits still, or to which somebody may still add."""

    @property
    def outputs(self) -> int:
        """Segments that were written for the current layout."""
        return self.segments

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {**CompactionReport.to_json(self), "still_open": list(self.still_open)}  # super() is not for slots

    def line(self) -> str:
        """Say it in one line."""
        units = f"{len(self.units)} units of older layouts"
        if self.dry_run:
            return (
                f"{self.queue}: would rewrite {self.inputs} segments and {self.rows} rows in {units}, about "
                f"{self.read} entries"
            )
        layouts = ", ".join(map(str, self.still_open))
        return (
            f"{self.queue}: {self.inputs} segments and {self.rows} rows of {units} rewritten into {self.outputs} "
            f"segments: {self.read} read = {self.written} written + {self.superseded} superseded; "
            f"{self.passed_over} units passed over, {self.lost} lost; "
            f"{f'open still: layout {layouts}' if layouts else 'no older layout is open'}; {self.seconds:.1f} s"
        )


class _Stopped(Exception):
    """The job was told to stop amid a unit."""


def rewrite(
    database: Database,
    queue_id: str,
    *,
    wanted: Candidates | None = None,
    owner: Owner | None = None,
    dry_run: bool = False,
    lease_seconds: float = LEASE_SECONDS,
    on_progress: Callable[[CompactionProgress], None] | None = None,
    stops: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> RewritingReport:
    """Move all that waits in older layouts of one reader into the current one; safe beside everything.

    It may be interrupted: what is published by then stays, and the next run goes on.

    :param queue_id: a queue without subscriptions, or a subscription.
    :param wanted: of it ``most_bytes`` counts: about so much is written into one file, and three times as much is in
        memory. Everything that waits is moved.
    :param owner: the task; a newer attempt of it takes over from an older one. By default one that nobody shares.
    :param dry_run: only say what would be moved.
    :param lease_seconds: how long locks last unless they are renewed.
    :param on_progress: called as entries are read.
    :param stops: asked again and again whether to end early.
    :param clock: tells seconds; only differences count.
    :raises InvalidArgument: the choice says more than that, or the store has no place for files.
    :raises SegmentLost: a file is missing or damaged.
    :raises SegmentUnavailable: a filesystem does not answer.
    :raises LeaseLost: the attempt was revoked, or a newer one has begun.
    """
    begun = clock()
    wanted = wanted or Candidates()
    if wanted != Candidates(most_bytes=wanted.most_bytes):
        raise InvalidArgument(
            f"a rewriting of older layouts takes everything that waits there, found a choice: {wanted}",
            hint="leave out what says which segments are worth it, such as small_bytes, least and age_seconds",
        )
    with database.read() as work:
        queue = find_reader(work, queue_id)
    report = RewritingReport(queue.id, dry_run=dry_run, still_open=tuple(one.number for one in queue.older))
    settled = settled_snapshot(database, queue.number)
    plans = [(of, _plan(database, of, settled, of.units())) for of in map(queue.laid_out_as, queue.older)]
    if dry_run:
        report.units = [
            UnitCompacted(plan.unit, len(plan.segments), plan.row_entries, plan.entries, 0, 0)
            for _, in_layout in plans
            for plan in in_layout
        ]
        return report
    job = _Job(
        database,
        queue,
        wanted.most_bytes,
        owner or Owner.unique(),
        lease_seconds,
        on_progress or (lambda _: None),
        stops,
        clock,
        report,
        total=sum(plan.entries for _, in_layout in plans for plan in in_layout),
    )
    if job.total:
        check_base(database.segments)
        load_pyarrow()
    with attempt(database, queue, job.owner):
        job.move_all(plans)
    close_layouts(database, queue)
    with database.read() as work:
        report.still_open = tuple(one.number for one in find_reader(work, queue_id).older)
    report.seconds = clock() - begun
    return report


def _plan(database: Database, older: Queue, settled: Snapshot, units: Sequence[Range]) -> list[UnitPlan]:
    """Find what waits in units of one layout."""
    within = Range(units[0].first, units[-1].end)
    with database.read() as work:
        segments = waiting_segments(work, older, settled, within)
        counted = queries.entries.count_by_unit(
            work,
            older.number,
            older.layout,
            settled,
            first=within.first,
            end=within.end,
            buckets_per_range=older.buckets_per_range,
        )
    rows = {number * older.buckets_per_range: (entries, size) for number, entries, size, _ in counted}
    by_unit: defaultdict[int, list[Segment]] = defaultdict(list)
    for segment in segments:
        by_unit[segment.first].append(segment)
    return [
        UnitPlan(
            unit=unit,
            segments=tuple(by_unit[unit.first]),
            rows=unit.first in rows,
            row_entries=rows.get(unit.first, (0, 0))[0],
            row_bytes=rows.get(unit.first, (0, 0))[1],
        )
        for unit in units
        if unit.first in by_unit or unit.first in rows
    ]


@dataclass(slots=True)
class _Job:
    database: Database
    queue: Queue
    most_bytes: int
    owner: Owner
    lease_seconds: float
    on_progress: Callable[[CompactionProgress], None]
    stops: Callable[[], bool]
    clock: Callable[[], float]
    report: RewritingReport
    total: int
    """Entries that are to be moved, about."""
    done: int = 0

    def move_all(self, plans: Sequence[tuple[Queue, Sequence[UnitPlan]]]) -> None:
        """Move what waits, some units at a time, until all is done or the job is told to stop."""
        try:
            for older, in_layout in plans:
                for batch in batches(in_layout, self.most_bytes):
                    self._move(older, batch)
        except _Stopped:
            log.info("the rewriting of %s was told to stop", self.queue.id)

    def _move(self, older: Queue, plans: Sequence[UnitPlan]) -> None:
        """Move what waits in some units; what cannot be locked is passed over."""
        self._check_stop()
        claimed_at = self.clock()
        areas = [Area(plan.unit.first, plan.unit.end) for plan in plans]
        leases = acquire_free(self.database, older, areas, owner=self.owner, lease_seconds=self.lease_seconds)
        self.report.passed_over += len(plans) - len(leases)
        if not leases:
            return
        reached("locked")
        with LeaseKeeper(
            self.database, leases, lease_seconds=self.lease_seconds, claimed_at=claimed_at, clock=self.clock
        ) as keeper:
            try:
                self._rewrite(older, leases, keeper)
            except (LeaseLost, LayoutClosed) as error:
                log.warning("a rewriting of %s has published nothing: %s", self.queue.id, error.message)
                self.report.lost += len(leases)

    def _rewrite(self, older: Queue, leases: Sequence[Lease], keeper: LeaseKeeper) -> None:
        database = self.database
        # Every snapshot sees what is moved, also that of a fenced drain, which must take nothing that is not settled.
        settled = settled_snapshot(database, self.queue.number)
        plans = _plan(database, older, settled, sorted(lease.range for lease in leases))
        if not plans:
            return  # drained meanwhile
        opened = OpenTransaction(database, kind="long", load=NO_READER)
        pieces: Pieces | None = None
        try:
            base = begin_load(database, opened)
            with database.read() as work:
                target = queue_of(work, self.queue.id, opened.id)
            pieces = Pieces(
                target=target,
                base=base,
                store_id=identity_of(database).store_id,
                transaction=opened.id,
                most_bytes=self.most_bytes,
            )
            reached("begun")
            try:
                units = [self._read(older, plan, settled, pieces, keeper) for plan in plans]
            except SegmentLost:
                # Whoever has taken the locks may have drained what was to be read, and clean-up deleted it.
                check_leases(database, leases)
                raise
            pieces.end()
            if not pieces.written:
                opened.abort()
                return
            reached("written")
            needed = {unit.unit for unit in units}
            held = [lease for lease in leases if lease.range in needed]
            publish(database, publication(older, target, opened.id, settled, held, units, pieces.written))
        except BaseException as error:
            opened.abort(error)  # after a publication there is nothing left to abort
            raise
        reached("published")
        self.report.segments += sum(len(one.report.slices) for one in pieces.written)
        self.report.files += [one.report.file for one in pieces.written]
        self.report.units += [
            UnitCompacted(
                one.unit, len(one.segments), one.rows, one.read, one.written, superseded=one.read - one.written
            )
            for one in units
        ]

    def _read(self, older: Queue, plan: UnitPlan, settled: Snapshot, pieces: Pieces, keeper: LeaseKeeper) -> MovedUnit:
        """Read a unit, in short SQL transactions, into pieces."""
        moved = MovedUnit(plan.unit, plan.segments)
        reader = UnitReader(older, settled, plan.unit, plan.segments, rows=_CHUNK_ROWS, size=_CHUNK_BYTES)
        try:
            is_last = False
            while not is_last:
                with self.database.read() as work:
                    chunk = reader.read(work)
                is_last = chunk.entries.is_last or not chunk.entries
                if chunk.entries:
                    moved.add(chunk)
                    if pieces.add(chunk):
                        reached("piece")
                    self.done += len(chunk.entries)
                    self.on_progress(CompactionProgress(min(self.done, self.total), self.total))
                keeper.check()
                self._check_stop()
        finally:
            reader.close()
        return moved

    def _check_stop(self) -> None:
        if self.stops():
            raise _Stopped
