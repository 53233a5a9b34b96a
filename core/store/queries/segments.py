"""SQL about segments: entries of long transactions in files.

A segment is identified by its transaction and a number. The commit writes its readers, so a segment without readers is
staged, drained, or belongs to a transaction that did not commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.portable import insert_for, insert_into, visible_ids
from export_queue.core.store.queries.entries import by_unit
from export_queue.core.store.schema import active, is_state
from export_queue.core.store.schema import compacted as c
from export_queue.core.store.schema import hidden_segment as h
from export_queue.core.store.schema import load as ld
from export_queue.core.store.schema import queue as q
from export_queue.core.store.schema import segment as g
from export_queue.core.store.schema import segment_done as d
from export_queue.core.store.schema import segment_reader as r
from export_queue.core.store.seams import EntryKey
from export_queue.core.store.snapshot import Snapshot

Key = tuple[int, int]
"""Transaction and number of a segment."""

_KEY = ("queue_number", "transaction_id", "number")
"""Columns that identify a segment of a reader."""
_read = r.join(g, sa.and_(g.c.transaction_id == r.c.transaction_id, g.c.number == r.c.number))


def _is(table: sa.Table) -> tuple[sa.ColumnElement[bool], ...]:
    return tuple(table.c[column] == sa.bindparam(f"of_{column}") for column in _KEY)


def _of(queue: int, segment: Key) -> dict[str, int]:
    return {f"of_{column}": value for column, value in zip(_KEY, (queue, *segment), strict=True)}


# Built once: a drain runs them for each run of entries, and building a statement takes several times as long as running
# it.
_HOLD_READER = sa.select(g.c.entries).select_from(_read).where(*_is(r)).with_for_update(of=r)
_PARTS_DONE = sa.select(d).where(*_is(d))
_END_READING = tuple(table.delete().where(*_is(table)) for table in (r, d))


@cache
def _noting(dialect: str) -> Any:
    put = insert_for(dialect, d)
    replaced = {column.name: put.excluded[column.name] for column in d.columns if not column.primary_key}
    return put.on_conflict_do_update(index_elements=list(d.primary_key.columns), set_=replaced)


def begin(work: Work, transaction: int, folder: str) -> str:
    """Store the folder into which a long transaction writes files, unless one is stored; return the stored one."""
    values = {"transaction_id": transaction, "folder": folder, "begun_ms": work.now()}
    statement = insert_into(work, ld).values(**values, segments=0, stagings=0, checked=0)
    work.connection.execute(statement.on_conflict_do_nothing())
    return str(folder_of(work, transaction))


def folder_of(work: Reading, transaction: int) -> str | None:
    """Read the folder into which a long transaction writes files."""
    return work.connection.scalar(sa.select(ld.c.folder).where(ld.c.transaction_id == transaction))


def stage(work: Work, transaction: int, rows: Sequence[Mapping[str, Any]]) -> int:
    """Stage the segments that are not staged yet, and return how many these are.

    :param rows: their columns, without transaction and number.
    """
    # This locks the row first, so that the later of two calls for the same files finds them.
    work.connection.execute(ld.update().where(ld.c.transaction_id == transaction).values(segments=ld.c.segments))
    staged = sa.select(g.c.file, g.c.first_bucket).where(g.c.transaction_id == transaction)
    known = {(file, first) for file, first in work.connection.execute(staged)}
    new = [row for row in rows if (row["file"], row["first_bucket"]) not in known]
    if not new:
        return 0
    counted = ld.update().where(ld.c.transaction_id == transaction)
    counted = counted.values(segments=ld.c.segments + len(new), stagings=ld.c.stagings + 1)
    last = work.connection.execute(counted.returning(ld.c.segments)).scalar_one()
    first = last - len(new) + 1
    numbered = [{**row, "transaction_id": transaction, "number": first + i} for i, row in enumerate(new)]
    work.connection.execute(g.insert(), numbered)
    return len(new)


def hold_pending(work: Work, queue: int, *, below: int, unless: int) -> list[Mapping[str, Any]]:
    """Lock and read a reader's pending segments that have entries with smaller sequences than a bound.

    Until the SQL transaction ends, no compaction replaces them, and so clean-up keeps their files.

    :param unless: number of a reader; segments that are pending for it, too, are left out.
    """
    other = r.alias().c
    is_there = sa.exists().where(
        other.queue_number == unless, other.transaction_id == r.c.transaction_id, other.number == r.c.number
    )
    statement = sa.select(g).select_from(_read).where(r.c.queue_number == queue, g.c.lowest_seq < below, ~is_there)
    return work.rows(statement.order_by(g.c.transaction_id, g.c.number).with_for_update(read=True, of=r))


def stage_former(work: Work, transaction: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Stage segments whose entries have sequences of former transactions, for a first load.

    Their keys are not compared: several entries of a key have different sequences.

    :param rows: their columns, without transaction and number; all have the same ones, since SQLAlchemy leaves out
        without an error what the first row has not.
    """
    counted = ld.update().where(ld.c.transaction_id == transaction).values(segments=ld.c.segments + len(rows))
    last = work.connection.execute(counted.returning(ld.c.segments)).scalar_one()
    first = last - len(rows) + 1
    numbered = [{**row, "transaction_id": transaction, "number": first + i} for i, row in enumerate(rows)]
    assert all(row.keys() == numbered[0].keys() for row in numbered)
    if numbered:
        work.connection.execute(g.insert(), numbered)


