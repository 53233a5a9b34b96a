"""SQL about entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.portable import visible_ids
from export_queue.core.store.schema import active, invalid
from export_queue.core.store.schema import dead_letter as d
from export_queue.core.store.schema import entry as e
from export_queue.core.store.seams import EntryKey
from export_queue.core.store.snapshot import Snapshot

BucketAndKey = tuple[int, bytes]
"""Bucket and key of entries."""
_REMOVE_BLOCK = 300
"""Entries that one statement names: 3 parameters each, well below SQLite's limit."""

_order = sa.tuple_(e.c.bucket, e.c.key, e.c.seq)
_bytes_of = sa.func.length(e.c.key) + sa.func.coalesce(sa.func.length(e.c.value), 0)


def visible(work: Reading, snapshot: Snapshot) -> sa.ColumnElement[bool]:
    """Build the condition that a snapshot sees an entry; every removal has it."""
    return visible_ids(work, e.c.seq, snapshot)


def _of(queue: int, layout: int) -> sa.ColumnElement[bool]:
    return sa.and_(e.c.queue_number == queue, e.c.layout == layout)


def select_waiting(
    work: Reading, queue: int, layout: int, snapshot: Snapshot, *, at: BucketAndKey | None, rows: int, values: bool
) -> list[tuple[int, bytes, int, int | None, bytes | None]]:
    """Read the first visible entries in the order of their keys: bucket, key, seq, bytes of the value, value.

    :param at: None for all entries.
    :param values: whether the values are read; otherwise they are None.
    """
    value = e.c.value if values else sa.null()
    statement = (
        sa.select(e.c.bucket, e.c.key, e.c.seq, sa.func.length(e.c.value), value)
        .where(_of(queue, layout), visible(work, snapshot), *_at(at))
        .order_by(e.c.bucket, e.c.key, e.c.seq)
        .limit(rows)
    )
    found = work.connection.execute(statement)
    return [(bucket, bytes(key), seq, size, content) for bucket, key, seq, size, content in found]


def hidden_seqs(
    work: Reading, queue: int, layout: int, snapshot: Snapshot, *, at: BucketAndKey, rows: int
) -> list[int]:
    """Read the seqs of a key's entries that a snapshot does not see."""
    hidden = sa.select(e.c.seq).where(_of(queue, layout), sa.not_(visible(work, snapshot)), *_at(at))
    return [int(seq) for seq in work.connection.scalars(hidden.order_by(e.c.seq).limit(rows))]


def _at(at: BucketAndKey | None) -> tuple[sa.ColumnElement[bool], ...]:
    return () if at is None else (e.c.bucket == at[0], e.c.key == at[1])


def delete_span(work: Work, queue: int, layout: int, snapshot: Snapshot, first: EntryKey, last: EntryKey) -> int:
    """Remove the entries that the snapshot sees between two positions, both included."""
    statement = e.delete().where(
        _of(queue, layout),
        e.c.bucket >= first[0],
        e.c.bucket <= last[0],
        _order >= _key(first),
        _order <= _key(last),
        visible(work, snapshot),
    )
    return work.connection.execute(statement).rowcount


def delete_entries(work: Work, queue: int, layout: int, keys: Sequence[EntryKey]) -> int:
    """Remove entries one by one."""
    removed = 0
    for start in range(0, len(keys), _REMOVE_BLOCK):
        block = list(keys[start : start + _REMOVE_BLOCK])
        removed += work.connection.execute(e.delete().where(_of(queue, layout), _order.in_(block))).rowcount
    return removed


def _key(key: EntryKey) -> Any:
    return sa.tuple_(
        sa.literal(key[0], sa.Integer), sa.literal(key[1], sa.LargeBinary), sa.literal(key[2], sa.BigInteger)
    )


