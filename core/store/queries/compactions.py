"""SQL about compactions: segments that replace others, which are hidden from one reader.

A merged segment replaces the hidden segments that name it. The segments of a transaction that rewrites others into
another layout replace their inputs together: these name the transaction, with :data:`ALL` as the number. Segments made
of rows only replace no segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.queries.segments import Key
from export_queue.core.store.schema import compacted as c
from export_queue.core.store.schema import hidden_segment as h
from export_queue.core.store.schema import load
from export_queue.core.store.schema import segment as g
from export_queue.core.store.schema import segment_done as d
from export_queue.core.store.schema import segment_reader as r

ALL = 0
"""Instead of a segment's number: all segments of its transaction together, which are numbered from 1."""
_KEYS_AT_ONCE = 300
"""Segments that one statement names, with two parameters each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A merged segment to publish."""

    segment: Key
    columns: Mapping[str, Any]
    """Its columns other than its transaction and number."""
    row_entries: int
    """How many of its entries were rows."""
    coalesced: int = 0
    """How many entries were dropped because a later one of their key replaces them."""


def is_published(work: Reading, transaction: int) -> bool:
    """Return whether a compaction has taken effect, as its merged segments show until they are drained."""
    return bool(work.connection.scalar(sa.select(sa.exists().where(c.c.transaction_id == transaction))))


def merged(work: Reading, queue: int) -> set[Key]:
    """Read the keys of a reader's merged segments, including drained ones until clean-up deletes them."""
    statement = sa.select(c.c.transaction_id, c.c.number).where(c.c.queue_number == queue)
    return {(int(transaction), int(number)) for transaction, number in work.connection.execute(statement)}


def outputs(work: Reading, queue: int, layout: int) -> list[Mapping[str, Any]]:
    """Read the columns of a reader's merged segments, including drained ones until clean-up deletes them."""
    statement = (
        sa.select(g)
        .select_from(c.join(g, sa.and_(g.c.transaction_id == c.c.transaction_id, g.c.number == c.c.number)))
        .where(c.c.queue_number == queue, g.c.layout == layout)
    )
    return work.rows(statement)


def made_of(work: Reading, segment: Key) -> tuple[int, int]:
    """Read how many entries of a merged segment were rows, and how many were dropped by coalescing."""
    statement = sa.select(c.c.row_entries, c.c.coalesced)
    found = work.connection.execute(statement.where(c.c.transaction_id == segment[0], c.c.number == segment[1])).first()
    return (0, 0) if found is None else (int(found[0]), int(found[1]))


def insert(work: Work, queue: int, segments: Sequence[Merged]) -> None:
    """Publish the merged segments of one transaction to their reader."""
    rows = [{**_named(one.segment), "queue_number": queue} for one in segments]
    work.connection.execute(g.insert(), [{**one.columns, **_named(one.segment)} for one in segments])
    made_of = [{"row_entries": one.row_entries, "coalesced": one.coalesced} for one in segments]
    work.connection.execute(c.insert(), [{**row, **counts} for row, counts in zip(rows, made_of, strict=True)])
    work.connection.execute(r.insert(), rows)
    counted = load.update().where(load.c.transaction_id == segments[-1].segment[0])
    work.connection.execute(counted.values(segments=max(one.segment[1] for one in segments)))


def hide(work: Work, queue: int, replaced: Mapping[Key, Key], *, now_ms: int) -> int:
    """Replace pending segments by merged ones.

    :param replaced: for each segment the merged one; with the number :data:`ALL`, all segments of its transaction.
    :returns: how many of the segments were pending.
    """
    keys = sorted(replaced)
    columns = ("queue_number", "transaction_id", "number", "by_transaction", "by_number", "hidden_ms")
    rows = [dict(zip(columns, (queue, *key, *replaced[key], now_ms), strict=True)) for key in keys]
    work.connection.execute(h.insert(), rows)
    blocks = (keys[start : start + _KEYS_AT_ONCE] for start in range(0, len(keys), _KEYS_AT_ONCE))
    of_reader = r.delete().where(r.c.queue_number == queue)
    return sum(work.connection.execute(of_reader.where(_key(r).in_(block))).rowcount for block in blocks)


