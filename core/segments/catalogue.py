"""The store's rows about segments: loads that write files, and segments that are staged, pending or drained."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from export_queue.core.errors import ExportQueueError, InvalidArgument
from export_queue.core.queue import Entries, Queue, Range, queue_of
from export_queue.core.segments.files import check_base, delete_files, list_files, parent_of
from export_queue.core.segments.merging import Chunk, Run, bytes_of_all
from export_queue.core.segments.model import FileReport, Segment
from export_queue.core.segments.reading import key_of, without
from export_queue.core.segments.writing import folder_of
from export_queue.core.store import Database, EntryKey, Reading, Work, identity_of, layout_closed, queries
from export_queue.core.transactions import OpenTransaction, Snapshot


def begin_load(database: Database, transaction: int | OpenTransaction, base: str | None = None) -> str:
    """Record the folder of a long transaction's files before it writes the first one, for clean-up.

    :param transaction: a long transaction in progress, or its id.
    :param base: the place of the store's segments; by default the one that the store was opened with.
    :returns: the place.
    :raises InvalidArgument: there is no place, or the transaction writes into another one.
    :raises RegistrationLost: the transaction has ended.
    """
    number, store_id = _id_of(transaction), identity_of(database).store_id
    place = check_base(base or database.segments)
    folder = folder_of(place, store_id, number)
    with database.begin() as work:
        database.dialect.steps.hold_long(work.connection, number, (), store_id=store_id)
        found = queries.segments.begin(work, number, folder)
    if found != folder:
        raise InvalidArgument(f"transaction {number} expected files in {found}, found {folder}")
    if isinstance(transaction, OpenTransaction):
        transaction.after_abort = functools.partial(delete_aborted, database, number)
    return place


def delete_aborted(database: Database, transaction: int, seconds: float | None = None) -> None:
    """Delete the files of an aborted transaction at once, to make room on a full disk.

    Nobody has read them. Clean-up deletes what cannot be deleted now, and what tasks still write.

    :param seconds: how long to wait for an answer of the store; an hour by default.
    """
    with contextlib.suppress(ExportQueueError):
        with database.read(seconds=seconds) as work:
            folder = queries.vacuum.folder_of_aborted(work, transaction)
        if folder is not None:
            delete_files(list_files(folder))


def stage_segments(
    database: Database,
    transaction: int | OpenTransaction,
    queue: Queue,
    reports: Iterable[FileReport],
    *,
    share_keys: bool = False,
) -> int:
    """Stage files for a queue: their entries are added to it if the transaction commits (I3).

    They count as added later than everything that this process has added to the transaction before. Staging the same
    files again changes nothing.

    :param transaction: a long transaction in progress, or its id; :func:`begin_load` was called for it.
    :param reports: the files, from :func:`write_segments`.
    :param share_keys: whether several of the files may have entries of one key; the last file then counts.
    :returns: the number of entries.
    :raises InvalidArgument: the files belong to another transaction, or to a queue with other buckets or units, or the
        queue makes every key a conflict key.
    :raises RegistrationLost: the transaction has ended.
    """
    if queue.exclusive and queue.parent is None:
        raise InvalidArgument(
            f"queue {queue.id!r} makes every key a conflict key, but entries in files have none",
            hint="add them as rows, or alter the queue: export-queue alter QUEUE --no-exclusive",
        )
    number, found = _id_of(transaction), list(reports)
    if isinstance(transaction, OpenTransaction):
        transaction.flush()  # its rows come first
    with database.connect() as connection:  # before the SQL transaction below, since drawing may wait
        orders = [database.dialect.steps.draw(connection) for _ in (found if share_keys else found[:1])]
    rows = []
    for at, report in enumerate(found):
        for part in report.slices:
            if part.first < 0 or part.first >= queue.buckets or part.first % queue.buckets_per_range:
                raise InvalidArgument(
                    f"file {report.file}: expected units of {queue.buckets_per_range} of the {queue.buckets} buckets "
                    f"of queue {queue.id!r}, found one that begins at {part.first}"
                )
            add_order = orders[at if share_keys else 0]
            rows.append(report.columns(part, queue, add_order=add_order))
    store_id = identity_of(database).store_id
    with database.begin() as work:
        database.dialect.steps.hold_long(work.connection, number, (queue.number,), store_id=store_id)
        # With this held, an alteration of the queue's buckets has ended, or waits for this SQL transaction.
        expected = queue_of(work, queue.id, number)
        laid_out = (queue.layout, queue.buckets, queue.buckets_per_range)
        if (expected.layout, expected.buckets, expected.buckets_per_range) != laid_out:
            raise layout_closed(f"queue {queue.id!r}")
        folder = queries.segments.folder_of(work, number)
        if folder is None:
            raise InvalidArgument(f"transaction {number}: expected begin_load() before its first file")
        for report in found:
            # clean-up does not find files elsewhere, and must not delete those of others
            if parent_of(report.file) != folder:
                raise InvalidArgument(f"file {report.file}: expected one in the transaction's folder {folder}")
        queries.segments.stage(work, number, rows)
    return sum(report.entries for report in found)


def waiting_segments(work: Reading, queue: Queue, snapshot: Snapshot, within: Range) -> list[Segment]:
    """Read the pending segments that a snapshot sees, and which of their parts are drained.

    :param within: buckets; all segments that overlap them.
    """
    bounds = {"first": within.first, "end": within.end}
    rows = queries.segments.waiting(work, queue.number, queue.layout, snapshot, **bounds)
    if not rows:
        return []
    done = queries.segments.done(work, queue.number, **bounds)
    return [Segment.from_row(row, tuple(done.get((row["transaction_id"], row["number"]), ()))) for row in rows]


def leave_out_drained(work: Reading, queue: Queue, snapshot: Snapshot, within: Range, chunk: Chunk) -> Chunk:
    """Leave out the entries of segments that another attempt has drained since the segments were read.

    That attempt may have drained newer rows of the same keys, which were then gone when the chunk was read.

    :param within: the buckets that the chunk was read from.
    """
    left = {one.key: one.done for one in waiting_segments(work, queue, snapshot, within)}
    gone: set[EntryKey] = set()
    for run in chunk.runs:
        done = left.get(run.segment.key, ((run.first, run.last),))
        rows = without(run.rows, done)
        if len(rows) < len(run.rows):  # rare: only this drain has the claim
            gone |= set(map(key_of, run.rows)) - set(map(key_of, rows))
    if not gone:
        return chunk
    found = chunk.entries
    kept = [i for i, key in enumerate(zip(found.buckets, found.keys, found.seqs, strict=True)) if key not in gone]
    left_over = Entries(
        [found.buckets[i] for i in kept],
        [found.keys[i] for i in kept],
        [found.seqs[i] for i in kept],
        [found.values[i] for i in kept],
        is_last=found.is_last,
    )
    return replace(chunk, entries=left_over)


def by_range(segments: Sequence[Segment], within: Range) -> list[Segment]:
    """Choose the segments that overlap a range."""
    return [one for one in segments if one.first < within.end and one.end > within.first]


def mark_done(work: Work, queue: Queue, run: Run, before: Run | None = None) -> tuple[Run, int]:
    """Record that a run of a segment's entries is drained, inside the critical section of its drain (I10).

    Several tasks may drain the same entries under one lease: one that was taken for dead, and its replacement by
    Spark. Each entry counts once; otherwise a segment would pass for drained whose end was never delivered. Repeating a
    call changes nothing.

    :param before: what this drain recorded of the segment last. The run is joined to it if it follows directly.
    :returns: what is recorded now, for the next call, and how many entries of the run were new.
    """
    first = before.first if before is not None and before.last == run.previous else run.first
    noted = replace(run, first=first, rows=())
    segment = run.segment.key
    whole = queries.segments.hold_reader(work, queue.number, segment)
    if whole is None:  # drained by another task, or by an attempt whose commit was in doubt
        return noted, 0
    done = queries.segments.parts_done(work, queue.number, segment)
    new = without(run.rows, [(begin, last) for begin, (last, _, _) in done.items()])
    if sum(entries for _, entries, _ in done.values()) + len(new) == whole:
        queries.segments.end_reading(work, queue.number, segment)
    elif new:
        last, entries, size = done.get(first, (run.last, 0, 0))
        queries.segments.note_done(
            work,
            queue.number,
            segment,
            first=first,
            last=max(last, run.last),
            entries=entries + len(new),
            size=size + bytes_of_all(new),
        )
    return noted, len(new)


def give_up_file(work: Work, queue: Queue, file: str, *, who: str) -> int:
    """Discard what a reader has not drained of a lost file, and record it.

    :param queue: the reader.
    :param file: the file's name, from the error.
    :param who: name for the audit.
    :returns: the number of discarded entries.
    :raises InvalidArgument: no segment of the file is pending.
    """
    seqs = queries.segments.spreads(work, queue.number, file)
    given_up = queries.segments.discard(work, queue.number, file)
    if not given_up:
        raise InvalidArgument(
            f"queue {queue.id!r}: no pending segment is in file {file}",
            hint="list the pending files: export-queue segments QUEUE",
        )
    of_file = {"file": file}
    queries.acts.record(work, queue_id=queue.id, act="give up", who=who, letters=given_up, selection=of_file, seqs=seqs)
    return given_up


def _id_of(transaction: int | OpenTransaction) -> int:
    if isinstance(transaction, int):
        return transaction
    if transaction.kind != "long":
        raise InvalidArgument(
            f"segments: expected a long transaction, found one that is {transaction.kind}",
            hint="with store.transaction(long=True) as tx",
        )
    return transaction.id
