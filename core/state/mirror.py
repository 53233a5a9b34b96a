"""Mirror loads: adding the difference between a data set and the state, so that the state equals the data set."""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import nsmallest
from importlib.util import find_spec
from itertools import islice
from typing import Any, Protocol

from export_queue.core.errors import EntryError, InvalidArgument, MirrorRefused
from export_queue.core.queue import Queue, Range, bucket, find_state
from export_queue.core.retry import Retry
from export_queue.core.segments import BulkWriter
from export_queue.core.sources import EntrySpool, Row
from export_queue.core.state.reading import StateContent, encoded_prefix, require_complete
from export_queue.core.state.records import as_key, records_of
from export_queue.core.transactions import OpenTransaction

_Key = tuple[int, bytes]
"""Bucket and key."""
_KINDS = ("new", "changed", "deleted")
_SAMPLES = 5
NO_VALUE = "leave out what should be deleted: a mirror deletes what the data set does not have"
_FILES_FROM = 50_000
"""Entries from which a difference is added as files, if the store has a place for them."""
_ADDED_AT_ONCE = 10_000
_IN_A_FILE = 500_000
"""Entries that are staged at once as rows or as files, so that a difference of any size fits into memory."""
_FILE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """How a data set is compared with a state.

    :raises InvalidArgument: an option is out of bounds.
    """

    key: str | tuple[str, ...] | None = None
    """Columns that make up the key. None: the data has pairs of key and value, or columns of these names."""
    value: str | tuple[str, ...] | None = None
    """One column that is the value, or several that become a JSON object. None: all columns."""
    scope: str | bytes | None = None
    """Beginning of the keys that the data set has all of. Other keys of the state are left alone."""
    max_deletes: float = 0.2
    """The largest part of the records in the scope that may be deleted, from 0.0 to 1.0; or a number of records, if it
    is a whole number (``1`` is one record, ``1.0`` all)."""
    dry_run: bool = False
    """Only report the difference."""
    settle_timeout: float = 60.0
    """Seconds to wait for older transactions to end."""

    def __post_init__(self) -> None:
        most = self.max_deletes
        if isinstance(most, bool) or not isinstance(most, int | float) or not most >= 0 or math.isnan(most):
            raise InvalidArgument(f"max_deletes: expected a part from 0 to 1 or a number of records, found {most!r}")
        if isinstance(most, float) and most > 1:
            raise InvalidArgument(f"max_deletes: expected a part from 0 to 1, or a whole number, found {most!r}")

    def allowed(self, records: int) -> int:
        """Return how many of a number of records may be deleted."""
        most = self.max_deletes
        return most if isinstance(most, int) else math.floor(most * records)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorReport:
    """What a mirror load has found and added."""

    queue: str
    unchanged: int
    new: int
    changed: int
    deleted: int
    dry_run: bool
    samples: dict[str, list[Any]] = field(default_factory=dict)
    """Some keys that are new, changed or deleted."""

    @property
    def added(self) -> int:
        """How many entries make up the difference."""
        return self.new + self.changed + self.deleted

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        samples = {kind: [k.hex() if isinstance(k, bytes) else k for k in keys] for kind, keys in self.samples.items()}
        return {**asdict(self), "samples": samples}

    def line(self) -> str:
        """Summarise the load in one line."""
        would = "would add" if self.dry_run else "added"
        return (
            f"{self.queue}: {would} {self.added} entries: {self.new} new, {self.changed} changed, "
            f"{self.deleted} deleted; {self.unchanged} unchanged"
        )


class MirrorWriter(BulkWriter):
    """One queue in a transaction, which can also be made equal to a data set."""

    def mirror(
        self,
        data: Any,
        *,
        key: str | Sequence[str] | None = None,
        value: str | Sequence[str] | None = None,
        scope: str | bytes | None = None,
        max_deletes: float = 0.2,
        dry_run: bool = False,
        settle_timeout: float = 60.0,
    ) -> MirrorReport:
        """Add exactly the difference between a data set and the queue's state, in a long transaction.

        When the transaction commits, the state equals the data set, apart from what transactions with greater ids
        changed: records that are new or changed are added, records that the data set does not have are deleted, and
        unchanged records cost nothing. Values are compared as they are stored. It can be repeated any time.

        :param data: an Arrow table, record batch or reader; or an iterable of record batches, of mappings (rows of a
            query with column names), or of pairs of key and value. It need not fit into memory. It must have what
            older transactions changed: pass a function that returns it, which is called when they have ended.
        :param key: the column that is the key, or several. They become a JSON list, for the key codec ``str``. None:
            the data has pairs, or the columns ``key`` and ``value``.
        :param value: the column that is the value, or several that become a JSON object; all columns by default.
        :param scope: the beginning of the keys that the data set has all of. Other keys are left alone.
        :param max_deletes: the largest part of the records in the scope that may be deleted, from 0.0 to 1.0, or as an
            ``int`` a number of records: an empty or truncated data set must not empty an index.
        :param dry_run: only report the difference.
        :param settle_timeout: seconds to wait for older transactions to end.
        :returns: the numbers of new, changed, deleted and unchanged records.
        :raises MirrorRefused: more records would be deleted than ``max_deletes`` allows.
        :raises EntryError: a record has no key or no value, or two have one key; the error names it.
        :raises StateIncomplete: the first load of the state is missing.
        :raises InvalidArgument: the queue has no state, or the transaction is not long or has added to the queue.
        :raises TransactionsInProgress: older transactions did not end in time; the error names them.
        """
        options = MirrorOptions(
            key=key if key is None or isinstance(key, str) else tuple(key),
            value=value if value is None or isinstance(value, str) else tuple(value),
            scope=scope,
            max_deletes=max_deletes,
            dry_run=dry_run,
            settle_timeout=settle_timeout,
        )
        return add_difference(self._transaction, self, lambda _: _encoded(self.queue, data, options), options)


