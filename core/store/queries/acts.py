"""SQL about acts of people that the store records: retries, accepted losses and promises."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.schema import dead_letter_audit as a

Selection = Mapping[str, Any]
"""Which entries an act concerned, and further numbers."""
Spread = tuple[int, int]
"""Two sequences, both included."""
_SPREADS = 1000
"""Maximum number of spreads that are recorded of one act."""


def record(
    work: Work,
    *,
    queue_id: str,
    act: str,
    who: str,
    letters: int = 0,
    selection: Selection,
    number: int | None = None,
    seqs: Sequence[Spread] | None = None,
) -> None:
    """Record an act and its actor.

    :param letters: how many entries it concerned.
    :param number: the record's number, if the caller has drawn it.
    :param seqs: of discarded entries: between which sequences they were.
    """
    row = {"id": work.draw() if number is None else number, "queue": queue_id, "act": act, "who": who}
    row |= {"letters": letters, "selection": orjson.dumps(selection).decode(), "at_ms": work.now()}
    row["seqs"] = None if seqs is None else orjson.dumps(_joined(seqs)).decode()
    work.connection.execute(a.insert().values(row))


def _joined(seqs: Sequence[Spread]) -> list[Spread]:
    """Join spreads that overlap; if too many are left, join all."""
    found: list[Spread] = []
    for low, high in sorted(seqs):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found if len(found) <= _SPREADS else [(found[0][0], max(high for _, high in found))]


def since(work: Reading, queue_id: str, acts: Collection[str], number: int) -> list[Mapping[str, Any]]:
    """Read the acts of some kinds on a queue after an id, cleared or not, oldest first."""
    return work.rows(sa.select(a).where(a.c.queue == queue_id, a.c.act.in_(acts), a.c.id > number).order_by(a.c.id))


def select(work: Reading, queue_id: str, *, limit: int) -> list[Mapping[str, Any]]:
    """Read the acts on a queue, newest first."""
    return work.rows(sa.select(a).where(a.c.queue == queue_id).order_by(a.c.id.desc()).limit(limit))


def open_marks(work: Reading, acts: Collection[str], *, queue_id: str) -> list[Mapping[str, Any]]:
    """Read the uncleared acts of some kinds on a queue, oldest first."""
    uncleared = sa.select(a).where(a.c.queue == queue_id, a.c.act.in_(acts), a.c.cleared_ms.is_(None))
    return work.rows(uncleared.order_by(a.c.id))


def clear_marks(work: Work, numbers: Collection[int], *, by: str) -> None:
    """Record what has made up for acts."""
    if numbers:
        work.connection.execute(a.update().where(a.c.id.in_(numbers)).values(cleared_ms=work.now(), cleared_by=by))


def forget(work: Work, number: int) -> None:
    """Delete the record of an act that did not happen."""
    work.connection.execute(a.delete().where(a.c.id == number))


def count_retries(work: Reading, queue_id: str) -> tuple[int, int]:
    """Count the retries of a queue's dead letters; return their number and the id of the last one."""
    statement = sa.select(sa.func.count(), sa.func.coalesce(sa.func.max(a.c.id), 0))
    count, last = work.connection.execute(statement.where(a.c.queue == queue_id, a.c.act == "retry")).one()
    return int(count), int(last)


def count(work: Reading, queue_id: str, acts: Collection[str]) -> int:
    """Count the acts of some kinds on a queue."""
    counted = sa.select(sa.func.count()).select_from(a).where(a.c.queue == queue_id, a.c.act.in_(acts))
    return int(work.connection.scalar(counted) or 0)


def delete_old(work: Work, keep: Collection[str], *, before_ms: int, limit: int) -> int:
    """Delete acts before a time, which their ids contain. Acts of the kinds in ``keep`` stay until they are cleared."""
    is_open = sa.and_(a.c.act.in_(keep), a.c.cleared_ms.is_(None))
    old = sa.select(a.c.id).where(a.c.id < before_ms * 1_000_000, sa.not_(is_open)).order_by(a.c.id).limit(limit)
    return work.connection.execute(a.delete().where(a.c.id.in_(old))).rowcount
