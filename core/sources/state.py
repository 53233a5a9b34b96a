"""Reading a state: its rows and segments, without what newer entries of the same key replace.

Nothing is locked. A compaction may move rows into a file during a reading, and clean-up may delete former values. So
each chunk is checked after it was read: if segments have been replaced meanwhile, it is read again from the new ones;
if values have been deleted that the reading needs, it ends with an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from export_queue.core.errors import InvalidArgument, SnapshotTooOld, StateIncomplete, UnknownQueue
from export_queue.core.queue import Entries, Position, Queue, Range, buckets_of, find_state, read_entries
from export_queue.core.segments import (
    BucketAndKey,
    UnitReader,
    batches_after,
    load_pyarrow,
    merged,
    table_of,
    waiting_segments,
    windows,
    without_earlier,
)
from export_queue.core.sources.spool import EntrySpool, Row
from export_queue.core.store import Database, Reading, queries
from export_queue.core.transactions import Snapshot, settled_snapshot

if TYPE_CHECKING:
    import pyarrow as pa

PAGE_ROWS = 8192
PAGE_BYTES = 8 << 20
WINDOW_BYTES = 8 << 20
_MOST_AT_ONCE = 32
"""Segments of a unit that are merged as columns."""
_LAST_SEQ = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class StateContent:
    """The content of a state at one snapshot.

    :param reader: the reader that is the state.
    :param snapshot: what is seen.
    :param cut: entries with a greater sequence are not seen either.
    :param settled: an id up to which everything has ended that may add to the state.
    :param loaded: sequence of the entries of the state's first load, each of which stands for an older one; 0 if none
        was made.
    """

    database: Database
    reader: Queue
    snapshot: Snapshot
    cut: int
    settled: int
    loaded: int = 0
    is_ranked: bool = True

    def pages(self, within: Range) -> Iterator[Entries]:
        """Read the latest entry of each key, ascending by bucket and key. None as a value: the key was deleted.

        :param within: buckets of the current layout.
        :raises SnapshotTooOld: former values that this reading needs have been deleted.
        :raises SegmentLost: a file is missing or damaged.
        """
        if not self.reader.older:
            yield from self._newest(within)
            return
        with contextlib.closing(EntrySpool()) as spool:
            spool.keep(self._in_older_layouts(within))  # first: entries move only into later layouts
            at = within.first, b""
            for page in self._newest(within):
                if page:
                    upto = page.buckets[-1], page.keys[-1]
                    yield _joined(page, spool.between(at, upto))
                    at = upto
            rest = spool.between(at, (within.end, b""))
            while block := list(islice(rest, PAGE_ROWS)):
                yield _joined(Entries((), (), (), ()), block)

    def _newest(self, within: Range) -> Iterator[Entries]:
        """Read the newest layout."""
        for part in self._parts(within):
            if isinstance(part, Entries):
                yield part
            else:
                yield from _pages_of(part)

    def _in_older_layouts(self, within: Range) -> Iterator[Row]:
        """Read what was not moved yet after the queue's buckets were altered, with the buckets of today."""
        for layout in self.reader.older:
            everything = Range(0, layout.buckets, layout.number)
            for page in self._read(self.reader.laid_out_as(layout), everything):
                buckets = buckets_of(page.keys, self.reader.buckets)
                for row in zip(buckets, page.keys, page.seqs, page.values, strict=True):
                    if within.first <= row[0] < within.end:
                        yield row

    def tables(self, within: Range) -> Iterator[pa.Table]:
        """Read the same as columns ``bucket``, ``key``, ``seq`` and ``value``.

        :raises InvalidArgument: pyarrow is not installed.
        :raises SnapshotTooOld: former values that this reading needs have been deleted.
        :raises SegmentLost: a file is missing or damaged.
        """
        load_pyarrow()
        if self.reader.older:
            yield from (table_of([page]) for page in self.pages(within) if page)
            return
        for part in self._parts(within):
            yield table_of([part]) if isinstance(part, Entries) else part

    def record_batches(self, within: Range, start: bytes = b"") -> Iterator[pa.RecordBatch]:
        """Read the records as columns ``bucket``, ``key`` and ``value``, in the order of bucket and key.

        :param within: buckets of the current layout.
        :param start: beginning of the keys to read.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        for table in self.tables(within):
            found = table.drop_columns("seq")
            if found["value"].null_count:
                found = found.filter(found["value"].is_valid())
            if start:
                beginnings = pc.binary_slice(found["key"], 0, len(start))
                found = found.filter(pc.equal(beginnings, pa.scalar(start, pa.binary())))
            yield from found.to_batches()

    def _parts(self, within: Range) -> Iterator[Entries | pa.Table]:
        """Read the newest layout unit by unit: files as columns, unless there are none or too many."""
        for unit in self.reader.layouts()[-1].units():
            first, end = max(unit.first, within.first), min(unit.end, within.end)
            if first < end:
                yield from self._parts_of_unit(Range(first, end, unit.layout))

    def _parts_of_unit(self, within: Range) -> Iterator[Entries | pa.Table]:
        """Read a part of a unit; see :meth:`_read` about segments that are replaced meanwhile."""
        after: BucketAndKey | None = None
        is_read = False
        while not is_read:
            with self.database.read() as work:
                version = self._check(work)
                segments = waiting_segments(work, self.reader, self.snapshot, within)
            # Without segments pyarrow may be missing. The row groups of many might not fit into memory.
            if not 0 < len(segments) <= _MOST_AT_ONCE:
                position = None if after is None else Position(*after, _LAST_SEQ)
                yield from self._read(self.reader, within, after=position)
                return
            sources = [batches_after(one, within, after) for one in segments]
            with contextlib.ExitStack() as stack:
                for source in sources:
                    stack.callback(source.close)
                found = windows([*sources, self._rows(within, after)], _schema(), size=WINDOW_BYTES)
                for parts in found:
                    with self.database.read() as work:
                        if self._check(work) != version:
                            break  # segments were replaced: rows may have been missed
                    table = _in_order(parts)
                    after = table["bucket"][-1].as_py(), table["key"][-1].as_py()
                    yield self._latest_of(table)
                else:
                    is_read = True

    def _rows(self, within: Range, after: BucketAndKey | None) -> Iterator[pa.RecordBatch]:
        at, is_last = None if after is None else Position(*after, _LAST_SEQ), False
        while not is_last:
            with self.database.read() as work:
                found = read_entries(
                    work, self.reader, self.snapshot, within, after=at, rows=PAGE_ROWS, size=PAGE_BYTES
                )
            is_last = found.is_last or not found
            if found:
                at = found.position(len(found) - 1)
                yield from table_of([found]).to_batches()

    def _latest_of(self, table: pa.Table) -> pa.Table:
        """Leave out what is not seen, and what a later entry of its key replaces."""
        import pyarrow as pa
        import pyarrow.compute as pc

        seqs = pc.unique(table["seq"]).to_pylist()
        hidden = [seq for seq in seqs if seq > self.cut or not self.snapshot.sees(seq)]
        if hidden:
            table = table.filter(pc.invert(pc.is_in(table["seq"], pa.array(hidden, pa.int64()))))
        return without_earlier(table, ("key",))

    def records(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the encoded keys and values of all records, in the order of the current buckets.

        :param start: beginning of the keys to yield.
        """
        for page in self.pages(Range(0, self.reader.buckets, self.reader.layout)):
            for key, value in zip(page.keys, page.values, strict=True):
                if value is not None and key.startswith(start):
                    yield key, value

    def _read(self, reader: Queue, within: Range, *, after: Position | None = None) -> Iterator[Entries]:
        is_read = False
        while not is_read:
            with self.database.read() as work:
                version = self._check(work)
                segments = waiting_segments(work, reader, self.snapshot, within)
            units = UnitReader(
                reader,
                self.snapshot,
                within,
                segments,
                after=after,
                rows=PAGE_ROWS,
                size=PAGE_BYTES,
                whole_keys=True,
            )
            with contextlib.closing(units):
                while not is_read:
                    with self.database.read() as work:
                        found = units.read(work).entries
                        if self._check(work) != version:
                            break  # segments were replaced: rows may have been missed
                    is_read = found.is_last or not found
                    if found:
                        after = found.position(len(found) - 1)
                        yield self._latest(found)

    def _check(self, work: Reading) -> object:
        """Check that nothing was deleted that this content needs; return a value that changes with the segments."""
        oldest_cut = queries.queues.oldest_cut(work, self.reader.number)
        require_kept(self.reader, self.cut, oldest_cut, settled=self.settled)
        return queries.compactions.stamp(work, self.reader.number)

    def _latest(self, found: Entries) -> Entries:
        """Leave out what is not seen, and what a later entry of its key replaces."""
        seqs, keys, cut, sees = found.seqs, found.keys, self.cut, self.snapshot.sees
        # A merged segment may have entries that are younger than the snapshot.
        seen = (
            range(len(seqs))
            if max(seqs) <= cut and not self.snapshot.excluded
            else [i for i, seq in enumerate(seqs) if seq <= cut and sees(seq)]
        )
        of_key = {(found.buckets[i], keys[i]): i for i in seen}  # the last of each key stays
        return _chosen(found, list(of_key.values()))


