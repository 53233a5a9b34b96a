"""SQL about reports of drains and idempotency keys of work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.queries.inserts import insert_into
from export_queue.core.store.schema import drain_report as r
from export_queue.core.store.schema import idempotency as t
from export_queue.core.store.schema import queue as q

_PER_MS = 1_000_000
"""Ids in a millisecond."""


def save_report(work: Work, report: Mapping[str, Any], *, number: int, drain_id: str, queue_id: str) -> None:
    """Keep a drain's report under its id; does nothing if one is there under its number."""
    work.connection.execute(
        insert_into(work, r)
        .values(
            id=number,
            drain_id=drain_id,
            queue=queue_id,
            finished_ms=work.now(),
            idle=not report["read"] and report["problem"] is None,
            report=orjson.dumps(report).decode(),
        )
        .on_conflict_do_nothing()
    )


def delete_reports(work: Work, *, before_ms: int, idle_before_ms: int, limit: int) -> int:
    """Delete reports that were stored before a time, and idle ones that were stored before another time."""
    old = sa.or_(r.c.id < before_ms * _PER_MS, sa.and_(r.c.id < idle_before_ms * _PER_MS, r.c.idle))
    doomed = sa.select(r.c.id).where(old).order_by(r.c.id).limit(limit)
    return work.connection.execute(r.delete().where(r.c.id.in_(doomed))).rowcount


def find_reports(
    work: Reading, *, drain_id: str | None = None, queue_id: str | None = None, limit: int = 100
) -> list[dict[str, Any]]:
    """Read reports, newest first."""
    statement = sa.select(r.c.report).order_by(r.c.id.desc()).limit(limit)
    if drain_id is not None:
        statement = statement.where(r.c.drain_id == drain_id)
    if queue_id is not None:
        statement = statement.where(*_of_queue(queue_id))
    return [orjson.loads(text) for text in work.connection.execute(statement).scalars()]


def count_acknowledged(work: Reading, queue_id: str, *, before_ms: int | None = None) -> int:
    """Add up what a queue's drains have delivered, as far as their reports are kept; perhaps before a time only."""
    statement = sa.select(r.c.report).where(*_of_queue(queue_id), r.c.idle.is_(False))
    if before_ms is not None:
        statement = statement.where(r.c.finished_ms < before_ms)
    return sum(orjson.loads(text)["acknowledged"] for text in work.connection.execute(statement).scalars())


def _of_queue(queue_id: str) -> list[sa.ColumnElement[bool]]:
    """Leave out those of a removed namesake: the numbers of queues and of reports come from one source of ids."""
    number = sa.select(q.c.number).where(q.c.id == queue_id).scalar_subquery()
    return [r.c.queue == queue_id, r.c.id > sa.func.coalesce(number, 0)]


def latest_reports(work: Reading, queue_id: str, *, idle: bool, limit: int) -> list[tuple[int, dict[str, Any]]]:
    """Read a queue's reports, newest first, each with the time at which it was stored, in milliseconds.

    :param idle: whether those of drains that found nothing count.
    """
    statement = sa.select(r.c.finished_ms, r.c.report).where(*_of_queue(queue_id))
    if not idle:
        statement = statement.where(r.c.idle.is_(False))
    found = work.connection.execute(statement.order_by(r.c.id.desc()).limit(limit))
    return [(finished_ms, orjson.loads(text)) for finished_ms, text in found]


def sinks_of_namesakes(work: Reading, queue_id: str, number: int, *, limit: int) -> set[str]:
    """Name the sinks that removed namesakes of a queue drained into last; none once it has drained entries itself.

    :param number: the queue's, from which on reports are its own.
    :param limit: how many of the newest reports are looked at.
    """
    busy = sa.select(r.c.id, r.c.report).where(r.c.queue == queue_id, r.c.idle.is_(False))
    found = work.connection.execute(busy.order_by(r.c.id.desc()).limit(limit)).all()
    if found and found[0].id > number:
        return set()
    return {orjson.loads(report)["sink"] for _, report in found}


def latest_idempotency(work: Reading, idempotency_key: str) -> Mapping[str, Any] | None:
    """Read the newest generation of an idempotency key."""
    statement = sa.select(t).where(t.c.idempotency_key == idempotency_key).order_by(t.c.generation.desc()).limit(1)
    row = work.connection.execute(statement).mappings().first()
    return dict(row) if row else None


def idempotency_result(work: Reading, idempotency_key: str, generation: int) -> str | None:
    """Read the result, as JSON, that was stored with the commit of one generation of an idempotency key."""
    statement = sa.select(t.c.result).where(t.c.idempotency_key == idempotency_key, t.c.generation == generation)
    result: str | None = work.connection.execute(statement).scalar()
    return result


def close_idempotency_key(work: Work, idempotency_key: str, generation: int | None) -> bool:
    """End an idempotency key's generation, so that the same work may take effect anew; False if it was not open."""
    statement = (
        t.update().where(t.c.idempotency_key == idempotency_key, t.c.closed_ms.is_(None)).values(closed_ms=work.now())
    )
    if generation is not None:
        statement = statement.where(t.c.generation == generation)
    return work.connection.execute(statement).rowcount > 0
