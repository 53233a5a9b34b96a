"""Comparing sorted records with the state and writing the difference into files, in tasks and commits of mirrors."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

import pyarrow as pa
import pyarrow.compute as pc

from export_queue.core.errors import ConfigurationError, EntryError
from export_queue.core.queue import Queue, Range
from export_queue.core.segments import FileReport, Segment, UnitReader, write_segments
from export_queue.core.sources import EntrySpool, Row
from export_queue.core.spark.encoding import shown_key
from export_queue.core.spark.targets import Targets
from export_queue.core.state import (
    NO_VALUE,
    Comparison,
    Found,
    MirrorOptions,
    MirrorReport,
    StateContent,
    check_deletes,
    encoded_prefix,
)
from export_queue.core.store import Database, StoreSpec, identity_of, layout_closed
from export_queue.core.transactions import Snapshot

_ROWS = 8192
_BYTES = 8 << 20
"""Most rows and bytes that are merged at once."""


@dataclass(frozen=True, slots=True)
class StateSetup:
    """The state at one snapshot, as another process reads it. It holds no secret, because Spark may write it to files.

    :param store: the store, which the process opens.
    :param store_id: its identity.
    :param reader: the reader that is the state.
    :param snapshot: what is seen.
    :param cut: entries with a greater sequence are not seen either.
    :param settled: an id up to which everything has ended that may add to the state.
    """

    store: StoreSpec
    store_id: str
    reader: Queue
    snapshot: Snapshot
    cut: int
    settled: int

    @classmethod
    def of(cls, content: StateContent, store: StoreSpec) -> StateSetup:
        """Describe a state that is open in this process."""
        store_id = identity_of(content.database).store_id
        return cls(store, store_id, content.reader, content.snapshot, content.cut, content.settled)

    @contextlib.contextmanager
    def opened(self) -> Iterator[StateContent]:
        """Open the store and the state.

        :raises ConfigurationError: this machine finds another store under the URL.
        """
        with contextlib.closing(self.store.open()) as database:
            yield self.within(database)

    def within(self, database: Database) -> StateContent:
        """Return the state in a store that is open.

        :raises ConfigurationError: it is another store.
        """
        if identity_of(database).store_id != self.store_id:
            raise ConfigurationError(
                "this machine finds another store than the driver under the store's URL",
                hint="give a URL that leads to the same store on all machines",
            )
        return StateContent(database, self.reader, self.snapshot, self.cut, self.settled)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where the files of a transaction go.

    :param base: URL of the folder of all segments.
    :param transaction: the id of the transaction that will commit the files.
    :param queue: the queue to which it adds.
    :param name: start of the files' names.
    """

    base: str
    store_id: str
    transaction: int
    queue: Queue
    name: str