def add_difference(
    opened: OpenTransaction,
    writer: MirrorWriter,
    records: Callable[[StateContent], Iterable[tuple[bytes, bytes]]],
    options: MirrorOptions,
) -> MirrorReport:
    """Add the difference between records and the state of a queue.

    :param records: called with the state when all older transactions have ended; returns encoded keys and values.
    """
    queue = writer.queue
    content = settled_content(opened, queue, options)
    reader = content.reader
    with contextlib.closing(EntrySpool()) as now, contextlib.closing(EntrySpool()) as differences:
        # Read only now: else what an older transaction has changed meanwhile would be changed back.
        twice = now.add((bucket(key, reader.buckets), key, value) for key, value in records(content))
        if twice is not None:
            raise EntryError(
                f"key {queue.decode_key(twice)!r} comes twice in the data set",
                hint="each record must have a key of its own",
            )
        comparison = Comparison(content, now, encoded_prefix(options.scope))
        for block in comparison.differences(Range(0, reader.buckets, reader.layout)):
            differences.keep(block)
        report = comparison.found.report(reader, options)
        if not options.dry_run:
            check_deletes(report, options)
            found = differences.between((0, b""), (reader.buckets, b""))
            _add(opened, writer, ((key, value) for _, key, _, value in found), report)
    return report


def settled_content(opened: OpenTransaction, queue: Queue, options: MirrorOptions) -> StateContent:
    """Wait until all older transactions have ended, and return the state that they have left.

    :raises InvalidArgument: the queue has no state, or the transaction is not long or has added to the queue.
    :raises StateIncomplete: the first load of the state is missing.
    :raises TransactionsInProgress: older transactions did not end in time.
    """
    if opened.kind != "long":
        raise InvalidArgument(
            f"mirror: expected a long transaction, found one that is {opened.kind}",
            hint=f"store.mirror({queue.id!r}, data), or with store.transaction(long=True) as tx",
        )
    if opened.has_entries(queue.number):
        raise InvalidArgument(
            f"mirror: expected a transaction that has added nothing to queue {queue.id!r}, found one that has",
            hint="mirror first, then add; or use two transactions",
        )
    with opened.database.read() as work:
        reader = find_state(work, queue.id)
    require_complete(reader)
    retry = Retry(attempts=None, seconds=options.settle_timeout, first_pause=0.02)
    mirrors = None if options.dry_run else f"{reader.number} {encoded_prefix(options.scope).hex()}"
    snapshot = opened.settled_below(retry, load=reader.number, mirrors=mirrors)
    with opened.database.read() as work:
        reader = find_state(work, queue.id)  # in the layouts that the snapshot needs
    return StateContent(opened.database, reader, snapshot, snapshot.read_pointer, snapshot.read_pointer)


def _encoded(queue: Queue, data: Any, options: MirrorOptions) -> Iterator[tuple[bytes, bytes]]:
    """Yield encoded keys and values of a data set."""
    start = encoded_prefix(options.scope)
    for key, value in records_of(data() if callable(data) else data, key=options.key, value=options.value):
        encoded = queue.encode_key(as_key(key, queue.key))
        if not encoded.startswith(start):
            raise EntryError(f"key {key!r}: expected one that begins with the scope {options.scope!r}")
        stored = queue.encode_value(value, key=key)
        if stored is None:
            raise EntryError(
                f"key {key!r}: expected a value, found none",
                hint=NO_VALUE,
            )
        yield encoded, stored


