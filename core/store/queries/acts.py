"""SQL about what people did that the store remembers: retries, losses that were accepted, and promises."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson
import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.schema import dead_letter_audit as a


def record(
    work: Work,
    *,
    queue_id: str,
    act: str,
    who: str,
    letters: int = 0,
    selection: Mapping[str, Any],
    number: int | None = None,
) -> None:
    """Keep a record of one act, and of its actor.

    :param letters: how many entries it was about.
    :param selection: which, and further numbers.
    :param number: the record's, where the caller has drawn it.
    """
    work.connection.execute(
        a.insert().values(
            id=work.database.dialect.steps.draw(work.connection) if number is None else number,
            queue=queue_id,
            act=act,
            who=who,
            letters=letters,
            selection=orjson.dumps(selection).decode(),
            at_ms=work.now(),
        )
    )


def select(work: Reading, queue_id: str, *, limit: int) -> list[Mapping[str, Any]]:
    """Read the acts on a queue, newest first."""
    statement = sa.select(a).where(a.c.queue == queue_id).order_by(a.c.id.desc()).limit(limit)
    return [dict(row) for row in work.connection.execute(statement).mappings()]


def open_marks(work: Reading, acts: Collection[str], *, queue_id: str) -> list[Mapping[str, Any]]:
    """Read the acts of some kinds on a queue that nothing has made good yet, oldest first."""
    chosen = (a.c.queue == queue_id, a.c.act.in_(acts), a.c.cleared_ms.is_(None))
    statement = sa.select(a).where(*chosen).order_by(a.c.id)
    return [dict(row) for row in work.connection.execute(statement).mappings()]


def clear_marks(work: Work, numbers: Collection[int], *, by: str) -> None:
    """Note that acts were made good, and by what."""
    if numbers:
        work.connection.execute(
            a.update().where(a.c.id.in_(numbers)).values(cleared_ms=work.now(), cleared_by=by),
        )


def forget(work: Work, number: int) -> None:
    """Take the record of an act back that did not happen."""
    work.connection.execute(a.delete().where(a.c.id == number))


def count_retries(work: Reading, queue_id: str) -> tuple[int, int]:
    """Count the retries of a queue's dead letters; returns their number and the id of the last one."""
    statement = sa.select(sa.func.count(), sa.func.coalesce(sa.func.max(a.c.id), 0))
    count, last = work.connection.execute(statement.where(a.c.queue == queue_id, a.c.act == "retry")).one()
    return int(count), int(last)


def delete_old(work: Work, keep: Collection[str], *, before_ms: int, limit: int) -> int:
    """Delete the records of acts before a time, which their ids carry; some kinds stay until they are made good."""
    is_open = sa.and_(a.c.act.in_(keep), a.c.cleared_ms.is_(None))
    old = sa.select(a.c.id).where(a.c.id < before_ms * 1_000_000, sa.not_(is_open)).order_by(a.c.id).limit(limit)
    return work.connection.execute(a.delete().where(a.c.id.in_(old))).rowcount