def _visible(work: Reading, queue: int, layout: int, snapshot: Snapshot) -> sa.ColumnElement[bool]:
    # A compaction merges settled entries: a snapshot that saw the inputs must also see the output.
    merged = sa.and_(r.c.transaction_id.in_(sa.select(c.c.transaction_id)), g.c.lowest_seq <= snapshot.read_pointer)
    seen = sa.or_(visible_ids(work, r.c.transaction_id, snapshot), merged)
    return sa.and_(r.c.queue_number == queue, g.c.layout == layout, seen)


def waiting(
    work: Reading, queue: int, layout: int, snapshot: Snapshot, *, first: int, end: int
) -> list[Mapping[str, Any]]:
    """Read a reader's pending segments that a snapshot sees and that overlap a bucket interval."""
    statement = (
        sa.select(g)
        .select_from(_read)
        .where(_visible(work, queue, layout, snapshot), g.c.first_bucket < end, g.c.end_bucket > first)
        .order_by(g.c.transaction_id, g.c.number)
    )
    return work.rows(statement)


def names(
    work: Reading, queue: int, layout: int, snapshot: Snapshot | None, *, first: int, end: int
) -> list[tuple[int, int, int, int]]:
    """Read a reader's pending segments that overlap a bucket interval: first, end, transaction, number.

    :param snapshot: only segments that it sees; None for all committed ones.
    """
    if snapshot is None:
        counts = sa.and_(r.c.queue_number == queue, g.c.layout == layout)
    else:
        counts = _visible(work, queue, layout, snapshot)
    statement = (
        sa.select(g.c.first_bucket, g.c.end_bucket, g.c.transaction_id, g.c.number)
        .select_from(_read)
        .where(counts, g.c.first_bucket < end, g.c.end_bucket > first)
    )
    return [tuple(row) for row in work.connection.execute(statement)]


def done(work: Reading, queue: int, *, first: int, end: int) -> dict[Key, list[tuple[EntryKey, EntryKey]]]:
    """Read the parts that a reader has drained of segments that overlap a bucket interval.

    :returns: for each segment the first and last entry of each part, ascending.
    """
    statement = (
        sa.select(d)
        .select_from(d.join(g, sa.and_(g.c.transaction_id == d.c.transaction_id, g.c.number == d.c.number)))
        .where(d.c.queue_number == queue, g.c.first_bucket < end, g.c.end_bucket > first)
        .order_by(d.c.first_bucket, d.c.first_key, d.c.first_seq)
    )
    found: dict[Key, list[tuple[EntryKey, EntryKey]]] = {}
    for row in work.connection.execute(statement):
        part = (
            (row.first_bucket, bytes(row.first_key), row.first_seq),
            (row.last_bucket, bytes(row.last_key), row.last_seq),
        )
        found.setdefault((row.transaction_id, row.number), []).append(part)
    return found


def hold_reader(work: Work, queue: int, segment: Key) -> int | None:
    """Lock a pending segment of a reader, and return the number of its entries; None if it is completely drained.

    So one task at a time records what was drained of it.
    """
    return work.connection.scalar(_HOLD_READER, _of(queue, segment))


