"""SQL about dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.schema import dead_letter as d
from export_queue.core.store.schema import entry as e

_BLOCK = 300
"""Letters per statement where they are named one by one: 2 parameters each, well below SQLite's limit."""

Selection = Mapping[str, Any]
"""Column and value; a letter is meant if all of them are its own."""

_order = sa.tuple_(d.c.seq, d.c.key)
_everything_but_the_value = [column for column in d.c if column.name != "value"]


def insert_dead(work: Work, rows: Sequence[Mapping[str, Any]]) -> int:
    """Keep entries as dead letters; a letter that is there already keeps its first reason.

    :returns: how many were not there.
    """
    if not rows:
        return 0
    keys = sa.tuple_(d.c.key, d.c.seq)
    number = rows[0]["queue_number"]
    wanted = [(row["key"], row["seq"]) for row in rows]
    there: set[tuple[bytes, int]] = set()
    for start in range(0, len(wanted), _BLOCK):
        block = wanted[start : start + _BLOCK]
        found = work.connection.execute(sa.select(d.c.key, d.c.seq).where(d.c.queue_number == number, keys.in_(block)))
        there |= {(bytes(key), seq) for key, seq in found}
    now = work.now()
    fresh = [dict(row, dead_since_ms=now) for row in rows if (row["key"], row["seq"]) not in there]
    if fresh:
        work.connection.execute(d.insert(), fresh)
    return len(fresh)


def select_dead(
    work: Reading,
    queue: int,
    selection: Selection,
    *,
    after: tuple[int, bytes] | None = None,
    limit: int,
    values: bool,
) -> list[Mapping[str, Any]]:
    """Read dead letters, oldest entries first, from after a seq and key on; the length of a value always."""
    columns = [*d.c] if values else _everything_but_the_value
    statement = sa.select(*columns, sa.func.length(d.c.value).label("value_bytes")).where(*_meant(queue, selection))
    if after is not None:
        statement = statement.where(_order > sa.tuple_(sa.literal(after[0], sa.BigInteger), sa.literal(after[1])))
    statement = statement.order_by(d.c.seq, d.c.key).limit(limit)
    return [dict(row) for row in work.connection.execute(statement).mappings()]


def count_dead(work: Reading, queue: int, selection: Selection) -> int:
    """Count dead letters."""
    statement = sa.select(sa.func.count()).select_from(d).where(*_meant(queue, selection))
    return int(work.connection.execute(statement).scalar_one())


def requeue_dead(work: Work, queue: int, letters: Sequence[tuple[int, bytes]]) -> int:
    """Make entries of dead letters again, each with its own seq; returns how many were still there."""
    moved = 0
    names = [column.name for column in e.c]
    for block in _blocks(letters):
        # locked first: a letter that is dropped at this moment is not put back
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
    """Delete dead letters; returns how many were still there."""
    return sum(
        work.connection.execute(d.delete().where(d.c.queue_number == queue, _order.in_(block))).rowcount
        for block in _blocks(letters)
    )


def _meant(queue: int, selection: Selection) -> list[sa.ColumnElement[bool]]:
    return [d.c.queue_number == queue, *(d.c[name] == value for name, value in selection.items())]


def _blocks(letters: Sequence[tuple[int, bytes]]) -> list[Sequence[tuple[int, bytes]]]:
    return [letters[start : start + _BLOCK] for start in range(0, len(letters), _BLOCK)]
