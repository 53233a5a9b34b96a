"""Falling back: a merged segment whose file is lost gives way to what it was merged of.

What the reader has drained of it is drained of its inputs, too, which are read for that. Rows that were merged are in
no other file: they are given up, and counted.

What was rewritten into another layout gives way as a whole, with all that its transaction has made of segments: the
inputs count again in their own layout, and what was drained by then comes once more (I9).
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
"""How long the locks last unless they are renewed: a killed process keeps drains waiting no longer."""
_Sized = tuple[EntryKey, int]
"""The place of an entry, and the bytes of its key and value."""
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
    """Entries that are nowhere else: rows that were merged."""
    moved_back: bool = False
    """Whether those count again in an older layout, so that what was drained of these comes once more."""

    def line(self) -> str:
        """Say it in one line."""
        if self.moved_back:
            return (
                f"{self.file}: {self.inputs} segments count again in their older layout in place of {self.outputs} "
                "that they were rewritten into; what was drained of these comes once more"
            )
        return (
            f"{self.file}: {self.inputs} segments count again in place of {self.outputs} merged ones; "
            f"{self.given_up} entries, which were rows, are given up"
        )


def fall_back(database: Database, queue: Queue, file: str, *, who: str, wait_seconds: float = 60.0) -> FellBack:
    """Let the segments count again that merged ones in a file stand for, and forget these.

    :param queue: the reader.
    :param file: the name of the lost file, as the error of a drain shows it.
    :param who: name for the audit, in which a loss of rows is recorded.
    :param wait_seconds: how long to wait for those that work in the units.
    :raises InvalidArgument: nothing that waits in the file was merged, or its inputs have been vacuumed.
    :raises SegmentLost: a file of the inputs is missing, too, of which a part was drained.
    :raises LockNotAvailable: others work in the units.
    :raises LeaseLost: a drain has waited so long that it has revoked the locks; nothing has changed.
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
    """Find the merged segments of a file, and the queue in the layout that they lie in."""
    for layout in queue.layouts():
        in_layout = queue.laid_out_as(layout)
        if outputs := _outputs(database, in_layout, file):
            return outputs, in_layout
    raise _nothing_waits(queue, file)


def _nothing_waits(queue: Queue, file: str) -> InvalidArgument:
    return InvalidArgument(f"queue {queue.id!r}: no merged segment waits in a file {file}")


def _nothing_left(file: str, *, of_rows: bool = False) -> InvalidArgument:
    why = "found rows, which are in no other file" if of_rows else "which have been vacuumed by now"
    return InvalidArgument(
        f"file {file}: expected segments that it was merged of, {why}",
        hint="store.dead_letters.give_up_file(queue_id, file) lets drains pass over what is lost",
    )


def _outputs(database: Database, queue: Queue, file: str) -> list[Segment]:
    with database.read() as work:
        known = queries.compactions.merged(work, queue.number)
    return [one for one in _waiting(database, queue) if one.file == file and (one.transaction, one.number) in known]


def _rewritten(database: Database, queue: Queue, transaction: int) -> list[Segment]:
    """Find all that waits of what a transaction has made of segments of older layouts."""
    with database.read() as work:
        keys = set(queries.compactions.rewritten(work, queue.number, transaction))
    return [one for one in _waiting(database, queue) if (one.transaction, one.number) in keys]


def _waiting(database: Database, queue: Queue) -> list[Segment]:
    snapshot = take_snapshot(database)
    with database.read() as work:
        return waiting_segments(work, queue, snapshot, Range(0, queue.buckets))