def by_unit(
    work: Reading, queue: int, layout: int, snapshot: Snapshot, *, first: int, end: int, buckets_per_range: int
) -> sa.Select[Any]:
    """Build the statement that sums up the visible entries of a bucket interval by unit."""
    unit = e.c.bucket.op("/")(sa.literal_column(str(int(buckets_per_range)))).label("unit")
    return (
        sa.select(
            unit,
            sa.func.count().label("entries"),
            sa.func.sum(_bytes_of).label("bytes"),
            sa.func.min(e.c.seq).label("lowest"),
        )
        .where(_of(queue, layout), e.c.bucket >= first, e.c.bucket < end, visible(work, snapshot))
        .group_by(unit)
    )


def count_by_unit(
    work: Reading, queue: int, layout: int, snapshot: Snapshot, *, first: int, end: int, buckets_per_range: int
) -> list[tuple[int, int, int, int]]:
    """Sum up the visible entries of a bucket interval by unit: unit number, entries, bytes, lowest seq."""
    statement = by_unit(work, queue, layout, snapshot, first=first, end=end, buckets_per_range=buckets_per_range)
    found = work.connection.execute(statement.order_by("unit"))
    return [(int(u), int(n), int(size), int(seq)) for u, n, size, seq in found]


def is_committed(seq: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Build the condition that an entry is committed at this moment.

    Ids in progress and invalid ids are few, so they are read once and not for each entry.
    """
    return sa.and_(seq.not_in(sa.select(active.c.id)), seq.not_in(sa.select(invalid.c.id)))


def count_up_to(work: Reading, queue: int, most: int) -> tuple[int, int | None, bool]:
    """Count committed entries in rows, of which at most a number is read: entries, lowest seq, whether more exist."""
    seen = sa.select(e.c.seq).where(e.c.queue_number == queue).limit(most + 1).subquery()
    committed = sa.case((is_committed(seen.c.seq), seen.c.seq))
    statement = sa.select(sa.func.count(), sa.func.count(committed), sa.func.min(committed)).select_from(seen)
    rows, entries, lowest = work.connection.execute(statement).one()
    return min(int(entries), most), lowest, rows > most


def lowest_covered(work: Reading, queue: int, layout: int) -> int | None:
    """Read the lowest sequence for which retried dead letters may stand; None if there are none."""
    covered = sa.select(sa.func.min(e.c.covers)).where(_of(queue, layout), e.c.covers.is_not(None))
    found: int | None = work.connection.scalar(covered)
    return found


def every_nth_key(work: Reading, queue: int, layout: int, snapshot: Snapshot, *, bucket: int, step: int) -> list[bytes]:
    """Read the keys of a bucket's visible entries number ``step``, ``2 * step`` and so on."""
    number = sa.func.row_number().over(order_by=(e.c.key, e.c.seq))
    numbered = (
        sa.select(e.c.key, number.label("number"))
        .where(_of(queue, layout), e.c.bucket == bucket, visible(work, snapshot))
        .subquery()
    )
    statement = sa.select(numbered.c.key).where(numbered.c.number % step == 0).order_by(numbered.c.number)
    return [bytes(key) for key in work.connection.scalars(statement)]


def largest_value(work: Reading, queue: int) -> int:
    """Read the bytes of the largest value among a queue's rows, including staged ones, and its dead letters."""
    sizes = (sa.select(sa.func.max(sa.func.length(t.c.value))).where(t.c.queue_number == queue) for t in (e, d))
    return max(work.connection.scalar(size) or 0 for size in sizes)


def first_bucket(
    work: Reading, queue: int, layout: int, snapshot: Snapshot, *, first: int, end: int, since: Snapshot | None = None
) -> int | None:
    """Find the first bucket of an interval that has a visible entry.

    :param since: an earlier snapshot; entries that it saw do not count.
    """
    statement = (
        sa.select(e.c.bucket)
        .where(_of(queue, layout), e.c.bucket >= first, e.c.bucket < end, visible(work, snapshot))
        .order_by(e.c.bucket, e.c.key, e.c.seq)
        .limit(1)
    )
    if since is not None:
        statement = statement.where(sa.not_(visible(work, since)))
    return work.connection.scalar(statement)
