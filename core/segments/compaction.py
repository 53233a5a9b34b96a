"""Compaction: many small segments of a unit, and its rows, become one segment.

One compaction at a time works in a unit: a second one would find little that is small and free.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from typing_extensions import override

from export_queue.core.errors import InvalidArgument
from export_queue.core.locks import COMPACTION_PRIORITY, Area, Lease, Owner, standing_locks
from export_queue.core.queue import Queue, close_layouts, find_reader
from export_queue.core.segments.candidates import Candidates, UnitPlan, choose_candidates, choose_of_state
from export_queue.core.segments.compaction_report import CompactionProgress, CompactionReport
from export_queue.core.segments.mergers import LocalMerger, Merge, Merger
from export_queue.core.segments.moving import Move
from export_queue.core.segments.publication import Written
from export_queue.core.segments.replacement import Replacement, batches
from export_queue.core.store import Database, Reading, queries

LEASE_SECONDS = 60.0


def compact(
    database: Database,
    queue_id: str,
    *,
    wanted: Candidates | None = None,
    older_layouts: bool = False,
    owner: Owner | None = None,
    dry_run: bool = False,
    lease_seconds: float = LEASE_SECONDS,
    on_progress: Callable[[CompactionProgress], None] | None = None,
    stops: Callable[[], bool] = lambda: False,
    merger: Merger | None = None,
) -> CompactionReport:
    """Merge small segments and settled rows of one reader; safe at any time, and to interrupt.

    :param queue_id: a queue without subscriptions, a subscription, or a state.
    :param wanted: which units are worth a compaction; for older layouts only its ``most_bytes`` counts: the
        approximate size of a file, a third of what is in memory.
    :param older_layouts: move everything that is pending in older layouts into the current one instead.
    :param owner: the task; a newer attempt of it takes over from an older one. By default no other job shares it.
    :param dry_run: only report what would be done.
    :param lease_seconds: how long locks last unless they are renewed.
    :param on_progress: called after each publication, and as entries move.
    :param stops: asked often whether to end early. What is published stays.
    :param merger: reads and writes what is merged; by default this process.
    :raises InvalidArgument: older layouts, and a choice of segments; or the store has no place for files.
    :raises SegmentLost: a file is missing or damaged.
    :raises SegmentUnavailable: a filesystem does not answer.
    :raises LeaseLost: the attempt was revoked, or a newer one has begun.
    """
    begun = time.monotonic()
    wanted = wanted or Candidates()
    if older_layouts and wanted != Candidates(most_bytes=wanted.most_bytes):
        raise InvalidArgument(
            f"a move of older layouts takes everything that is pending there, found a choice: {wanted}",
            hint="omit the options that select segments, such as small_bytes, least and age_seconds",
        )
    with database.read() as work:
        queue = find_reader(work, queue_id, states=True)
    report = CompactionReport(queue.id, dry_run=dry_run, older_layouts=older_layouts)
    kind = Move if older_layouts else Compaction
    job = kind(
        database=database,
        queue=queue,
        wanted=wanted,
        merger=merger or LocalMerger(database),
        owner=owner or Owner.unique(),
        lease_seconds=lease_seconds,
        on_progress=on_progress,
        stops=stops,
        report=report,
    )
    job.run([queue.laid_out_as(one) for one in queue.older] if older_layouts else [queue])
    if older_layouts:
        if not dry_run:
            close_layouts(database, queue)
        with database.read() as work:
            report.still_open = tuple(one.number for one in find_reader(work, queue_id, states=True).older)
    report.seconds = time.monotonic() - begun
    return report


@dataclass(slots=True, kw_only=True)
class Compaction(Replacement):
    """Merges what is small and free in each unit of the current layout."""

    name = "compaction"
    takes_rows_alone = False

    @override
    def choose(
        self, work: Reading, queue: Queue, pending: Sequence[UnitPlan], leases: Sequence[Lease]
    ) -> list[UnitPlan]:
        locks = [lock for lock in standing_locks(work, queue) if lock.task != self.owner.task]
        now_ms, held = work.now(), {lease.range: lease for lease in leases}
        plans = []
        for one in pending:
            others = [lock for lock in locks if lock.area.first < one.unit.end and lock.area.end > one.unit.first]
            taken = frozenset[str]().union(*(lock.area.members or () for lock in others))
            is_free = held[one.unit].covers if leases else lambda name, taken=taken: name not in taken
            # In older layouts there may be older entries of the keys of a unit.
            choose = choose_of_state if queue.is_state and not self.queue.older else choose_candidates
            plan = None
            if not any(lock.area.members is None or lock.priority == COMPACTION_PRIORITY for lock in others):
                plan = choose(one, wanted=self.wanted, now_ms=now_ms, is_free=is_free)
            if plan is not None:
                plans.append(plan)
            elif others and len(one.segments) >= self.wanted.least:
                self.report.passed_over += 1
        return plans

    @override
    def area(self, plan: UnitPlan) -> Area:
        return Area(plan.unit.first, plan.unit.end, plan.members)

    @override
    def target(self, queue: Queue, transaction: int) -> Queue:
        return queue

    @override
    def write(self, merge: Merge, target: Queue, plans: Sequence[UnitPlan], check: Callable[[], None]) -> Written:
        shares = _shares(plans, self.merger.shares, self.wanted.most_bytes)
        found = self.merger.merge(merge, shares, check=check)
        files = [file for one in found for file in one.files]
        parts = {part.first: (file, part) for file in files for part in file.slices}
        units = sorted((unit for one in found for unit in one.units), key=lambda one: one.plan.unit.first)
        merged: list[queries.compactions.Merged] = []
        replaced: dict[tuple[int, int], tuple[int, int]] = {}
        for number, unit in enumerate(units, 1):
            if (of_unit := parts.get(unit.plan.unit.first)) is not None:
                file, part = of_unit
                merged.append(
                    queries.compactions.Merged(
                        segment=(merge.transaction, number),
                        columns=file.columns(part, target, lowest_seq=unit.lowest_seq, highest_seq=unit.highest_seq),
                        row_entries=unit.rows,
                        coalesced=unit.coalesced,
                    )
                )
                replaced |= dict.fromkeys(unit.plan.names, (merge.transaction, number))
        return Written(units, files, merged, replaced)


def _shares(plans: Sequence[UnitPlan], most: int, most_bytes: int) -> list[list[UnitPlan]]:
    """Cut the units of one publication into about ``most`` shares of similar size.

    :param most_bytes: maximum size of a share, unless it is one unit.
    """
    total, before = max(sum(plan.bytes for plan in plans), 1), 0
    shares: list[list[UnitPlan]] = [[] for _ in range(most)]
    for plan in plans:
        # a unit goes where its middle is
        shares[min((2 * before + plan.bytes) * most // (2 * total), most - 1)].append(plan)
        before += plan.bytes
    # Among large units a share may get twice its part, which is more than a process is meant to hold.
    return [part for share in shares for part in batches(share, most_bytes)]
