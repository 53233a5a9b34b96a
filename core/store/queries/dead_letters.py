"""SQL about dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.schema import compacted as c
from export_queue.core.store.schema import dead_letter as d
from export_queue.core.store.schema import entry as e
from export_queue.core.store.schema import segment as g

_BLOCK = 300
"""Letters that one statement names: 2 parameters each, well below SQLite's limit."""

Selection = Mapping[str, Any]
"""Values of columns that a selected letter has."""

_POSITION = ("queue_number", "layout", "bucket", "key", "seq")
_order = sa.tuple_(d.c.seq, d.c.key)
_everything_but_the_value = [column for column in d.c if column.name != "value"]


def insert_dead(work: Work, rows: Sequence[Mapping[str, Any]], *, coalesces: bool) -> int:
    """Store entries as dead letters and return how many are new; an existing letter keeps its first reason.

    :param coalesces: whether a compaction may have kept these entries in place of older ones.
    """
    if not rows:
        return 0
    number = rows[0]["queue_number"]
    known: set[tuple[int, bytes]] = set()
    for block in _blocks([(row["seq"], row["key"]) for row in rows]):
        stored = sa.select(d.c.seq, d.c.key).where(d.c.queue_number == number, _order.in_(block))
        known |= {(seq, bytes(key)) for seq, key in work.connection.execute(stored)}
    now = work.now()
    fresh = [
        dict(row, dead_since_ms=now, covers=_covers_of(work, row) if coalesces else None)
        for row in rows
        if (row["seq"], row["key"]) not in known
    ]
    if fresh:
        work.connection.execute(d.insert(), fresh)
    return len(fresh)


def _covers_of(work: Work, row: Mapping[str, Any]) -> int | None:
    """Find the lowest sequence that an entry may stand for, if it comes from the files of a compaction."""
    merged = c.join(g, sa.and_(g.c.transaction_id == c.c.transaction_id, g.c.number == c.c.number))
    seq, bucket = row["seq"], row["bucket"]
    lowest = sa.select(sa.func.min(g.c.lowest_seq)).select_from(merged)
    found = work.connection.scalar(
        lowest.where(
            c.c.queue_number == row["queue_number"],
            g.c.layout == row["layout"],
            g.c.first_bucket <= bucket,
            g.c.end_bucket > bucket,
            g.c.lowest_seq < seq,
            g.c.highest_seq >= seq,
        )
    )
    again = sa.select(e.c.covers).where(*(e.c[name] == row[name] for name in _POSITION))
    retried = work.connection.scalar(again)
    return min((one for one in (found, retried) if one is not None), default=None)


def spreads(work: Reading, queue: int, letters: Sequence[tuple[int, bytes]]) -> list[tuple[int, int]]:
    """Read between which sequences the entries are for which dead letters stand."""
    return [
        (int(covers or seq), int(seq))
        for block in _blocks(letters)
        for seq, covers in work.connection.execute(
            sa.select(d.c.seq, d.c.covers).where(d.c.queue_number == queue, _order.in_(block))
        )
    ]


def select_dead(
    work: Reading, queue: int, selection: Selection, *, after: tuple[int, bytes] | None, limit: int, values: bool
) -> list[Mapping[str, Any]]:
    """Read dead letters after a seq and key, oldest entries first, with the length of each value.

    :param values: whether the values themselves are read.
    """
    columns = [*d.c] if values else _everything_but_the_value
    statement = sa.select(*columns, sa.func.length(d.c.value).label("value_bytes")).where(*_meant(queue, selection))
    if after is not None:
        statement = statement.where(_order > sa.tuple_(sa.literal(after[0], sa.BigInteger), sa.literal(after[1])))
    return work.rows(statement.order_by(d.c.seq, d.c.key).limit(limit))


def count_dead(work: Reading, queue: int, selection: Selection, *, most: int | None = None) -> int:
    """Count dead letters, at most a number of them."""
    found = sa.select(d.c.seq).where(*_meant(queue, selection)).limit(most).subquery()
    return int(work.connection.execute(sa.select(sa.func.count()).select_from(found)).scalar_one())


def count_with_oldest(
    work: Reading, queue: int, units: Sequence[tuple[int, int, int]]
) -> tuple[int, Mapping[str, Any] | None]:
    """Count the dead letters of a queue, and read class and reason of the oldest.

    :param units: layout, first bucket and end; letters elsewhere in these layouts do not count. If it is
        empty, all letters count.
    """
    meant = [d.c.queue_number == queue]
    if units:
        inside = [sa.and_(d.c.layout == layout, d.c.bucket >= first, d.c.bucket < end) for layout, first, end in units]
        meant.append(sa.or_(d.c.layout.not_in({layout for layout, _, _ in units}), *inside))
    left = int(work.connection.execute(sa.select(sa.func.count()).select_from(d).where(*meant)).scalar_one())
    if not left:
        return 0, None
    oldest = sa.select(d.c.error_class, d.c.reason).where(*meant).order_by(d.c.seq, d.c.key).limit(1)
    return left, next(iter(work.rows(oldest)), None)


def requeue_dead(work: Work, queue: int, letters: Sequence[tuple[int, bytes]]) -> int:
    """Turn dead letters back into entries with their own seqs; return how many of the letters still existed."""
    moved = 0
    names = [column.name for column in e.c]
    for block in _blocks(letters):
        # Locked first, so that a letter which is dropped at this moment is not restored.
        locked = sa.select(d.c.seq, d.c.key).where(d.c.queue_number == queue, _order.in_(block)).with_for_update()
        found = [(seq, bytes(key)) for seq, key in work.connection.execute(locked)]
        if found:
            these = sa.and_(d.c.queue_number == queue, _order.in_(found))
            copied = sa.select(*(d.c[name] for name in names)).where(these)
            work.connection.execute(e.insert().from_select(names, copied))
            work.connection.execute(d.delete().where(these))
            moved += len(found)
    return moved


def delete_dead(work: Work, queue: int, letters: Sequence[tuple[int, bytes]]) -> int:
    """Delete dead letters; return how many of them still existed."""
    return sum(
        work.connection.execute(d.delete().where(d.c.queue_number == queue, _order.in_(block))).rowcount
        for block in _blocks(letters)
    )


def _meant(queue: int, selection: Selection) -> list[sa.ColumnElement[bool]]:
    meant = [d.c[name] == value for name, value in selection.items() if name != "until_ms"]
    if "until_ms" in selection:
        meant.append(d.c.dead_since_ms <= selection["until_ms"])
    return [d.c.queue_number == queue, *meant]


def _blocks(letters: Sequence[tuple[int, bytes]]) -> list[Sequence[tuple[int, bytes]]]:
    return [letters[start : start + _BLOCK] for start in range(0, len(letters), _BLOCK)]
