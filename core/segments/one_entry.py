"""One entry for each key of a long transaction: before its commit only the latest one is kept (I9).

Everything that a transaction adds has an order: rows that of their flush, files that of their staging. If a unit has
files of several stagings, or the queue has staged rows too, the keys are compared, and the entry with the highest order
is kept. Other rows are deleted. A segment that loses entries is written again without them, which nobody notices, since
it is only staged. So no reader ever meets two entries of one transaction and key.

The commit refuses a transaction in which something was staged since the last comparison; then it is compared again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from export_queue.core.queue import Queue, queue_of
from export_queue.core.retry import Retry
from export_queue.core.segments.files import load_pyarrow, parent_of
from export_queue.core.segments.model import Segment, by_file
from export_queue.core.segments.reading import row_group_tables
from export_queue.core.segments.verified_file import COLUMNS
from export_queue.core.segments.writing import write_merged
from export_queue.core.store import Database, identity_of, queries
from export_queue.core.transactions import BEFORE_COMMIT, KnownKeys, OpenTransaction

if TYPE_CHECKING:
    import pyarrow as pa

ENTRIES_AT_ONCE = 1 << 20
"""Approximate number of entries to compare at once. Their keys are in memory."""
MOST_HASHES = 1 << 24
"""Maximum number of keys whose hashes a process keeps, eight bytes each."""
_TRIES = Retry(attempts=5, seconds=60, first_pause=0.2, longest_pause=5.0)
_ROWS = -1
"""The staged rows' number among the sources."""


def leave_one_entry(database: Database, transaction: int, known: KnownKeys = (), seconds: float | None = None) -> None:
    """Remove all entries of a long transaction but the latest of each key. Repeating it is harmless.

    :param known: hashes of the keys that this process has staged. If they cover all files, no file is read back.
    :param seconds: how long to wait for each answer of the store; an hour by default.
    :raises InvalidArgument: keys must be compared, and pyarrow is not installed.
    :raises SegmentLost: a file is missing or damaged.
    :raises SegmentRefused: this process may not read the files.
    :raises SegmentUnavailable: a filesystem does not answer.
    :raises StagedMeanwhile: other processes are staging.
    """
    with database.read(seconds=seconds) as work:
        if not queries.staged_twice.may_repeat(work, transaction):
            return
    load_pyarrow()
    _TRIES.call(lambda: _compare(database, transaction, known, seconds))


BEFORE_COMMIT.append(leave_one_entry)


def remember_keys(opened: OpenTransaction, files: Iterable[str], hashes: pa.Array) -> None:
    """Remember the hashes of all keys that this process has staged in files."""
    known = sum(len(found) for _, found in opened.known_keys)
    if known + len(hashes) <= MOST_HASHES:
        opened.known_keys.append((frozenset(files), hashes))


