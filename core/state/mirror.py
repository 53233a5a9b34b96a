"""Mirror loads: adding the difference between a data set and the state, so that the state equals the data set."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from export_queue.core.errors import InvalidArgument
from export_queue.core.queue import Queue, Range, bucket_column, find_state, hash_column
from export_queue.core.retry import Retry
from export_queue.core.segments import BulkWriter, load_pyarrow
from export_queue.core.sources import StateContent, encoded_prefix, require_complete
from export_queue.core.state.columns import RecordEncoder
from export_queue.core.state.comparison import ColumnComparison
from export_queue.core.state.mirror_report import MirrorOptions, MirrorReport, check_deletes
from export_queue.core.state.sorted_spool import BatchFile, SortedSpool
from export_queue.core.store import Database
from export_queue.core.transactions import NO_READER, OpenTransaction

if TYPE_CHECKING:
    import pyarrow as pa

_FILES_FROM = 50_000
"""Entries from which a difference is added as files, if the store has a place for them."""
_ADDED_AT_ONCE = 10_000
_IN_A_FILE = 500_000
"""Entries that are staged at once as rows or as files, so that a difference of any size fits into memory."""
_FILE_BYTES = 128 << 20


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
            key=_names(key),
            value=_names(value),
            scope=scope,
            max_deletes=max_deletes,
            dry_run=dry_run,
            settle_timeout=settle_timeout,
        )
        encoder = RecordEncoder(self.queue, options.key, options.value, options.scope)
        return add_difference(
            self._transaction, self, lambda _: encoder.batches(data() if callable(data) else data), options
        )


def _names(columns: str | Sequence[str] | None) -> str | tuple[str, ...] | None:
    if columns is None or isinstance(columns, str):
        return columns
    return tuple(columns) if isinstance(columns, Iterable) else (columns,)


@contextlib.contextmanager
def begun_mirror(
    database: Database, queue: Queue, scope: Any, *, dry_run: bool = False, timeout: float | None = None
) -> Iterator[OpenTransaction]:
    """Run a block in the transaction of a mirror, which commits at its end, or aborts if it is a dry run.

    The transaction is recorded as a mirror at once: if the process is killed, the next mirror need not wait for it. A
    dry run adds nothing, so nobody waits for it.

    :param timeout: seconds until the commit is refused; 24 hours by default.
    :raises InvalidArgument: the queue has no state.
    """
    with database.read() as work:
        mirrors = name_of_mirror(find_state(work, queue.id), scope)
    limits: dict[str, Any] = {"load": NO_READER} if dry_run else {"queues": [queue.id], "mirrors": mirrors}
    opened = OpenTransaction(database, kind="long", timeout=timeout, **limits)
    with opened.abort_on_error():
        yield opened
        if dry_run:
            opened.abort()
        else:
            opened.commit()


def name_of_mirror(reader: Queue, scope: Any) -> str:
    """Name what a mirror makes equal: a state, and the beginning of its keys."""
    return f"{reader.number} {encoded_prefix(scope).hex()}"


def add_difference(
    opened: OpenTransaction,
    writer: MirrorWriter,
    records: Callable[[StateContent], Iterable[pa.RecordBatch]],
    options: MirrorOptions,
) -> MirrorReport:
    """Add the difference between records and the state of a queue.

    :param records: called with the state when all older transactions have ended; returns encoded keys and values, in
        columns ``key`` and ``value``, each key once.
    """
    load_pyarrow("a mirror")
    queue = writer.queue
    content = settled_content(opened, queue, options)
    reader = content.reader
    with contextlib.closing(SortedSpool()) as data, contextlib.closing(BatchFile()) as differences:
        # Read only now: else what an older transaction has changed meanwhile would be changed back.
        for batch in records(content):
            data.add(_with_buckets(batch, reader.buckets))
        comparison = ColumnComparison(content, data.sources(), encoded_prefix(options.scope))
        for batch in comparison.differences(Range(0, reader.buckets, reader.layout)):
            differences.append(batch)
        report = comparison.found.report(reader, options)
        if not options.dry_run:
            check_deletes(report, options)
            _add(opened, writer, differences.read(), report)
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
    require_complete(reader, reader.first_load)
    retry = Retry(attempts=None, seconds=options.settle_timeout, first_pause=0.02)
    mirrors = None if options.dry_run else name_of_mirror(reader, options.scope)
    snapshot = opened.settled_below(retry, load=reader.number, mirrors=mirrors)
    with opened.database.read() as work:
        reader = find_state(work, queue.id)  # in the layouts that the snapshot needs
    require_complete(reader, reader.first_load)  # it may have been switched off and on during the wait
    return StateContent(opened.database, reader, snapshot, snapshot.read_pointer, snapshot.read_pointer)


def _with_buckets(batch: pa.RecordBatch, buckets: int) -> pa.RecordBatch:
    import pyarrow as pa

    keys, values = batch.column("key"), batch.column("value")
    columns = [bucket_column(hash_column(keys), buckets), keys, values]
    return pa.RecordBatch.from_arrays(columns, ["bucket", "key", "value"])


def _add(
    opened: OpenTransaction, writer: MirrorWriter, difference: Iterable[pa.RecordBatch], report: MirrorReport
) -> None:
    in_files = opened.database.segments is not None and report.added >= _FILES_FROM and not writer.queue.exclusive
    part: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in difference:
        part.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= (_IN_A_FILE if in_files else _ADDED_AT_ONCE) or size >= _FILE_BYTES:
            writer.add_encoded(part, in_files=in_files)
            part, rows, size = [], 0, 0
    if part:
        writer.add_encoded(part, in_files=in_files)