def _move_back(
    database: Database, queue: Queue, file: str, leases: Sequence[Lease], transaction: int, layouts: Mapping[int, int]
) -> FellBack:
    """Let segments count again in the layouts that they were moved from.

    :param queue: the queue in the layout that they were moved into.
    :param leases: on the units of all that waits of what they were rewritten into.
    :param layouts: how many there are by their layout.
    """
    outputs = _rewritten(database, queue, transaction)  # again: what was drained before the locks is known now
    if all(one.file != file for one in outputs):
        raise _nothing_waits(queue, file)
    with database.begin() as work:
        hold(work, *leases)
        for layout in layouts:
            queries.layouts.open_again(work, queue.source_number, layout)
        if queries.compactions.restore_all(work, queue.number, transaction) != sum(layouts.values()):
            raise _nothing_left(file)  # since they were counted, or in part
    return FellBack(file=file, outputs=len(outputs), inputs=sum(layouts.values()), given_up=0, moved_back=True)


def _replace(
    database: Database, queue: Queue, file: str, leases: Sequence[Lease], who: str, check: Callable[[], None]
) -> FellBack:
    inputs = given_up = 0
    outputs = _outputs(database, queue, file)  # again: what was drained before the locks is known now
    if not outputs:
        raise _nothing_waits(queue, file)
    hidden = _hidden_by(database, queue)
    parts = {one: _parts(one, hidden.get((one.transaction, one.number), ()), check) for one in outputs}
    for one in outputs:
        if not parts[one]:
            with database.read() as work:
                rows, _ = queries.compactions.made_of(work, (one.transaction, one.number))
            raise _nothing_left(file, of_rows=rows == one.entries)
    with database.begin() as work:
        hold(work, *leases)
        for one in outputs:
            key = (one.transaction, one.number)
            given_up += _count_lost(work, queue, one, parts[one])
            if queries.compactions.restore(work, queue.number, key) != len(parts[one]):
                raise _nothing_left(file)  # since they were read, or in part
            for part in parts[one]:
                _note(work, queue, part)
            inputs += len(parts[one])
        if given_up:
            queries.acts.record(
                work, queue_id=queue.id, act="give up", who=who, letters=given_up, selection={"file": file}
            )
    return FellBack(file=file, outputs=len(outputs), inputs=inputs, given_up=given_up)


@dataclass(frozen=True, slots=True)
class _Part:
    """An input, and what of it the reader has drained by its output."""

    segment: Segment
    runs: tuple[list[_Sized], ...] = ()
    left: frozenset[EntryKey] | None = None
    """Places of the entries that count again; None for all, where nothing of the output is drained."""


def _count_lost(work: Work, queue: Queue, output: Segment, parts: Sequence[_Part]) -> int:
    """Count the entries of an output that were not drained, and that no input has; at most, where some were dropped."""
    rows, coalesced = queries.compactions.made_of(work, (output.transaction, output.number))
    if not output.done:
        return rows
    done = queries.segments.parts_done(work, queue.number, (output.transaction, output.number))
    left = output.entries - sum(entries for _, entries, _ in done.values())
    if coalesced:  # which of the rows are among them, the lost file knew alone
        return min(rows, left)
    places = frozenset[EntryKey]().union(*(part.left or () for part in parts))
    return left - len(places)


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
    """Say what is drained of inputs; where nothing is of their output, none is read."""
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
    """Read the places and sizes of what is left of a segment; values are not kept in memory."""
    found: list[_Sized] = []
    with contextlib.closing(SegmentReader(segment, first=segment.first, end=segment.end)) as reader:
        while not reader.is_read:
            reader.fill()
            found += [(row[:3], len(row[1]) + len(row[3] or b"")) for row in reader.take(None)]
    return found


def _within(rows: list[_Sized], first: EntryKey, last: EntryKey) -> list[_Sized]:
    # From the beginning of the first key: what it has before was drained earlier, or the first entry stands for it.
    beginning: EntryKey = (first[0], first[1], 0)
    return rows[bisect_left(rows, beginning, key=_place) : bisect_right(rows, last, key=_place)]


def _note(work: Work, queue: Queue, part: _Part) -> None:
    key = (part.segment.transaction, part.segment.number)
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
