"""Falling back: if the file of merged segments is lost, their inputs count again in their place.

Entries drained from a merged segment are marked as drained in its inputs, which are read for that. Rows that were
merged are in no other file: they are discarded, and counted.

A move falls back as a whole, with everything that its transaction made of segments: the inputs count again in their own
layout, and entries drained meanwhile are delivered again (I9).
"""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from export_queue.core.errors import InvalidArgument
from export_queue.core.locks import LOAD_PRIORITY, Area, Lease, LeaseKeeper, Owner, acquire, hold, release, renew
from export_queue.core.queue import Queue, Range
from export_queue.core.segments.catalogue import waiting_segments
from export_queue.core.segments.model import Segment
from export_queue.core.segments.reading import SegmentReader
from export_queue.core.store import Database, EntryKey, Work, queries
from export_queue.core.transactions import take_snapshot

LEASE_SECONDS = 30.0
"""How long the locks last unless they are renewed: the longest wait of drains after a kill."""
_Sized = tuple[EntryKey, int]
"""The position of an entry, and the size of its key and value."""
_place: Callable[[_Sized], EntryKey] = itemgetter(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FellBack:
    """What became of a lost file of merged segments."""

    file: str
    outputs: int
    """Merged segments that were in it."""
    inputs: int
    """Segments that count again."""
    given_up: int
    """Discarded entries: rows that were merged."""
    moved_back: bool = False
    """Whether they count again in an older layout, so that entries drained meanwhile are delivered again."""

    def line(self) -> str:
        """Return a one-line summary."""
        if self.moved_back:
            return (
                f"{self.file}: {self.inputs} segments count again in their older layout in place of {self.outputs} "
                "that they were rewritten into; entries drained from these are delivered again"
            )
        return (
            f"{self.file}: {self.inputs} segments count again in place of {self.outputs} merged ones; "
            f"{self.given_up} entries, which were rows, are discarded"
        )


def fall_back(database: Database, queue: Queue, file: str, *, who: str, wait_seconds: float = 60.0) -> FellBack:
    """Let the inputs of the merged segments in a lost file count again, and forget the merged segments.

    :param queue: the reader.
    :param file: the name of the lost file, from the error of a drain.
    :param who: name for the audit, which records a loss of rows.
    :param wait_seconds: how long to wait for others that work in the units.
    :raises InvalidArgument: no merged segment is pending in the file, or its inputs have been vacuumed.
    :raises SegmentLost: a part was drained, and a file of the inputs is missing too.
    :raises LockNotAvailable: others work in the units.
    :raises LeaseLost: a drain has waited long enough to revoke the locks; nothing has changed.
    """
    outputs, in_layout = _found(database, queue, file)
    (transaction,) = {one.transaction for one in outputs}
    with database.read() as work:
        moved_from = queries.compactions.layouts_moved_from(work, queue.number, transaction)
    if moved_from:
        outputs = _rewritten(database, in_layout, transaction)
        if all(one.file != file for one in outputs):
            raise _nothing_left(file, of_rows=True)
    leases = acquire(
        database,
        in_layout,
        [Area(*unit) for unit in sorted({(one.first, one.end) for one in outputs})],
        owner=Owner.unique(),
        priority=LOAD_PRIORITY,
        lease_seconds=LEASE_SECONDS,
        wait_seconds=wait_seconds,
    )
    renewed_at = time.monotonic()
    try:
        renew(database, leases, lease_seconds=LEASE_SECONDS)
        with LeaseKeeper(database, leases, lease_seconds=LEASE_SECONDS, claimed_at=renewed_at) as keeper:
            if moved_from:
                return _move_back(database, in_layout, file, leases, transaction, moved_from)
            return _replace(database, in_layout, file, leases, who, keeper.check)
    finally:
        release(database, leases)


def _found(database: Database, queue: Queue, file: str) -> tuple[list[Segment], Queue]:
    """Find the merged segments in a file, and the queue in their layout."""
    for layout in queue.layouts():
        in_layout = queue.laid_out_as(layout)
        if outputs := _outputs(database, in_layout, file):
            return outputs, in_layout
    raise _nothing_waits(queue, file)


def _nothing_waits(queue: Queue, file: str) -> InvalidArgument:
    return InvalidArgument(
        f"queue {queue.id!r}: no merged segment is pending in file {file}",
        hint="name a file of a compaction that is not drained; list them: export-queue segments QUEUE",
    )


def _nothing_left(file: str, *, of_rows: bool = False) -> InvalidArgument:
    why = "found rows, which are in no other file" if of_rows else "but they have been vacuumed"
    return InvalidArgument(
        f"file {file}: expected the segments that it was merged from, {why}",
        hint="store.dead_letters.give_up_file(queue_id, file) lets drains skip what is lost",
    )


def _outputs(database: Database, queue: Queue, file: str) -> list[Segment]:
    with database.read() as work:
        known = queries.compactions.merged(work, queue.number)
    return [one for one in _waiting(database, queue) if one.file == file and one.key in known]


def _rewritten(database: Database, queue: Queue, transaction: int) -> list[Segment]:
    """Find the pending segments that a move has made of segments."""
    with database.read() as work:
        keys = set(queries.compactions.rewritten(work, queue.number, transaction))
    return [one for one in _waiting(database, queue) if one.key in keys]


def _waiting(database: Database, queue: Queue) -> list[Segment]:
    snapshot = take_snapshot(database)
    with database.read() as work:
        return waiting_segments(work, queue, snapshot, Range(0, queue.buckets))


def _move_back(
    database: Database, queue: Queue, file: str, leases: Sequence[Lease], transaction: int, layouts: Mapping[int, int]
) -> FellBack:
    """Let segments count again in the layouts from which they were moved.

    :param queue: the queue in the layout into which they were moved.
    :param layouts: the number of segments by layout.
    """
    outputs = _rewritten(database, queue, transaction)  # again: under the locks nothing more is drained
    if all(one.file != file for one in outputs):
        raise _nothing_waits(queue, file)
    with database.begin() as work:
        hold(work, *leases)
        for layout in layouts:
            queries.layouts.open_again(work, queue.source_number, layout)
        if queries.compactions.restore_all(work, queue.number, transaction) != sum(layouts.values()):
            raise _nothing_left(file)  # some, or all, since they were counted
    return FellBack(file=file, outputs=len(outputs), inputs=sum(layouts.values()), given_up=0, moved_back=True)


def _replace(
    database: Database, queue: Queue, file: str, leases: Sequence[Lease], who: str, check: Callable[[], None]
) -> FellBack:
    inputs = given_up = 0
    outputs = _outputs(database, queue, file)  # again: under the locks nothing more is drained
    if not outputs:
        raise _nothing_waits(queue, file)
    hidden = _hidden_by(database, queue)
    parts = {one: _parts(one, hidden.get(one.key, ()), check) for one in outputs}
    for one in outputs:
        if not parts[one]:
            with database.read() as work:
                rows, _ = queries.compactions.made_of(work, one.key)
            raise _nothing_left(file, of_rows=rows == one.entries)
    with database.begin() as work:
        hold(work, *leases)
        for one in outputs:
            given_up += _count_lost(work, queue, one, parts[one])
            if queries.compactions.restore(work, queue.number, one.key) != len(parts[one]):
                raise _nothing_left(file)  # some, or all, since they were read
            for part in parts[one]:
                _note(work, queue, part)
            inputs += len(parts[one])
        if given_up:
            seqs = [(one.lowest_seq, one.highest_seq) for one in outputs]
            queries.acts.record(
                work, queue_id=queue.id, act="give up", who=who, letters=given_up, selection={"file": file}, seqs=seqs
            )
    return FellBack(file=file, outputs=len(outputs), inputs=inputs, given_up=given_up)


@dataclass(frozen=True, slots=True)
class _Part:
    """An input, and what the reader has drained of it through its output."""

    segment: Segment
    runs: tuple[list[_Sized], ...] = ()
    left: frozenset[EntryKey] | None = None
    """Positions of the entries that count again; None for all, if nothing of the output is drained."""


def _count_lost(work: Work, queue: Queue, output: Segment, parts: Sequence[_Part]) -> int:
    """Count the entries of an output that are not drained and in no input. With coalescing it is an upper bound."""
    rows, coalesced = queries.compactions.made_of(work, output.key)
    if not output.done:
        return rows
    done = queries.segments.parts_done(work, queue.number, output.key)
    left = output.entries - sum(entries for _, entries, _ in done.values())
    if coalesced:  # only the lost file says which of the rows are among them
        return min(rows, left)
    keys = frozenset[EntryKey]().union(*(part.left or () for part in parts))
    return left - len(keys)


def _hidden_by(database: Database, queue: Queue) -> dict[tuple[int, int], list[Segment]]:
    found: dict[tuple[int, int], list[Segment]] = {}
    with database.read() as work:
        rows = queries.compactions.hidden(work, queue.number, queue.layout)
        done = queries.segments.done(work, queue.number, first=0, end=queue.buckets)
    for row in rows:
        columns = dict(row)
        by = columns.pop("by_transaction"), columns.pop("by_number")
        del columns["hidden_ms"]
        key = (columns["transaction_id"], columns["number"])
        found.setdefault(by, []).append(Segment.from_row(columns, tuple(done.get(key, ()))))
    return found


def _parts(output: Segment, inputs: Sequence[Segment], check: Callable[[], None]) -> list[_Part]:
    """Find what is drained of inputs. If nothing of their output is, no file is read."""
    found = []
    for segment in inputs:
        check()
        if not output.done:
            found.append(_Part(segment))
            continue
        rows = read_sizes(segment)
        runs = tuple(run for part in output.done if (run := _within(rows, *part)))
        drained = {_place(row) for run in runs for row in run}
        found.append(_Part(segment, runs, frozenset(map(_place, rows)) - drained))
    return found


def read_sizes(segment: Segment) -> list[_Sized]:
    """Read the positions and sizes of a segment's undrained entries."""
    found: list[_Sized] = []
    with contextlib.closing(SegmentReader(segment, first=segment.first, end=segment.end)) as reader:
        while not reader.is_read:
            reader.fill()
            found += [(row[:3], len(row[1]) + len(row[3] or b"")) for row in reader.take(None)]
    return found


def _within(rows: list[_Sized], first: EntryKey, last: EntryKey) -> list[_Sized]:
    # From the beginning of the first key: its earlier entries were drained before, or the first entry replaces them.
    beginning: EntryKey = (first[0], first[1], 0)
    return rows[bisect_left(rows, beginning, key=_place) : bisect_right(rows, last, key=_place)]


def _note(work: Work, queue: Queue, part: _Part) -> None:
    key = part.segment.key
    if part.left is not None and not part.left:
        queries.segments.end_reading(work, queue.number, key)
        return
    for run in part.runs:
        queries.segments.note_done(
            work,
            queue.number,
            key,
            first=_place(run[0]),
            last=_place(run[-1]),
            entries=len(run),
            size=sum(size for _, size in run),
        )
