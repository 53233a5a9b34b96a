"""SQL about tallies: what a drain's tasks have removed, counted by the SQL transactions that removed it.

A tally is the result of a piece of work, stored with the commit of that work: it has its place among those of other
idempotent work, under a name of its own. If nobody takes it away, since its drain was killed, it is forgotten by age.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.queries.inserts import insert_into
from export_queue.core.store.schema import idempotency as t

_PREFIX = "export_queue.drain/"


def is_tally(name: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Tell tallies from the results of others' work, by their names."""
    return name.startswith(_PREFIX, autoescape=True)


def save_tally(work: Work, name: str, number: int, counts: Mapping[str, Any], *, now_ms: int) -> None:
    """Keep what one task has counted so far, in the place of what it had counted before.

    :param name: the drain's.
    :param number: the task's.
    """
    text = orjson.dumps(counts).decode()
    row = {
        "idempotency_key": _PREFIX + name,
        "generation": number,
        "id": 0,
        "committed_ms": now_ms,
        "closed_ms": now_ms,
    }
    statement = insert_into(work, t).values(**row, result=text)
    work.connection.execute(
        statement.on_conflict_do_update(index_elements=[t.c.idempotency_key, t.c.generation], set_={"result": text})
    )


def find_tallies(work: Reading, name: str, number: int | None = None) -> list[dict[str, Any]]:
    """Read the tallies of a drain's tasks, or of one of them."""
    statement = sa.select(t.c.result).where(t.c.idempotency_key == _PREFIX + name)
    if number is not None:
        statement = statement.where(t.c.generation == number)
    return [orjson.loads(text) for text in work.connection.execute(statement).scalars()]


def delete_tallies(work: Work, name: str) -> None:
    """Take the tallies of a drain away."""
    work.connection.execute(t.delete().where(t.c.idempotency_key == _PREFIX + name))
