"""Comparing sorted records with the state and writing the difference into files, in tasks and commits of mirrors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from export_queue.core.errors import ConfigurationError, EntryError
from export_queue.core.queue import Queue, Range
from export_queue.core.segments import FileReport, Segment, batches_after, write_segments
from export_queue.core.sources import NO_VALUE, StateContent, encoded_prefix
from export_queue.core.spark.encoding import shown_key
from export_queue.core.spark.targets import Targets
from export_queue.core.state import ColumnComparison, Found, MirrorOptions, MirrorReport, check_deletes
from export_queue.core.store import Database, StoreSpec, identity_of, layout_closed
from export_queue.core.transactions import Snapshot


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


def write_difference(
    content: StateContent,
    sources: Sequence[Iterator[pa.RecordBatch]],
    within: Range,
    *,
    scope: bytes,
    place: FilePlace | None,
) -> tuple[Found, list[FileReport]]:
    """Compare entries with a part of the state, and write the difference into files. Memory is bounded.

    :param sources: together all entries within the part, each in the order of bucket and key.
    :param scope: beginning of the keys that are compared.
    :param place: where the files go; None only counts.
    :raises EntryError: a key is in two sources; the error names it.
    """
    comparison = ColumnComparison(content, sources, scope)
    batches = comparison.differences(within)
    if place is None:
        for _ in batches:
            pass
        return comparison.found, []
    files = write_segments(
        batches,
        base=place.base,
        store_id=place.store_id,
        transaction=place.transaction,
        name=place.name,
        buckets_per_range=place.queue.buckets_per_range,
    )
    return comparison.found, files


def checked(
    batches: Iterable[pa.RecordBatch], queue: Queue, within: Range, *, scope: bytes
) -> Iterator[pa.RecordBatch]:
    """Pass batches of entries on.

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
        yield batch


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
    sources = [checked(_entries(content, one, place), queue, whole, scope=scope) for one in reports]
    found, files = write_difference(content, sources, whole, scope=scope, place=None if options.dry_run else place)
    report = found.report(content.reader, options)
    if not options.dry_run:
        check_deletes(report, options)
    return Mirrored(report, files)


def _entries(content: StateContent, report: FileReport, place: FilePlace) -> Iterator[pa.RecordBatch]:
    """Read a file of a transaction."""
    queue = place.queue
    for number, part in enumerate(report.slices):
        row = {"transaction_id": place.transaction, "number": number, **report.columns(part, queue)}
        segment = Segment.from_row(row)
        with contextlib.closing(batches_after(segment, segment.range, None)) as batches:
            yield from (batch.select(["bucket", "key", "value"]) for batch in batches)


def require_layout(reader: Queue, targets: Targets) -> None:
    """Check that a mirror adds to the buckets of the state that it compares with.

    :param reader: the reader that is the state.
    :raises LayoutClosed: the queue's buckets were altered after the transaction had begun.
    """
    if targets[reader.source].layout != reader.layout:
        raise layout_closed(f"queue {reader.source!r}")