def _are_unique(segments: Sequence[Segment], known: KnownKeys) -> bool:
    """Return whether all keys in some segments are known to differ, by their hashes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    files = {one.file for one in segments}
    found = [(of_call, hashes) for of_call, hashes in known if of_call <= files]
    if files != frozenset().union(*(of_call for of_call, _ in found)):
        return False
    hashes = pa.concat_arrays([hashes for _, hashes in found])
    # Counted class by class: one large hash table does not fit into the caches, and takes three times as long.
    classes = pc.bit_wise_and(hashes, 63).cast(pa.int8())
    order = pc.sort_indices(classes)
    ends = pc.run_end_encode(classes.take(order)).run_ends.to_pylist()
    hashes = hashes.take(order)
    return all(len(pc.unique(hashes[start:end])) == end - start for start, end in pairwise([0, *ends]))


def _compare(database: Database, transaction: int, known: KnownKeys, seconds: float | None) -> None:
    with database.begin(seconds=seconds) as work:
        stagings = queries.staged_twice.hold_stagings(work, transaction)
        if stagings is None:
            return  # the transaction has ended, which the commit reports
        segments = [Segment.from_row(row) for row in queries.staged_twice.staged_segments(work, transaction)]
        rows = queries.staged_twice.count_rows(work, transaction)
        folder = queries.segments.folder_of(work, transaction) or ""
    by_queue: defaultdict[int, list[Segment]] = defaultdict(list)
    for segment in segments:
        by_queue[segment.queue_number].append(segment)
    for number, found in by_queue.items():
        if number not in rows and _are_unique(found, known):
            continue
        with database.read(seconds=seconds) as work:
            queue_id = queries.staged_twice.queue_id(work, number)
            queue = None if queue_id is None else queue_of(work, queue_id, transaction)
        # The commit refuses files of a removed queue and of a closed layout.
        if queue is not None and queue.layout == found[0].layout:
            base = parent_of(parent_of(folder))
            _Comparison(database, transaction, queue, base, rows.get(number, 0), seconds).run(found)
    with database.begin(seconds=seconds) as work:
        queries.staged_twice.note_checked(work, transaction, stagings)


@dataclass(slots=True)
class _Comparison:
    """The comparison of one queue's keys.

    :param queue: the queue in the layout in which the transaction adds.
    :param base: the place of all segments.
    :param rows: number of rows that are staged for the queue.
    """

    database: Database
    transaction: int
    queue: Queue
    base: str
    rows: int
    seconds: float | None = None
    """How long to wait for each answer of the store."""
    _losers: dict[int, list[pa.Array]] = field(default_factory=dict)
    """By the number of a segment: the keys that it loses."""
    _lost_rows: list[queries.staged_twice.Row] = field(default_factory=list)

    def run(self, segments: Sequence[Segment]) -> None:
        """Compare interval by interval, and replace segments at the ends of units."""
        for first, end, found in self._intervals(segments):
            self._compare(first, end, found)
            if end == max(one.end for one in found):
                self._replace(found)

    def _intervals(self, segments: Sequence[Segment]) -> Iterator[tuple[int, int, list[Segment]]]:
        """Join small units, and cut large ones between buckets."""
        by_unit: defaultdict[int, list[Segment]] = defaultdict(list)
        for segment in segments:
            by_unit[segment.first].append(segment)
        rows_of_bucket = self.rows / self.queue.buckets
        joined: list[Segment] = []
        size = 0.0
        for first, found in sorted(by_unit.items()):
            if not self.rows and len({one.add_order for one in found}) == 1:
                continue
            end = found[0].end
            of_unit = sum(one.entries for one in found) + rows_of_bucket * (end - first)
            if joined and size + of_unit > ENTRIES_AT_ONCE:
                yield joined[0].first, joined[-1].end, joined
                joined, size = [], 0.0
            if of_unit <= ENTRIES_AT_ONCE:
                joined, size = joined + found, size + of_unit
                continue
            step = max(1, int((end - first) * ENTRIES_AT_ONCE / of_unit))
            for start in range(first, end, step):
                yield start, min(start + step, end), found
        if joined:
            yield joined[0].first, joined[-1].end, joined

    def _compare(self, first: int, end: int, segments: Sequence[Segment]) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        tables = [self._labelled(one, first, end) for one in by_file(segments)]
        rows: list[queries.staged_twice.Row] = []
        if self.rows:
            bounds = {"first": first, "end": end, "buckets": self.queue.buckets}
            with self.database.read(seconds=self.seconds) as work:
                rows = queries.staged_twice.rows(work, self.transaction, self.queue.number, **bounds)
            columns = {
                "key": pa.array([row[2] for row in rows], pa.binary()),
                "source": pa.repeat(pa.scalar(_ROWS, pa.int32()), len(rows)),
                "order": pa.array([row[3] for row in rows], pa.int64()),
            }
            tables.append(pa.table(columns))
        table = pa.concat_tables(tables)
        if len(pc.unique(table["key"])) == table.num_rows:
            return
        latest = table.select(["key", "order"]).group_by("key").aggregate([("order", "max"), ("order", "count")])
        latest = latest.filter(pc.greater(latest["order_count"], 1))
        several = table.filter(pc.is_in(table["key"], latest["key"].combine_chunks()))
        several = several.join(latest.select(["key", "order_max"]), "key")
        lost = several.filter(pc.less(several["order"], several["order_max"]))
        lost_rows = {row["key"] for row in lost.filter(pc.equal(lost["source"], _ROWS)).to_pylist()}
        self._lost_rows += [row for row in rows if row[2] in lost_rows]
        for number in pc.unique(lost["source"]).to_pylist():
            if number != _ROWS:
                keys = lost.filter(pc.equal(lost["source"], number))["key"]
                self._losers.setdefault(number, []).append(keys.combine_chunks())

    def _labelled(self, segments: Sequence[Segment], first: int, end: int) -> pa.Table:
        """Read the keys of some segments in one file, with the number and order of their segment."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = [
            pa.table(
                {
                    "key": pa.array([], pa.binary()),
                    "source": pa.array([], pa.int32()),
                    "order": pa.array([], pa.int64()),
                }
            )
        ]
        for segment, table in row_group_tables(segments, ("bucket", "key"), first=first, end=end):
            bucket = table["bucket"]
            keys = table.filter(pc.and_(pc.greater_equal(bucket, first), pc.less(bucket, end)))["key"]
            columns = {
                "key": keys,
                "source": pa.repeat(pa.scalar(segment.number, pa.int32()), len(keys)),
                "order": pa.repeat(pa.scalar(segment.add_order, pa.int64()), len(keys)),
            }
            found.append(pa.table(columns))
        return pa.concat_tables(found)

    def _replace(self, segments: Sequence[Segment]) -> None:
        """Write the segments that lose entries again without them."""
        losing = [one for one in segments if one.number in self._losers]
        rows: list[dict[str, Any]] = []
        for of_file in by_file(losing):
            reports = write_merged(
                self._left_of(of_file),
                base=self.base,
                store_id=identity_of(self.database).store_id,
                transaction=self.transaction,
                name="batch",
            )
            orders = {one.first: one.add_order for one in of_file}
            rows += [
                report.columns(part, self.queue, add_order=orders[part.first])
                for report in reports
                for part in report.slices
            ]
        if losing or self._lost_rows:
            with self.database.begin(seconds=self.seconds) as work:
                store_id = identity_of(self.database).store_id
                self.database.dialect.steps.hold_long(work.connection, self.transaction, (), store_id=store_id)
                emptied = {one.number: one.entries for one in losing}
                queries.staged_twice.replace_segments(work, self.transaction, emptied, rows)
                queries.staged_twice.delete_rows(work, self.transaction, self.queue.number, self._lost_rows)
        self._losers, self._lost_rows = {}, []

    def _left_of(self, segments: Sequence[Segment]) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Read some segments in one file without the entries that they lose."""
        import pyarrow as pa
        import pyarrow.compute as pc

        lost = {one.number: pa.concat_arrays(self._losers[one.number]) for one in segments}
        for segment, table in row_group_tables(segments, COLUMNS):
            kept = table.filter(pc.invert(pc.is_in(table["key"], lost[segment.number])))
            for batch in kept.combine_chunks().to_batches():
                yield segment.first, segment.end, batch