class _Sorted:
    """Records that come in the order of bucket and key."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows, self._next = rows, next(rows, None)

    def between(self, after: tuple[int, bytes], last: tuple[int, bytes]) -> Iterator[Row]:
        while self._next is not None and self._next[:2] <= last:
            row, self._next = self._next, next(self._rows, None)
            yield row


def add_difference(
    content: StateContent, records: Iterator[Row], within: Range, *, scope: bytes, place: FilePlace | None
) -> tuple[Found, list[FileReport]]:
    """Compare records with a part of the state, and write the difference into files. Memory is bounded.

    :param records: in the order of bucket and key, one for each key, all within the part.
    :param scope: beginning of the keys that are compared.
    :param place: where the files go; None only counts.
    """
    comparison = Comparison(content, _Sorted(records), scope)
    blocks = comparison.differences(within)
    if place is None:
        for _ in blocks:
            pass
        return comparison.found, []
    files = write_segments(
        map(_batch, blocks),
        base=place.base,
        store_id=place.store_id,
        transaction=place.transaction,
        name=place.name,
        buckets_per_range=place.queue.buckets_per_range,
    )
    return comparison.found, files


def _batch(block: Sequence[Row]) -> pa.RecordBatch:
    buckets, keys, values = [row[0] for row in block], [row[1] for row in block], [row[3] for row in block]
    columns = [pa.array(buckets, pa.int32()), pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["bucket", "key", "value"])


def checked_rows(batches: Iterable[pa.RecordBatch], queue: Queue, within: Range, *, scope: bytes) -> Iterator[Row]:
    """Yield the rows of batches of entries.

    :raises EntryError: a row has no value, or its key lies outside the scope; the error names it.
    """
    for batch in batches:
        if not batch.num_rows:
            continue
        buckets, keys, values = (batch.column(name) for name in ("bucket", "key", "value"))
        if values.null_count:
            row = pc.index(pc.is_null(values), True).as_py()
            named = f"queue {queue.id!r}: key {shown_key(keys[row].as_py(), queue)}"
            raise EntryError(f"{named}: expected a value, found null", hint=NO_VALUE)
        if scope and (row := pc.index(pc.starts_with(keys, scope), False).as_py()) >= 0:
            named = f"queue {queue.id!r}: key {shown_key(keys[row].as_py(), queue)}"
            raise EntryError(f"{named}: expected one that begins with the scope {scope!r}")
        bounds = pc.min_max(buckets).as_py()
        if bounds["min"] < within.first or bounds["max"] >= within.end:
            raise AssertionError(f"expected rows of buckets {within}, found {bounds}")  # else they would be deleted
        yield from zip(buckets.to_pylist(), keys.to_pylist(), repeat(0), values.to_pylist(), strict=False)


@dataclass(frozen=True, slots=True)
class Mirrored:
    """What a mirror of files has found and written."""

    report: MirrorReport
    files: list[FileReport]


def mirror_files(
    content: StateContent, reports: Sequence[FileReport], options: MirrorOptions, place: FilePlace
) -> Mirrored:
    """Compare the entries of a transaction's files, which have not been staged, with the whole state.

    :param reports: the files, each of them sorted.
    :param place: where the difference goes.
    :raises EntryError: a key is in two files, or a row is refused.
    :raises MirrorRefused: more records would be deleted than allowed.
    """
    queue, scope = place.queue, encoded_prefix(options.scope)
    whole = Range(0, queue.buckets, queue.layout)
    with contextlib.closing(_merged(content, reports, place)) as batches:
        records = checked_rows(batches, queue, whole, scope=scope)
        place_of_files = None if options.dry_run else place
        found, files = add_difference(content, records, whole, scope=scope, place=place_of_files)
    report = found.report(content.reader, options)
    if report.unchanged + report.new + report.changed < sum(one.entries for one in reports):
        raise _repeated(content, reports, place)  # merging leaves one entry for each key
    if not options.dry_run:
        check_deletes(report, options)
    return Mirrored(report, files)


def _repeated(content: StateContent, reports: Sequence[FileReport], place: FilePlace) -> EntryError:
    """Find a key that is in two files, and return the error that names it."""
    columns = ("bucket", "key", "value")
    batches = (batch for report in reports for batch in _merged(content, [report], place))
    with contextlib.closing(EntrySpool()) as spool:
        rows = (zip(*(batch.column(name).to_pylist() for name in columns), strict=True) for batch in batches)
        twice = spool.add(chain.from_iterable(rows))
    return EntryError(
        f"queue {place.queue.id!r}: key {shown_key(twice or b'', place.queue)} comes more than once in the DataFrame",
        hint="keep one of its rows",
    )


def _merged(content: StateContent, reports: Sequence[FileReport], place: FilePlace) -> Generator[pa.RecordBatch]:
    """Merge sorted files of a transaction."""
    queue, transaction = place.queue, place.transaction
    parts = [(report, part) for report in reports for part in report.slices]
    segments = [
        Segment.from_row({"transaction_id": transaction, "number": number, **report.columns(part, queue)})
        for number, (report, part) in enumerate(parts)
    ]
    whole = Range(0, queue.buckets, queue.layout)
    units = UnitReader(queue, content.snapshot, whole, segments, rows=_ROWS, size=_BYTES, has_rows=False)
    with contextlib.closing(units):
        while True:
            with content.database.read() as work:
                found = units.read(work).entries
            if not found:
                return
            rows = zip(found.buckets, found.keys, found.seqs, found.values, strict=True)
            yield _batch([*rows])


def require_layout(reader: Queue, targets: Targets) -> None:
    """Check that a mirror adds to the buckets of the state that it compares with.

    :param reader: the reader that is the state.
    :raises LayoutClosed: the queue's buckets were altered after the transaction had begun.
    """
    if targets[reader.source].layout != reader.layout:
        raise layout_closed(f"queue {reader.source!r}")