def _in_order(parts: Sequence[pa.Table]) -> pa.Table:
    """Join what several sources have, each in order."""
    some = [part for part in parts if part.num_rows]
    return some[0] if len(some) == 1 else merged(some)


def _schema() -> pa.Schema:
    return table_of([]).schema


def _pages_of(table: pa.Table) -> Iterator[Entries]:
    for start in range(0, table.num_rows, PAGE_ROWS):
        page = table.slice(start, PAGE_ROWS)
        yield Entries(*(page[name].to_pylist() for name in ("bucket", "key", "seq", "value")))


def _joined(page: Entries, others: Iterable[Row]) -> Entries:
    """Join two pages, of which the second one has one entry of each key, too; the later entry of a key stays."""
    found = {row[:2]: row for row in zip(page.buckets, page.keys, page.seqs, page.values, strict=True)}
    for row in others:
        known = found.get(row[:2])
        if known is None or known[2] < row[2]:
            found[row[:2]] = row
    rows = [found[key] for key in sorted(found)]
    return Entries([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows], [r[3] for r in rows])


def _chosen(found: Entries, kept: Sequence[int]) -> Entries:
    if len(kept) == len(found):
        return found
    return Entries(
        [found.buckets[i] for i in kept],
        [found.keys[i] for i in kept],
        [found.seqs[i] for i in kept],
        [found.values[i] for i in kept],
        found.is_last,
    )