def restore(work: Work, queue: int, by: Key) -> int:
    """Make the segments that a merged one replaces pending again, and delete it; return how many there are."""
    found = _restore(work, queue, by)
    _delete(work, by)
    return found


def _delete(work: Work, output: Key) -> None:
    for table in (r, d, c, g):  # an output has one reader
        work.connection.execute(table.delete().where(table.c.transaction_id == output[0], table.c.number == output[1]))


def _restore(work: Work, queue: int, by: Key) -> int:
    of = (h.c.queue_number == queue, h.c.by_transaction == by[0], h.c.by_number == by[1])
    # Locking the rows waits for a clean-up that is deleting them; a later clean-up finds them gone.
    found = work.rows(sa.select(h.c.queue_number, h.c.transaction_id, h.c.number).where(*of).with_for_update())
    if found:
        work.connection.execute(r.insert(), found)
    work.connection.execute(h.delete().where(*of))
    return len(found)


def rewritten(work: Reading, queue: int, transaction: int) -> list[Key]:
    """Read which of the segments that a transaction made by rewriting others are pending for the reader."""
    statement = (
        sa.select(r.c.transaction_id, r.c.number)
        .select_from(r.join(c, sa.and_(c.c.transaction_id == r.c.transaction_id, c.c.number == r.c.number)))
        .where(r.c.queue_number == queue, r.c.transaction_id == transaction, c.c.row_entries == 0)
        .order_by(r.c.number)
    )
    return [(int(one), int(number)) for one, number in work.connection.execute(statement)]


def layouts_moved_from(work: Reading, queue: int, transaction: int) -> dict[int, int]:
    """Count by layout the segments that a transaction has replaced by rewriting."""
    statement = (
        sa.select(g.c.layout, sa.func.count())
        .select_from(h.join(g, sa.and_(g.c.transaction_id == h.c.transaction_id, g.c.number == h.c.number)))
        .where(h.c.queue_number == queue, h.c.by_transaction == transaction, h.c.by_number == ALL)
        .group_by(g.c.layout)
    )
    return {int(layout): int(number) for layout, number in work.connection.execute(statement)}


def restore_all(work: Work, queue: int, transaction: int) -> int:
    """Make the segments that a transaction has rewritten pending again, and delete the new ones.

    :returns: how many segments are pending again.
    """
    for output in rewritten(work, queue, transaction):
        _delete(work, output)
    return _restore(work, queue, (transaction, ALL))


def stamp(work: Reading, queue: int) -> tuple[int, int]:
    """Read two numbers that change whenever segments are merged or rewritten for a reader."""
    statement = sa.select(sa.func.count(), sa.func.coalesce(sa.func.max(c.c.transaction_id), 0))
    count, last = work.connection.execute(statement.where(c.c.queue_number == queue)).one()
    return int(count), int(last)


def hidden(work: Reading, queue: int, layout: int) -> list[Mapping[str, Any]]:
    """Read a reader's replaced segments in the order of ids: their columns, what has replaced them, and when."""
    statement = (
        sa.select(g, h.c.by_transaction, h.c.by_number, h.c.hidden_ms)
        .select_from(h.join(g, sa.and_(g.c.transaction_id == h.c.transaction_id, g.c.number == h.c.number)))
        .where(h.c.queue_number == queue, g.c.layout == layout)
        .order_by(h.c.transaction_id, h.c.number)
    )
    return work.rows(statement)


def _named(segment: Key) -> dict[str, int]:
    return {"transaction_id": segment[0], "number": segment[1]}


def _key(table: sa.Table) -> Any:
    return sa.tuple_(table.c.transaction_id, table.c.number)