def parts_done(work: Reading, queue: int, segment: Key) -> dict[EntryKey, tuple[EntryKey, int, int]]:
    """Read the parts that a reader has drained of a segment: by first entry the last one, entries and bytes.

    Parts may overlap, but each entry is counted in one of them only.
    """
    return {
        (row.first_bucket, bytes(row.first_key), row.first_seq): (
            (row.last_bucket, bytes(row.last_key), row.last_seq),
            row.entries,
            row.bytes,
        )
        for row in work.connection.execute(_PARTS_DONE, _of(queue, segment))
    }


def note_done(
    work: Work, queue: int, segment: Key, *, first: EntryKey, last: EntryKey, entries: int, size: int
) -> None:
    """Record that a reader has drained a part of a segment, in place of a part that begins at the same entry."""
    row = {
        **dict(zip(_KEY, (queue, *segment), strict=True)),
        **dict(zip(("first_bucket", "first_key", "first_seq"), first, strict=True)),
        **dict(zip(("last_bucket", "last_key", "last_seq"), last, strict=True)),
        "entries": entries,
        "bytes": size,
    }
    work.connection.execute(_noting(work.connection.dialect.name), row)


def end_reading(work: Work, queue: int, segment: Key) -> None:
    """Record that a reader has drained a segment completely."""
    for statement in _END_READING:
        work.connection.execute(statement, _of(queue, segment))