class StateSource:
    """The state of a queue as a source."""

    @contextlib.contextmanager
    def open(self, database: Database, queue: Queue) -> Iterator[StateContent]:
        """Open the state at a settled cut.

        :raises InvalidArgument: the queue has no state.
        :raises StateIncomplete: the first load of the state is missing.
        """
        with database.read() as work:
            number = find_state(work, queue.source).number
        settled = settled_snapshot(database, number)
        with database.read() as work:
            reader = find_state(work, queue.source)  # afterwards: it has all layouts of entries in the snapshot
            loaded = queries.exports.first_load_seq(work, reader.number) or 0
        require_complete(reader, reader.first_load)
        cut = settled.read_pointer
        yield StateContent(database, reader, settled, cut, cut, loaded)


def require_complete(reader: Queue, first_load: str | None) -> None:
    """Check that a state has received what was committed before it began.

    :param first_load: whether that is missing, as the reader's options have it now.
    """
    if first_load == "missing":
        raise StateIncomplete(f"the state of queue {reader.parent!r} lacks what was committed before it began")


def require_loaded(reader: Queue, cut: int, loaded: int | None) -> None:
    """Check that a state existed and was complete at a cut: a wrong year must not bring back an empty state.

    :param loaded: sequence of the entries of its first load, if any.
    """
    if cut < reader.number:
        raise SnapshotTooOld(
            f"the state of queue {reader.source!r} as of {cut}: expected an id from {reader.number} on, when it began",
            hint="read a later one",
        )
    if loaded is not None and cut < loaded:
        raise SnapshotTooOld(
            f"the state of queue {reader.source!r} as of {cut}: expected an id from {loaded} on, that of its "
            "first load, because it lacks older values",
            hint="read a later one",
        )


def require_kept(reader: Queue, cut: int, oldest_cut: int | None, *, settled: int | None = None) -> None:
    """Check that no value was deleted that a state had at a cut.

    :param oldest_cut: it cannot be read as of an older id; None if it was removed.
    :param settled: an id up to which everything had ended in the snapshot that is read; None if that is newer than
        all deletions.
    """
    if oldest_cut is None:
        raise UnknownQueue(f"the state of queue {reader.parent!r} was removed")
    if oldest_cut > (cut if settled is None else min(cut, settled)):
        raise SnapshotTooOld(
            f"the state of queue {reader.parent!r} as of {cut}: expected an id from {oldest_cut} on, because older "
            "values are deleted",
            hint=f"read a later one, or keep former values longer: store.alter_queue({reader.parent!r}, history='7d')",
        )


def encoded_prefix(prefix: Any) -> bytes:
    """Return the beginning of encoded keys; nothing for None."""
    if prefix is None:
        return b""
    if isinstance(prefix, str):
        return prefix.encode()
    if isinstance(prefix, bytes):
        return prefix
    raise InvalidArgument(f"prefix: expected text or bytes, found {type(prefix).__name__}")