class SortedRecords(Protocol):
    """Records of a data set in the order of bucket and key."""

    def between(self, after: _Key, last: _Key) -> Iterator[Row]:
        """Yield the records after one position and up to another one; each call begins where the last one ended."""


@dataclass(slots=True)
class Found:
    """What a comparison has counted."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("unchanged", *_KINDS), 0))
    samples: dict[str, list[bytes]] = field(default_factory=lambda: {kind: [] for kind in _KINDS})
    """Some keys that are new, changed or deleted, encoded."""

    def add(self, other: Found) -> None:
        """Add what another comparison has counted."""
        for kind, count in other.counts.items():
            self.counts[kind] += count
        for kind, keys in other.samples.items():
            self.samples[kind] += keys[: _SAMPLES - len(self.samples[kind])]

    def report(self, reader: Queue, options: MirrorOptions) -> MirrorReport:
        """Return the report of a mirror load."""
        samples: dict[str, list[Any]] = {kind: [*map(reader.decode_key, keys)] for kind, keys in self.samples.items()}
        return MirrorReport(queue=reader.source, dry_run=options.dry_run, samples=samples, **self.counts)


@dataclass(slots=True)
class Comparison:
    """Compares a data set with the state, page by page.

    :param start: the encoded scope.
    """

    content: StateContent
    now: SortedRecords
    start: bytes
    found: Found = field(default_factory=Found)

    def differences(self, within: Range) -> Iterator[list[Row]]:
        """Yield the entries that make the state equal to the data set, in their order, in blocks of bounded size.

        :param within: the buckets to compare.
        """
        at: _Key = (within.first, b"")
        for page in self.content.pages(within):
            if page:
                keys = list(zip(page.buckets, page.keys, strict=True))
                yield from self._compare_up_to(at, keys[-1], keys, page.values)
                at = keys[-1]
        yield from self._compare_up_to(at, (within.end, b""), (), ())

    def _compare_up_to(
        self, at: _Key, end: _Key, keys: Sequence[_Key], values: Sequence[bytes | None]
    ) -> Iterator[list[Row]]:
        """Compare a page of the state with the records between two positions, which may be very many more."""
        found = self.now.between(at, end)
        first, is_last = 0, False
        while not is_last:
            block = list(islice(found, _ADDED_AT_ONCE))
            is_last = len(block) < _ADDED_AT_ONCE
            upto = len(keys) if is_last else bisect_right(keys, block[-1][:2])
            part = zip(keys[first:upto], values[first:upto], strict=True)
            before = {key: value for key, value in part if value is not None and key[1].startswith(self.start)}
            yield self._compare(before, {row[:2]: row[3] for row in block})
            first = upto

    def _compare(self, before: Mapping[_Key, bytes], now: Mapping[_Key, bytes | None]) -> list[Row]:
        new, deleted = now.keys() - before.keys(), before.keys() - now.keys()
        changed = {key for key, _ in now.items() - before.items()} - new
        self.found.counts["unchanged"] += len(now) - len(new) - len(changed)
        for kind, keys in zip(_KINDS, (new, changed, deleted), strict=True):
            self.found.counts[kind] += len(keys)
            samples = self.found.samples[kind]
            if keys and len(samples) < _SAMPLES:
                samples += nsmallest(_SAMPLES - len(samples), (key for _, key in keys))
        return [(*key, 0, now.get(key)) for key in sorted(new | changed | deleted)]


def check_deletes(report: MirrorReport, options: MirrorOptions) -> None:
    """Check that a mirror load deletes no more than it may.

    :raises MirrorRefused: it would.
    """
    records = report.unchanged + report.changed + report.deleted
    allowed = options.allowed(records)
    if report.deleted > allowed:
        raise MirrorRefused(
            f"queue {report.queue!r}: the data set would delete {report.deleted} of {records} records, and max_deletes="
            f"{options.max_deletes} allows {allowed}; among them {', '.join(map(repr, report.samples['deleted']))}",
            hint="if the data set is complete, allow more: max_deletes=0.5 is half of them, 1.0 all, 500 a number",
        )


def _add(
    opened: OpenTransaction,
    writer: MirrorWriter,
    entries: Iterable[tuple[bytes, bytes | None]],
    report: MirrorReport,
) -> None:
    has_files = opened.database.segments is not None and find_spec("pyarrow") is not None
    in_files = has_files and report.added >= _FILES_FROM and not writer.queue.exclusive
    block: dict[bytes, bytes | None] = {}
    size = 0
    for key, value in entries:
        block[key] = value
        size += len(key) + len(value or b"")
        if len(block) >= (_IN_A_FILE if in_files else _ADDED_AT_ONCE) or size >= _FILE_BYTES:
            writer.add_encoded(block, in_files=in_files)
            block, size = {}, 0
    if block:
        writer.add_encoded(block, in_files=in_files)
