"""SQL about reports of drains and comparisons, the tallies of drains' tasks, and idempotency keys of work.

A tally counts what a task of a drain has removed. It is stored with the commits that removed it, as the result of work
under an idempotency key. The tallies of a killed drain, which does not delete them, are deleted by age.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.portable import insert_into
from export_queue.core.store.schema import comparison as c
from export_queue.core.store.schema import drain_report as r
from export_queue.core.store.schema import idempotency as t
from export_queue.core.store.schema import queue as q

_PER_MS = 1_000_000
"""Ids in a millisecond."""
_TALLY = "export_queue.drain/"


def save_report(work: Work, report: Mapping[str, Any], *, number: int, drain_id: str, queue_id: str) -> None:
    """Store a drain's report, unless one is stored under its number."""
    row = {"id": number, "drain_id": drain_id, "queue": queue_id, "finished_ms": work.now()}
    row |= {"idle": not report["read"] and report["problem"] is None, "report": orjson.dumps(report).decode()}
    work.connection.execute(insert_into(work, r).values(row).on_conflict_do_nothing())


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
    return [orjson.loads(text) for text in work.connection.scalars(statement)]


def count_acknowledged(work: Reading, queue_id: str, *, before_ms: int | None = None) -> int:
    """Sum up what a queue's drains have delivered according to the stored reports, optionally before a time."""
    statement = sa.select(r.c.report).where(*_of_queue(queue_id), r.c.idle.is_(False))
    if before_ms is not None:
        statement = statement.where(r.c.finished_ms < before_ms)
    return sum(orjson.loads(text)["acknowledged"] for text in work.connection.scalars(statement))


def _of_queue(queue_id: str, reports: sa.Table = r) -> list[sa.ColumnElement[bool]]:
    """Leave out reports of a removed namesake, whose numbers are lower than that of the queue."""
    number = sa.select(q.c.number).where(q.c.id == queue_id).scalar_subquery()
    return [reports.c.queue == queue_id, reports.c.id > sa.func.coalesce(number, 0)]


def latest_reports(work: Reading, queue_id: str | None, *, idle: bool, limit: int) -> list[tuple[int, dict[str, Any]]]:
    """Read reports, newest first, each with the time at which it was stored, in milliseconds.

    :param queue_id: the queue whose reports to read; None for all queues.
    :param idle: whether to include reports of drains that found nothing.
    """
    statement = sa.select(r.c.finished_ms, r.c.report)
    if queue_id is not None:
        statement = statement.where(*_of_queue(queue_id))
    if not idle:
        statement = statement.where(r.c.idle.is_(False))
    found = work.connection.execute(statement.order_by(r.c.id.desc()).limit(limit))
    return [(finished_ms, orjson.loads(text)) for finished_ms, text in found]


def save_comparison(work: Work, report: Mapping[str, Any], *, number: int, queue_id: str) -> None:
    """Store the report of a comparison under its number."""
    row = {"id": number, "queue": queue_id, "finished_ms": work.now(), "report": orjson.dumps(report).decode()}
    work.connection.execute(c.insert().values(row))


def latest_comparisons(work: Reading, queue_id: str | None, *, limit: int) -> list[tuple[int, dict[str, Any]]]:
    """Read reports of comparisons, newest first, each with the time at which it was stored, in milliseconds."""
    statement = sa.select(c.c.finished_ms, c.c.report).order_by(c.c.id.desc()).limit(limit)
    if queue_id is not None:
        statement = statement.where(*_of_queue(queue_id, c))
    return [(finished_ms, orjson.loads(text)) for finished_ms, text in work.connection.execute(statement)]


def delete_comparisons(work: Work, *, before_ms: int, limit: int) -> int:
    """Delete reports of comparisons that were stored before a time."""
    doomed = sa.select(c.c.id).where(c.c.id < before_ms * _PER_MS).order_by(c.c.id).limit(limit)
    return work.connection.execute(c.delete().where(c.c.id.in_(doomed))).rowcount


def sinks_of_namesakes(work: Reading, queue_id: str, number: int, *, limit: int) -> set[str]:
    """Read the sinks into which removed namesakes of a queue drained last; empty once the queue has drained entries.

    :param number: the queue's number, from which on reports are its own.
    :param limit: the number of newest reports that are read.
    """
    busy = sa.select(r.c.id, r.c.report).where(r.c.queue == queue_id, r.c.idle.is_(False))
    found = work.connection.execute(busy.order_by(r.c.id.desc()).limit(limit)).all()
    if found and found[0].id > number:
        return set()
    return {orjson.loads(report)["sink"] for _, report in found}


def save_tally(work: Work, name: str, number: int, counts: Mapping[str, Any], *, now_ms: int) -> None:
    """Store what one task of a drain has counted so far, in place of its earlier counts."""
    text = orjson.dumps(counts).decode()
    row = {"idempotency_key": _TALLY + name, "generation": number, "id": 0, "result": text}
    statement = insert_into(work, t).values(**row, committed_ms=now_ms, closed_ms=now_ms)
    work.connection.execute(
        statement.on_conflict_do_update(index_elements=[t.c.idempotency_key, t.c.generation], set_={"result": text})
    )


def find_tallies(work: Reading, name: str, number: int | None = None) -> list[dict[str, Any]]:
    """Read the tallies of a drain's tasks, or of one of them."""
    statement = sa.select(t.c.result).where(t.c.idempotency_key == _TALLY + name)
    if number is not None:
        statement = statement.where(t.c.generation == number)
    return [orjson.loads(text) for text in work.connection.scalars(statement)]


def delete_tallies(work: Work, name: str) -> None:
    """Delete the tallies of a drain."""
    work.connection.execute(t.delete().where(t.c.idempotency_key == _TALLY + name))


def is_tally(name: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Build the condition that an idempotency key is that of a tally."""
    return name.startswith(_TALLY, autoescape=True)


def latest_idempotency(work: Reading, idempotency_key: str) -> Mapping[str, Any] | None:
    """Read the newest generation of an idempotency key."""
    statement = sa.select(t).where(t.c.idempotency_key == idempotency_key).order_by(t.c.generation.desc()).limit(1)
    return next(iter(work.rows(statement)), None)


def idempotency_result(work: Reading, idempotency_key: str, generation: int) -> str | None:
    """Read the result, as JSON, that was stored with the commit of one generation of an idempotency key."""
    statement = sa.select(t.c.result).where(t.c.idempotency_key == idempotency_key, t.c.generation == generation)
    return work.connection.scalar(statement)


def close_idempotency_key(work: Work, idempotency_key: str, generation: int | None) -> bool:
    """Close a generation of an idempotency key, so that the same work may run again; False if none was open."""
    closed = t.update().where(t.c.idempotency_key == idempotency_key, t.c.closed_ms.is_(None))
    if generation is not None:
        closed = closed.where(t.c.generation == generation)
    return work.connection.execute(closed.values(closed_ms=work.now())).rowcount > 0
