"""SQL about dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.schema import dead_letter as d
from export_queue.core.store.schema import entry as e

_BLOCK = 300
"""Letters that one statement names: 2 parameters each, well below SQLite's limit."""

Selection = Mapping[str, Any]
"""Values of columns that a selected letter has."""

_order = sa.tuple_(d.c.seq, d.c.key)
_everything_but_the_value = [column for column in d.c if column.name != "value"]


def insert_dead(work: Work, rows: Sequence[Mapping[str, Any]]) -> int:
    """Store entries as dead letters and return how many are new; an existing letter keeps its first reason."""
    if not rows:
        return 0
    number = rows[0]["queue_number"]
    known: set[tuple[int, bytes]] = set()
    for block in _blocks([(row["seq"], row["key"]) for row in rows]):
        stored = sa.select(d.c.seq, d.c.key).where(d.c.queue_number == number, _order.in_(block))
        known |= {(seq, bytes(key)) for seq, key in work.connection.execute(stored)}
    now = work.now()
    fresh = [dict(row, dead_since_ms=now) for row in rows if (row["seq"], row["key"]) not in known]
    if fresh:
        work.connection.execute(d.insert(), fresh)
    return len(fresh)


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


def count_dead(work: Reading, queue: int, selection: Selection) -> int:
    """Count dead letters."""
    statement = sa.select(sa.func.count()).select_from(d).where(*_meant(queue, selection))
    return int(work.connection.execute(statement).scalar_one())


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
    return [d.c.queue_number == queue, *(d.c[name] == value for name, value in selection.items())]


def _blocks(letters: Sequence[tuple[int, bytes]]) -> list[Sequence[tuple[int, bytes]]]:
    return [letters[start : start + _BLOCK] for start in range(0, len(letters), _BLOCK)]
