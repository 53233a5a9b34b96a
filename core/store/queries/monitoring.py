"""SQL of the figures for monitoring, as in the public views. Queues with subscriptions and states have none."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from export_queue.core.store.database import Reading
from export_queue.core.store.queries import entries, segments
from export_queue.core.store.schema import (
    active,
    comparison,
    dead_letter,
    drain_report,
    entry,
    is_state,
    lock,
    low_watermark,
    queue,
    store,
)
from export_queue.core.store.schema import dead_letter_audit as a

# A real table: a lightweight sa.table() would not be found in the store's schema.
_holders = sa.Table(
    "horizon_holders",
    sa.MetaData(),
    *(sa.Column(name, sa.BigInteger) for name in ("id", "low", "started_ms", "deadline_ms", "session")),
    *(sa.Column(name, sa.Text) for name in ("kind", "client")),
)


_SHOWN = ("id", "kind", "started_ms", "deadline_ms", "client", "session")


@dataclass(frozen=True, slots=True)
class Holder:
    """A transaction in progress, or an invalid id, and the bound that it sets to the horizon."""

    id: int
    kind: str
    low: int
    started_ms: int
    client: str | None


def holders(work: Reading) -> list[Holder]:
    """Read what keeps the horizon from rising, lowest bound first."""
    h = _holders.c
    statement = sa.select(h.id, h.kind, h.low, h.started_ms, h.client).order_by(h.low, h.id)
    return [Holder(*row) for row in work.connection.execute(statement)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionInProgress:
    """A transaction that has neither committed nor ended."""

    id: int
    kind: str
    """``long``; or ``short``, which its program ends, a bound one included."""
    started_ms: int
    deadline_ms: int | None
    """When it can no longer commit; None if only its program knows."""
    client: str | None
    """Who began it, as far as the store knows."""
    session: int | None
    """On PostgreSQL the server process of a short transaction, if an advisory lock registers it."""
    queues: tuple[str, ...] | None
    """The only queues that it may add to; None if it may add to all."""
    loads: str | None
    """The subscription whose first load it is."""
    mirrors: str | None
    """The queue that it mirrors."""
    replays: str | None
    """The queue of which it adds keys once more."""


def transactions_in_progress(work: Reading) -> list[TransactionInProgress]:
    """Read the transactions in progress, oldest first."""
    h, columns = _holders.c, (active.c.queues, active.c.load, active.c.mirrors)
    statement = sa.select(*(h[name] for name in _SHOWN), *columns).select_from(
        _holders.outerjoin(active, active.c.id == h.id)
    )
    rows = work.rows(statement.where(h.kind != "invalid").order_by(h.id))
    q, parent = queue.c, queue.alias()
    named = sa.select(q.number, q.id, parent.c.id).select_from(queue.outerjoin(parent, parent.c.number == q.parent))
    names = {number: (name, above or name) for number, name, above in work.connection.execute(named)} if rows else {}
    nobody = (None, None)

    def found(row: Mapping[str, Any]) -> TransactionInProgress:
        only = row["queues"]
        # of a mirror: the number of a state, and a scope; of a replay: its name, the number of a queue, and its keys
        word, *others = (row["mirrors"] or "").split(" ")
        replays = word == "replay"
        mirrored = names.get(int(others[0] if replays else word), nobody)[1] if word else None
        return TransactionInProgress(
            **{name: row[name] for name in _SHOWN},
            queues=None if only is None else tuple(json.loads(only)),
            loads=names.get(row["load"], nobody)[0],
            mirrors=None if replays else mirrored,
            replays=mirrored if replays else None,
        )

    return [found(row) for row in rows]


def horizon_and_mark(work: Reading) -> tuple[int, int]:
    """Read in milliseconds up to when versions may be deleted, and when clean-up last recorded a low-water mark.

    Where nothing has been cleaned up yet, both are the time at which the store was created.
    """
    newest = sa.select(sa.func.max(low_watermark.c.at_ms)).scalar_subquery()
    horizon, marked_ms, created_ms = work.connection.execute(
        sa.select(store.c.horizon, newest, store.c.created_ms)
    ).one()
    return (horizon // 1_000_000 if horizon else created_ms), created_ms if marked_ms is None else marked_ms


def count_entries(work: Reading) -> list[tuple[str, int, int | None]]:
    """Count each queue's committed entries: queue, entries, lowest seq."""
    live = sa.and_(entry.c.queue_number == queue.c.number, entries.is_committed(entry.c.seq))
    statement = (
        sa.select(queue.c.id, queue.c.number, sa.func.count(entry.c.seq), sa.func.min(entry.c.seq))
        .select_from(queue.outerjoin(entry, live))
        .where(queue.c.fans_out.is_(False), sa.not_(is_state))
        .group_by(queue.c.id, queue.c.number)
        .order_by(queue.c.id)
    )
    in_files = segments.count_by_queue(work)
    found: list[tuple[str, int, int | None]] = []
    for name, number, in_rows, seq in work.connection.execute(statement):
        more, lowest = in_files.get(number, (0, seq))
        found.append((name, int(in_rows) + more, min((one for one in (seq, lowest) if one is not None), default=None)))
    return found


