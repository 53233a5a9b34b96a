"""SQL about compactions: segments that stand for others, which they hide from one reader.

A merged segment stands for those that name it. Segments that were rewritten into another layout stand for their inputs
all together: these name the transaction, and :data:`ALL` in the place of a number. Those of its segments that were made
of rows stand for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.queries.inserts import insert_into
from export_queue.core.store.queries.segments import Key
from export_queue.core.store.schema import compacted as c
from export_queue.core.store.schema import hidden_segment as h
from export_queue.core.store.schema import load
from export_queue.core.store.schema import partition as p
from export_queue.core.store.schema import segment as g
from export_queue.core.store.schema import segment_done as d
from export_queue.core.store.schema import segment_reader as r

ALL = 0
"""In the place of a segment's number: all segments of its transaction together, which are numbered from 1."""
_KEYS_AT_ONCE = 300
"""Segments that one statement names: two parameters each."""


def is_published(work: Reading, transaction: int) -> bool:
    """Tell whether a compaction has taken effect: it leaves merged segments, until these are drained."""
    return bool(work.connection.scalar(sa.select(sa.exists().where(c.c.transaction_id == transaction))))


def give_partitions(work: Work, queue: int, layout: int, first_bucket: int, count: int) -> int:
    """Draw partition numbers of a unit, which nobody has been given; returns the first of them."""
    place = {"queue_number": queue, "layout": layout, "first_bucket": first_bucket}
    put = insert_into(work, p).values(**place, given=count)
    put = put.on_conflict_do_update(index_elements=list(p.primary_key.columns), set_={"given": p.c.given + count})
    return int(work.connection.execute(put.returning(p.c.given)).scalar_one()) - count


def partitions_given(work: Reading, queue: int, layout: int) -> dict[int, int]:
    """Read how many partition numbers each unit has given, by its first bucket."""
    statement = sa.select(p.c.first_bucket, p.c.given).where(p.c.queue_number == queue, p.c.layout == layout)
    return {int(first): int(given) for first, given in work.connection.execute(statement)}


def partitions_of(work: Reading, queue: int) -> dict[Key, int]:
    """Read the partition numbers of a reader's merged segments."""
    statement = sa.select(c.c.transaction_id, c.c.number, c.c.partition).where(c.c.queue_number == queue)
    return {(int(one), int(number)): int(given) for one, number, given in work.connection.execute(statement)}


def outputs(work: Reading, queue: int, layout: int) -> list[Mapping[str, Any]]:
    """Read a reader's merged segments, drained ones too until clean-up forgets them: columns, partition, ``waits``."""
    waits = sa.exists().where(
        r.c.queue_number == queue, r.c.transaction_id == g.c.transaction_id, r.c.number == g.c.number
    )
    statement = (
        sa.select(g, c.c.partition, waits.label("waits"))
        .select_from(c.join(g, sa.and_(g.c.transaction_id == c.c.transaction_id, g.c.number == c.c.number)))
        .where(c.c.queue_number == queue, g.c.layout == layout)
        .order_by(c.c.partition)
    )
    return [dict(row) for row in work.connection.execute(statement).mappings()]


def made_of(work: Reading, segment: Key) -> tuple[int, int]:
    """Read how many entries of a merged segment were rows, and how many of all its inputs' were coalesced."""
    statement = sa.select(c.c.row_entries, c.c.coalesced)
    found = work.connection.execute(statement.where(c.c.transaction_id == segment[0], c.c.number == segment[1])).first()
    return (0, 0) if found is None else (int(found[0]), int(found[1]))


def insert(
    work: Work, queue: int, row: Mapping[str, Any], *, partition: int, row_entries: int, coalesced: int = 0
) -> None:
    """Publish a merged segment to its reader.

    :param row: its columns, its transaction and number included.
    :param row_entries: how many of its entries were rows.
    :param coalesced: how many entries a later one of their key stands for.
    """
    key = {"transaction_id": row["transaction_id"], "number": row["number"]}
    work.connection.execute(g.insert(), dict(row))
    work.connection.execute(
        c.insert(),
        {**key, "queue_number": queue, "partition": partition, "row_entries": row_entries, "coalesced": coalesced},
    )
    work.connection.execute(r.insert(), {**key, "queue_number": queue})
    counted = load.update().where(load.c.transaction_id == row["transaction_id"])
    work.connection.execute(counted.values(segments=row["number"]))


def insert_rewritten(
    work: Work, queue: int, rows: Sequence[Mapping[str, Any]], *, partitions: Sequence[int], row_entries: Sequence[int]
) -> None:
    """Publish all segments of a transaction to its reader, each as :func:`insert` does one."""
    keys = [{"transaction_id": row["transaction_id"], "number": row["number"]} for row in rows]
    work.connection.execute(g.insert(), [dict(row) for row in rows])
    merged = [
        {**key, "queue_number": queue, "partition": partition, "row_entries": entries, "coalesced": 0}
        for key, partition, entries in zip(keys, partitions, row_entries, strict=True)
    ]
    work.connection.execute(c.insert(), merged)
    work.connection.execute(r.insert(), [{**key, "queue_number": queue} for key in keys])
    counted = load.update().where(load.c.transaction_id == rows[-1]["transaction_id"])
    work.connection.execute(counted.values(segments=max(row["number"] for row in rows)))