def left() -> tuple[sa.FromClause, sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    """Join readers with their pending segments; return the join, and columns of the entries and bytes left in each."""
    key = [d.c[name] for name in _KEY]
    sums = [sa.func.sum(column).label(column.name) for column in (d.c.entries, d.c.bytes)]
    part = sa.select(*key, *sums).group_by(*key).subquery()
    joined = _read.outerjoin(part, sa.and_(*(part.c[name] == r.c[name] for name in _KEY)))
    return joined, g.c.entries - sa.func.coalesce(part.c.entries, 0), g.c.bytes - sa.func.coalesce(part.c.bytes, 0)


def count_by_unit(
    work: Reading, queue: int, layout: int, snapshot: Snapshot, *, first: int, end: int, buckets_per_range: int
) -> list[tuple[int, int, int, int]]:
    """Sum up all visible entries, in rows and in files, by unit: unit number, entries, bytes, lowest seq.

    It is one statement, so that rows which a compaction merges at the same time are counted once.
    """
    bounds = {"first": first, "end": end, "buckets_per_range": buckets_per_range}
    joined, entries, size = left()
    unit = g.c.first_bucket.op("/")(sa.literal_column(str(int(buckets_per_range)))).label("unit")
    in_files = (
        sa.select(unit, sa.func.sum(entries), sa.func.sum(size), sa.func.min(g.c.lowest_seq))
        .select_from(joined)
        .where(_visible(work, queue, layout, snapshot), g.c.first_bucket < end, g.c.end_bucket > first)
        .group_by(unit)
    )
    both = sa.union_all(by_unit(work, queue, layout, snapshot, **bounds), in_files).subquery().c
    statement = sa.select(both.unit, sa.func.sum(both.entries), sa.func.sum(both.bytes), sa.func.min(both.lowest))
    statement = statement.group_by(both.unit).order_by(both.unit)
    return [(int(u), int(n), int(b), int(seq)) for u, n, b, seq in work.connection.execute(statement)]


def of_reader(work: Reading, queue: int, layout: int) -> list[Mapping[str, Any]]:
    """Read a reader's committed pending segments, each with the number of entries that are ``left``."""
    joined, entries, _ = left()
    statement = (
        sa.select(g, entries.label("left"))
        .select_from(joined)
        .where(r.c.queue_number == queue, g.c.layout == layout)
        .order_by(g.c.first_bucket, g.c.transaction_id, g.c.number)
    )
    return work.rows(statement)


def count_left(work: Reading, queue: int) -> int:
    """Count the pending entries of a reader in files."""
    return _count_left(work, r.c.queue_number == queue)


def _count_left(work: Reading, *conditions: sa.ColumnElement[bool]) -> int:
    joined, entries, _ = left()
    return int(work.connection.scalar(sa.select(sa.func.sum(entries)).select_from(joined).where(*conditions)) or 0)


def count_by_queue(work: Reading, queue: int | None = None) -> dict[int, tuple[int, int]]:
    """Count the pending entries in files: by number of the queue, entries and lowest seq.

    :param queue: the only queue that is counted.
    """
    joined, entries, _ = left()
    statement = (
        sa.select(r.c.queue_number, sa.func.sum(entries), sa.func.min(g.c.lowest_seq))
        .select_from(joined)
        .group_by(r.c.queue_number)
    )
    if queue is not None:
        statement = statement.where(r.c.queue_number == queue)
    return {int(queue): (int(number), int(seq)) for queue, number, seq in work.connection.execute(statement)}


def spreads(work: Reading, queue: int, file: str) -> list[tuple[int, int]]:
    """Read between which sequences a reader's pending entries in a file are."""
    statement = sa.select(g.c.lowest_seq, g.c.highest_seq).select_from(_read)
    found = work.connection.execute(statement.where(r.c.queue_number == queue, g.c.file == file))
    return [(int(lowest), int(highest)) for lowest, highest in found]


def discard(work: Work, queue: int, file: str) -> int:
    """Discard a reader's pending entries in a file, and return their number."""
    of_file = (r.c.queue_number == queue, g.c.file == file)
    discarded = _count_left(work, *of_file)
    keys = list(work.connection.execute(sa.select(r.c.transaction_id, r.c.number).select_from(_read).where(*of_file)))
    for transaction, number in keys:
        end_reading(work, queue, (transaction, number))
    return discarded


def intervals(
    work: Reading, queue: int, layout: int, snapshot: Snapshot, *, since: Snapshot | None = None
) -> list[tuple[int, int]]:
    """Read the bucket intervals of a reader's pending segments, ascending.

    :param since: an earlier snapshot; segments that it saw do not count.
    """
    statement = (
        sa.select(g.c.first_bucket, g.c.end_bucket)
        .select_from(_read)
        .where(_visible(work, queue, layout, snapshot))
        .distinct()
        .order_by(g.c.first_bucket, g.c.end_bucket)
    )
    if since is not None:
        statement = statement.where(sa.not_(visible_ids(work, r.c.transaction_id, since)))
        if not since.excluded:  # otherwise a merged segment may have entries that were in progress then
            merged = r.c.transaction_id.in_(sa.select(c.c.transaction_id))
            statement = statement.where(sa.or_(sa.not_(merged), g.c.highest_seq > since.read_pointer))
    return [(int(first), int(end)) for first, end in work.connection.execute(statement)]


def lowest_seq() -> sa.ScalarSelect[Any]:
    """Build the statement that finds the lowest seq of all pending entries in files."""
    drained = r.c.queue_number.not_in(sa.select(q.c.number).where(is_state))
    return sa.select(sa.func.min(g.c.lowest_seq)).select_from(_read).where(drained).scalar_subquery()


def staged(queue: int) -> sa.Exists:
    """Build the condition that transactions in progress have staged segments for a queue."""
    return sa.exists().where(g.c.queue_number == queue, g.c.transaction_id == active.c.id)


_staged = g.join(active, active.c.id == g.c.transaction_id)


def count_staged(work: Reading, queue: int) -> int:
    """Count the entries in segments that transactions in progress have staged for a queue."""
    statement = sa.select(sa.func.sum(g.c.entries)).select_from(_staged).where(g.c.queue_number == queue)
    return int(work.connection.scalar(statement) or 0)


def largest_value(work: Reading, queue: int) -> int:
    """Read the bytes of the largest value in a reader's pending segments and in those staged for its queue.

    Inputs of pending merged segments count too: they may become pending again.
    """
    merged = r.alias().c
    is_pending = sa.exists().where(merged.queue_number == h.c.queue_number, merged.transaction_id == h.c.by_transaction)
    of_segment = sa.and_(g.c.transaction_id == h.c.transaction_id, g.c.number == h.c.number, is_pending)
    sizes = (
        sa.select(sa.func.max(g.c.largest_value)).select_from(joined).where(which == queue)
        for joined, which in (
            (_read, r.c.queue_number),
            (_staged, g.c.queue_number),
            (h.join(g, of_segment), h.c.queue_number),
        )
    )
    return max(work.connection.scalar(size) or 0 for size in sizes)


def some_waiting_files(work: Reading, *, limit: int) -> list[str]:
    """Read some files with pending segments: those of so many segments that are read first."""
    first = sa.select(g.c.file).select_from(_read).limit(limit).subquery()
    return sorted(set(work.connection.scalars(sa.select(first.c.file))))


def waiting_files(work: Reading) -> list[str]:
    """Read the files with pending segments, by name."""
    return list(work.connection.scalars(sa.select(g.c.file).select_from(_read).distinct().order_by(g.c.file)))