def last_drains(work: Reading) -> dict[str, tuple[int, dict[str, Any] | None]]:
    """Read for each reader when its last drain ended, in milliseconds, with the report.

    For one that was never drained it is the time at which the reader was created, and None.
    """
    return _last_reports(work, drain_report)


def last_comparisons(work: Reading) -> dict[str, tuple[int, dict[str, Any] | None]]:
    """Read for each reader when it was last compared with its sink, as :func:`last_drains` does for drains."""
    return _last_reports(work, comparison)


def _last_reports(work: Reading, report: sa.Table) -> dict[str, tuple[int, dict[str, Any] | None]]:
    any_report = report.alias()
    of_reader = any_report.c.queue == queue.c.id, any_report.c.id > queue.c.number
    newest = sa.select(sa.func.max(any_report.c.id)).where(*of_reader).correlate(queue).scalar_subquery()
    statement = (
        sa.select(queue.c.id, queue.c.created_ms, report.c.finished_ms, report.c.report)
        .select_from(queue.outerjoin(report, report.c.id == newest))
        .where(queue.c.fans_out.is_(False), sa.not_(is_state))
        .order_by(queue.c.id)
    )
    found = work.connection.execute(statement)
    return {
        name: (created_ms, None) if text is None else (finished_ms, orjson.loads(text))
        for name, created_ms, finished_ms, text in found
    }


def missing_loads(work: Reading) -> dict[str, int]:
    """Read for each subscription that is younger than its queue whether its first load is missing: 1 if so."""
    statement = sa.select(queue.c.id, queue.c.first_load).where(queue.c.first_load.is_not(None)).order_by(queue.c.id)
    return {name: int(state == "missing") for name, state in work.connection.execute(statement)}


def count_losses(work: Reading, losses: Collection[str]) -> dict[str, int]:
    """Count for each reader the uncleared acts after which its sink lacks entries.

    The removal of a subscription is such an act of its queue.
    """
    is_open = sa.and_(a.c.queue == queue.c.id, a.c.act.in_(losses), a.c.cleared_ms.is_(None))
    statement = (
        sa.select(queue.c.id, sa.func.count(a.c.id))
        .select_from(queue.outerjoin(a, is_open))
        .where(sa.not_(is_state))
        .group_by(queue.c.id, queue.c.fans_out)
        .having(sa.or_(queue.c.fans_out.is_(False), sa.func.count(a.c.id) > 0))
        .order_by(queue.c.id)
    )
    return {name: int(count) for name, count in work.connection.execute(statement)}


def count_dead_letters(work: Reading) -> dict[str, int]:
    """Count each queue's dead letters."""
    return _count(work, dead_letter, dead_letter.c.queue_number == queue.c.number, dead_letter.c.seq)


def count_locks(work: Reading, *, now: int) -> dict[str, int]:
    """Count each queue's held locks."""
    held = sa.and_(lock.c.queue_number == queue.c.number, lock.c.lease_ms > now, lock.c.revoked.is_(False))
    return _count(work, lock, held, lock.c.fence)


def _count(work: Reading, table: sa.Table, where: sa.ColumnElement[bool], column: sa.Column[int]) -> dict[str, int]:
    statement = (
        sa.select(queue.c.id, sa.func.count(column))
        .select_from(queue.outerjoin(table, where))
        .where(queue.c.fans_out.is_(False), sa.not_(is_state))
        .group_by(queue.c.id)
        .order_by(queue.c.id)
    )
    return {name: int(number) for name, number in work.connection.execute(statement)}
