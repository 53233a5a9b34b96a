"""Compaction: many small segments of a unit, and rows, become one segment of their reader.

1. Look what waits, and choose what is worth it.
2. Lock the units that nobody works on; the others are passed over.
3. Look again under the locks, begin a long transaction, and write what its reader has not drained into a file.
4. Publish in one SQL transaction, in the critical section of the locks: merged segments are there, their inputs are
   hidden, merged rows are gone, and the long transaction has ended.

What dies before the publication has left a file of a transaction that expires: clean-up deletes it. Appends and loads
are not held back: rows that are not settled, and all that commits meanwhile, stay where they are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from export_queue.core.errors import LeaseLost, StoreError
from export_queue.core.locks import Lease, Owner, claim, hold, release, renew
from export_queue.core.queue import Entries, Position, Queue, Range, find_reader, remove_span
from export_queue.core.segments.candidates import Candidates, UnitPlan, choose_candidates
from export_queue.core.segments.catalogue import begin_load, waiting_segments
from export_queue.core.segments.files import check_base, load_pyarrow
from export_queue.core.segments.merging import UnitReader
from export_queue.core.segments.model import FileReport, Segment, Slice
from export_queue.core.segments.writing import write_merged
from export_queue.core.store import Database, identity_of, queries
from export_queue.core.transactions import OpenTransaction, Snapshot, settled_snapshot

if TYPE_CHECKING:
    import pyarrow as pa

COMPACTION_PRIORITY = 25
LEASE_SECONDS = 60.0
UNITS_AT_ONCE = 64
"""Units that one publication merges."""
_CHUNK_ROWS = 8192
_CHUNK_BYTES = 4 << 20
_NO_READER = 0
"""As for a first load of nobody: fenced drains and sweeps do not wait for a transaction that adds no entries."""
_NOTHING = Snapshot(0, ())
"""Sees no rows."""

log = logging.getLogger("export_queue.segments")


@dataclass(slots=True)
class CompactionReport:
    """What one compaction did for one reader, or would do."""

    queue: str
    dry_run: bool = False
    units: int = 0
    """Units in which something was merged."""
    inputs: int = 0
    """Segments that were merged."""
    outputs: int = 0
    read: int = 0
    """Entries of segments and rows that were merged; of a dry run about."""
    rows: int = 0
    """How many of them were rows."""
    written: int = 0
    superseded: int = 0
    """Entries of one key and one transaction in whose place a later one of the same transaction counts."""
    passed_over: int = 0
    """Units that somebody worked on."""
    lost: int = 0
    """Units whose locks were revoked, or whose rows changed, before the publication: all is as it was."""
    files: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)

    def line(self) -> str:
        """Say it in one line."""
        if self.dry_run:
            return (
                f"{self.queue}: would merge {self.inputs} segments and {self.rows} rows in {self.units} units, about "
                f"{self.read} entries; {self.passed_over} units are worked on"
            )
        return (
            f"{self.queue}: {self.inputs} segments and {self.rows} rows merged into {self.outputs} segments in "
            f"{self.units} units: {self.read} read = {self.written} written + {self.superseded} superseded; "
            f"{self.passed_over} units passed over, {self.lost} lost"
        )


@dataclass(slots=True)
class _Merged:
    """What was written of one unit."""

    plan: UnitPlan
    read: int = 0
    rows: int = 0
    written: int = 0
    lowest_seq: int = 0
    highest_seq: int = 0
    first: Position | None = None
    last: Position | None = None

    def count(self, entries: Entries, *, read: int, rows: int) -> None:
        self.read += read
        self.rows += rows
        if not entries:
            return
        lowest, highest = min(entries.seqs), max(entries.seqs)
        self.lowest_seq = min(self.lowest_seq, lowest) if self.written else lowest
        self.highest_seq = max(self.highest_seq, highest)
        self.written += len(entries)
        self.first = self.first or entries.position(0)
        self.last = entries.position(len(entries) - 1)


def compact(
    database: Database,
    queue_id: str,
    *,
    wanted: Candidates | None = None,
    owner: Owner | None = None,
    dry_run: bool = False,
    lease_seconds: float = LEASE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> CompactionReport:
    """Merge small segments and settled rows of one reader, unit by unit; safe beside everything, and to interrupt.

    :param queue_id: a queue without subscriptions, or a subscription.
    :param wanted: what is worth it.
    :param owner: the task; a newer attempt of it takes over from an older one. By default one that nobody shares.
    :param dry_run: only say what would be merged.
    :param lease_seconds: how long locks last unless they are renewed.
    :param clock: tells seconds; only differences count.
    :raises SegmentLost: a file is missing or damaged.
    :raises SegmentUnavailable: a filesystem does not answer.
    """
    wanted = wanted or Candidates()
    with database.read() as work:
        queue = find_reader(work, queue_id)
    report = CompactionReport(queue.id, dry_run=dry_run)
    plans = _plan(database, queue, queue.units(), wanted)
    if dry_run:
        _foretell(database, queue, plans, report)
        return report
    check_base(database.segments)
    load_pyarrow()
    worker = _Worker(database, queue, wanted, owner or Owner.unique(), lease_seconds, clock, report)
    for start in range(0, len(plans), UNITS_AT_ONCE):
        worker.merge([plan.unit for plan in plans[start : start + UNITS_AT_ONCE]])
    return report


def _plan(database: Database, queue: Queue, units: Sequence[Range], wanted: Candidates) -> list[UnitPlan]:
    # Every snapshot sees what is merged, also that of a fenced drain, which must take nothing that is not settled.
    settled = settled_snapshot(database, queue.number)
    if not units:
        return []
    within = Range(units[0].first, units[-1].end)
    with database.read() as work:
        segments = waiting_segments(work, queue, settled, within)
        if not segments:
            return []
        rows = {
            unit: (entries, size)
            for unit, entries, size, _ in queries.entries.count_by_unit(
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
    by_unit: dict[int, list[Segment]] = {}
    for segment in segments:
        by_unit.setdefault(segment.first, []).append(segment)
    plans = []
    for unit in units:
        entries, size = rows.get(unit.first // queue.buckets_per_range, (0, 0))
        plan = choose_candidates(
            unit, by_unit.get(unit.first, ()), row_entries=entries, row_bytes=size, wanted=wanted, now_ms=now_ms
        )
        if plan is not None:
            plans.append(plan)
    return plans


def _foretell(database: Database, queue: Queue, plans: Sequence[UnitPlan], report: CompactionReport) -> None:
    with database.read() as work:
        locks = queries.locks.of_queue(work, queue.number, now=work.now())
    for plan in plans:
        if any(row["first_bucket"] < plan.unit.end and row["end_bucket"] > plan.unit.first for row in locks):
            report.passed_over += 1
            continue
        report.units += 1
        report.inputs += len(plan.segments)
        report.rows += plan.row_entries
        report.read += plan.entries


@dataclass(slots=True)
class _Worker:
    database: Database
    queue: Queue
    wanted: Candidates
    owner: Owner
    lease_seconds: float
    clock: Callable[[], float]
    report: CompactionReport
    renewed_at: float = 0.0

    def merge(self, units: Sequence[Range]) -> None:
        """Merge what is worth it in some units; what cannot be locked is passed over."""
        claimed_at = self.clock()
        leases = claim(
            self.database,
            self.queue,
            units,
            owner=self.owner,
            lease_seconds=self.lease_seconds,
            priority=COMPACTION_PRIORITY,
        )
        self.renewed_at = claimed_at
        self.report.passed_over += len(units) - len(leases)
        reached("locked")
        try:
            plans = _plan(self.database, self.queue, [lease.range for lease in leases], self.wanted)
            by_unit = {lease.range: lease for lease in leases}
            needed = [by_unit[plan.unit] for plan in plans]
            if plans:
                self._merge(plans, needed)
        except LeaseLost as error:
            log.warning("a compaction of %s has lost its locks: %s", self.queue.id, error.message)
            self.report.lost += len(leases)
        finally:
            release(self.database, leases)

    def _merge(self, plans: Sequence[UnitPlan], leases: Sequence[Lease]) -> None:
        database = self.database
        settled = settled_snapshot(database, self.queue.number)
        with database.begin() as work:
            queries.segments.admit(work)
            queries.compactions.admit(work)
        opened = OpenTransaction(database, kind="long", load=_NO_READER)
        try:
            base = begin_load(database, opened)
            reached("begun")
            merged = [_Merged(plan) for plan in plans]
            reports = write_merged(
                self._batches(merged, settled, leases),
                base=base,
                store_id=identity_of(database).store_id,
                transaction=opened.id,
                name="compaction",
            )
            reached("written")
            self._publish(opened.id, leases, settled, merged, reports)
        except BaseException as error:
            opened.abort(error)  # after a publication there is nothing left to abort
            raise
        reached("published")
        self._count(merged, reports)

    def _batches(
        self, merged: Sequence[_Merged], settled: Snapshot, leases: Sequence[Lease]
    ) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        import pyarrow as pa

        bpr = self.queue.buckets_per_range
        for one in merged:
            reader = UnitReader(
                self.queue,
                settled if one.plan.rows else _NOTHING,
                one.plan.unit,
                one.plan.segments,
                rows=_CHUNK_ROWS,
                size=_CHUNK_BYTES,
            )
            try:
                while True:
                    with self.database.read() as work:
                        chunk = reader.read(work)
                    entries = chunk.entries
                    rows = chunk.rows
                    one.count(entries, read=sum(len(run.rows) for run in chunk.runs) + rows, rows=rows)
                    if entries:
                        first = one.plan.unit.first // bpr * bpr
                        yield (
                            first,
                            first + bpr,
                            pa.RecordBatch.from_arrays(
                                [
                                    pa.array(entries.buckets, pa.int32()),
                                    pa.array(entries.keys, pa.binary()),
                                    pa.array(entries.seqs, pa.int64()),
                                    pa.array(entries.values, pa.binary()),
                                ],
                                names=["bucket", "key", "seq", "value"],
                            ),
                        )
                    self._renew(leases)
                    if entries.is_last or not (entries or chunk.runs):
                        break
            finally:
                reader.close()

    def _renew(self, leases: Sequence[Lease]) -> None:
        if self.clock() - self.renewed_at > self.lease_seconds / 3:
            at = self.clock()
            renew(self.database, leases, lease_seconds=self.lease_seconds)
            self.renewed_at = at

    def _publish(
        self,
        transaction: int,
        leases: Sequence[Lease],
        settled: Snapshot,
        merged: Sequence[_Merged],
        reports: Sequence[FileReport],
    ) -> None:
        """Publish; an answer that was lost is looked up."""
        try:
            with self.database.begin() as work:
                self.database.dialect.hold_long(
                    work.connection, transaction, (), store_id=identity_of(self.database).store_id
                )
                now_ms = 0
                for lease in leases:
                    now_ms = hold(work, lease)
                slices = {part.first: (report, part) for report in reports for part in report.slices}
                for number, one in enumerate(merged, 1):
                    self._replace(work, (transaction, number), one, slices.get(one.plan.unit.first), settled, now_ms)
                self.database.dialect.end_long(work.connection, transaction)
                reached("publishing")
        except (StoreError, OSError):
            with self.database.read() as work:
                if not queries.compactions.is_published(work, transaction):
                    raise

    def _replace(
        self,
        work: Any,
        output: tuple[int, int],
        one: _Merged,
        written: tuple[FileReport, Slice] | None,
        settled: Snapshot,
        now_ms: int,
    ) -> None:
        """Let the merged segment of a unit stand for its inputs, in the critical section."""
        queue, plan = self.queue, one.plan
        if one.rows and one.first is not None and one.last is not None:
            removed = remove_span(work, queue, settled, one.first, one.last)
            # A dead letter that was retried meanwhile has come back as a row, below what is settled.
            if removed != one.rows:
                raise LeaseLost(f"{plan.unit}: expected {one.rows} rows under the lock, found {removed}")
        if written is None:
            return  # all of it was drained
        report, part = written
        if part.entries != one.written:
            raise LeaseLost(f"{plan.unit}: expected {one.written} entries in the file, found {part.entries}")
        known = queries.compactions.partitions_of(work, queue.number)
        keys = [(segment.transaction, segment.number) for segment in plan.segments]
        new = [key for key in keys if key not in known]
        given = queries.compactions.give_partitions(work, queue.number, queue.layout, plan.unit.first, len(new) + 1)
        inputs = {key: known[key] for key in keys if key in known}
        inputs |= {key: given + i for i, key in enumerate(new)}
        row = {
            "transaction_id": output[0],
            "number": output[1],
            "queue_number": queue.number,
            "layout": queue.layout,
            "first_bucket": plan.unit.first,
            "end_bucket": plan.unit.end,
            "file": report.file,
            "file_bytes": report.bytes,
            "checksum": report.checksum,
            "row_group_first": part.row_group_first,
            "row_group_end": part.row_group_end,
            "entries": part.entries,
            "bytes": part.bytes,
            "lowest_seq": one.lowest_seq,
            "highest_seq": one.highest_seq,
        }
        queries.compactions.insert(work, queue.number, row, partition=given + len(new))
        hidden = queries.compactions.hide(work, queue.number, inputs, by=output, now_ms=now_ms)
        if hidden != len(inputs):
            raise LeaseLost(f"{plan.unit}: expected {len(inputs)} segments that wait, found {hidden}")

    def _count(self, merged: Sequence[_Merged], reports: Sequence[FileReport]) -> None:
        report = self.report
        report.files += [one.file for one in reports]
        for one in merged:
            report.units += 1
            report.inputs += len(one.plan.segments)
            report.outputs += bool(one.written)
            report.read += one.read
            report.rows += one.rows
            report.written += one.written
            report.superseded += one.read - one.written


def reached(step: str) -> None:
    """Come to a step: tests stop here."""