def hide(work: Work, queue: int, inputs: Mapping[Key, int], *, by: Key, now_ms: int) -> int:
    """Let a merged segment stand for others; returns how many of these the reader had still to read.

    :param inputs: the partition number of each.
    :param by: the merged segment; with the number :data:`ALL` all that its transaction has rewritten.
    """
    rows = [
        {
            "queue_number": queue,
            "transaction_id": transaction,
            "number": number,
            "partition": partition,
            "by_transaction": by[0],
            "by_number": by[1],
            "hidden_ms": now_ms,
        }
        for (transaction, number), partition in sorted(inputs.items())
    ]
    work.connection.execute(h.insert(), rows)
    keys = sorted(inputs)
    return sum(
        work.connection.execute(
            r.delete().where(r.c.queue_number == queue, _key(r).in_(keys[start : start + _KEYS_AT_ONCE]))
        ).rowcount
        for start in range(0, len(keys), _KEYS_AT_ONCE)
    )


def bring_back(work: Work, queue: int, by: Key) -> int:
    """Let the segments wait again for which a merged one stands, and forget that one; returns how many these are."""
    of_output = (h.c.queue_number == queue, h.c.by_transaction == by[0], h.c.by_number == by[1])
    found = _show(work, of_output)
    for table in (r, d):
        gone = (table.c.queue_number == queue, table.c.transaction_id == by[0], table.c.number == by[1])
        work.connection.execute(table.delete().where(*gone))
    for table in (c, g):
        work.connection.execute(table.delete().where(table.c.transaction_id == by[0], table.c.number == by[1]))
    return found


def _show(work: Work, of: Sequence[sa.ColumnElement[bool]]) -> int:
    """Let hidden segments wait again; returns how many these are."""
    # Their rows are locked: clean-up that is forgetting them is waited for, and one that comes now finds them gone.
    inputs = work.connection.execute(
        sa.select(h.c.queue_number, h.c.transaction_id, h.c.number).where(*of).with_for_update()
    ).mappings()
    if found := [dict(row) for row in inputs]:
        work.connection.execute(r.insert(), found)
    work.connection.execute(h.delete().where(*of))
    return len(found)


def rewritten(work: Reading, queue: int, transaction: int) -> list[Key]:
    """Read which of the segments that a transaction has rewritten of others the reader has still to read."""
    statement = (
        sa.select(r.c.transaction_id, r.c.number)
        .select_from(r.join(c, sa.and_(c.c.transaction_id == r.c.transaction_id, c.c.number == r.c.number)))
        .where(r.c.queue_number == queue, r.c.transaction_id == transaction, c.c.row_entries == 0)
        .order_by(r.c.number)
    )
    return [(int(one), int(number)) for one, number in work.connection.execute(statement)]


def layouts_moved_from(work: Reading, queue: int, transaction: int) -> dict[int, int]:
    """Count by layout the segments that are hidden by all that a transaction has rewritten."""
    statement = (
        sa.select(g.c.layout, sa.func.count())
        .select_from(h.join(g, sa.and_(g.c.transaction_id == h.c.transaction_id, g.c.number == h.c.number)))
        .where(h.c.queue_number == queue, h.c.by_transaction == transaction, h.c.by_number == ALL)
        .group_by(g.c.layout)
    )
    return {int(layout): int(number) for layout, number in work.connection.execute(statement)}


def bring_back_all(work: Work, queue: int, transaction: int) -> int:
    """Let the segments wait again which a transaction has rewritten, and forget what it has made of them.

    :returns: how many wait again.
    """
    for _, number in rewritten(work, queue, transaction):
        for table in (r, d, c, g):  # which has one reader
            of_output = (table.c.transaction_id == transaction, table.c.number == number)
            work.connection.execute(table.delete().where(*of_output))
    return _show(work, (h.c.queue_number == queue, h.c.by_transaction == transaction, h.c.by_number == ALL))


def stamp(work: Reading, queue: int) -> tuple[int, int]:
    """Read what is another one once something was merged or rewritten for a reader."""
    statement = sa.select(sa.func.count(), sa.func.coalesce(sa.func.max(c.c.transaction_id), 0))
    count, last = work.connection.execute(statement.where(c.c.queue_number == queue)).one()
    return int(count), int(last)


def hidden(work: Reading, queue: int, layout: int) -> list[Mapping[str, Any]]:
    """Read the segments that merged ones hide from a reader: the segment's columns, its partition, and by which."""
    statement = (
        sa.select(g, h.c.partition, h.c.by_transaction, h.c.by_number, h.c.hidden_ms)
        .select_from(h.join(g, sa.and_(g.c.transaction_id == h.c.transaction_id, g.c.number == h.c.number)))
        .where(h.c.queue_number == queue, g.c.layout == layout)
        .order_by(h.c.partition)
    )
    return [dict(row) for row in work.connection.execute(statement).mappings()]


def _key(table: sa.Table) -> Any:
    return sa.tuple_(table.c.transaction_id, table.c.number)
