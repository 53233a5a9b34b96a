"""SQL of clean-up: its progress, the horizon, and the rows that may be deleted below it.

Below the horizon nothing is in progress and nothing is invalid. Every version there is committed, and every snapshot
that may still read sees all of them. Reads and commits check the horizon, see the dialects. It is raised before
anything is deleted, so no reader sees a deletion without the new horizon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from export_queue.core.store.database import Database, Reading, Work
from export_queue.core.store.portable import insert_into, prefix_of, schema_of
from export_queue.core.store.queries.reports import is_tally
from export_queue.core.store.queries.segments import lowest_seq
from export_queue.core.store.schema import (
    active,
    cleanup,
    dead_letter,
    entry,
    idempotency,
    invalid,
    is_state,
    low_watermark,
    queue,
    store,
)
from export_queue.core.store.schema import table as t

_DEAD_ROWS = """
    select c.relname, c.reltuples, pg_stat_get_dead_tuples(c.oid)
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = :schema and c.relkind = 'r' and c.relname like 'xq!_%' escape '!' order by c.relname
"""
_AHEAD_MS = 3_600_000
"""Ids further ahead of the clock were drawn while the clock was wrong."""
TURN = "turn"
"""The row that the process which cleans up has locked."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one subject."""

    reached: int
    place: bytes | None


def add_subjects(work: Work, subjects: Sequence[str]) -> None:
    """Add the missing rows of the turn and of subjects."""
    known = set(work.connection.scalars(sa.select(cleanup.c.subject)))
    for subject in sorted({TURN, *subjects} - known):
        work.connection.execute(insert_into(work, cleanup).values(subject=subject, reached=0).on_conflict_do_nothing())


def take_turn(work: Work) -> bool:
    """Make this the one SQL transaction that cleans up; return False if another one does.

    Two at once could deadlock, since they do not always lock rows in the same order.
    """
    mine = sa.select(cleanup.c.subject).where(cleanup.c.subject == TURN).with_for_update(skip_locked=True)
    return work.connection.execute(mine).first() is not None


def progress(work: Work, subject: str) -> Progress:
    """Read the progress of a subject."""
    statement = sa.select(cleanup.c.reached, cleanup.c.place).where(cleanup.c.subject == subject)
    return Progress(*work.connection.execute(statement).one())


def save_progress(work: Work, subject: str, state: Progress) -> None:
    """Store the progress of a subject."""
    mine = cleanup.update().where(cleanup.c.subject == subject)
    work.connection.execute(mine.values(reached=state.reached, place=state.place))


def horizon(work: Reading) -> int:
    """Read the horizon."""
    return int(work.connection.execute(sa.select(store.c.horizon)).scalar_one())


def expiry_ms(work: Reading) -> int:
    """Read the time, in milliseconds, by which clean-up has judged the ages of deleted cells."""
    return int(work.connection.execute(sa.select(store.c.expiry_ms)).scalar_one())


def last_watermark(work: Reading) -> int | None:
    """Read when the last low-water mark was recorded, in milliseconds."""
    return work.connection.execute(sa.select(sa.func.max(low_watermark.c.at_ms))).scalar()


def add_watermark(work: Work, low: int) -> None:
    """Record the smallest id that a snapshot taken before this call did not see.

    Marks of the future are deleted: they were recorded while the clock was wrong, and would confirm that time.
    """
    now = work.now()
    work.connection.execute(low_watermark.delete().where(low_watermark.c.at_ms > now))
    statement = insert_into(work, low_watermark).values(at_ms=now, low=low)
    # If two are recorded in one millisecond, either is right.
    work.connection.execute(statement.on_conflict_do_update(index_elements=[low_watermark.c.at_ms], set_={"low": low}))


def settled_time(work: Reading, *, gap_ms: int) -> int | None:
    """Find the time of the newest mark that is at least ``gap_ms`` old, in milliseconds; None if there is none.

    What was old at that time is old according to two readings of the clock.
    """
    mark = low_watermark.c.at_ms
    return work.connection.execute(sa.select(sa.func.max(mark)).where(mark <= work.now() - gap_ms)).scalar()


def raise_horizon(work: Work, *, before_ms: int) -> int:
    """Raise the horizon to the lowest id that a live snapshot may need, and return it.

    The time from which ages count is raised too. It also stays behind the clock, since ids may be far ahead of it.

    :param before_ms: younger marks are ignored, since a transaction without an active row may have read since then.
    """
    old = low_watermark.c.at_ms <= before_ms
    bounds = work.connection.execute(
        sa.select(
            sa.select(sa.func.max(low_watermark.c.low)).where(old).scalar_subquery(),
            sa.select(sa.func.min(active.c.low)).scalar_subquery(),
            sa.select(sa.func.min(invalid.c.id)).scalar_subquery(),
        )
    ).one()
    if bounds[0] is not None:
        highest = min(bound for bound in bounds if bound is not None)
        work.connection.execute(store.update().where(store.c.horizon < highest).values(horizon=highest))
        started = work.connection.execute(sa.select(sa.func.min(active.c.started_ms))).scalar()
        expiry = min(highest // 1_000_000, before_ms, *([] if started is None else [started]))
        work.connection.execute(store.update().where(store.c.expiry_ms < expiry).values(expiry_ms=expiry))
        newest_old = sa.select(sa.func.max(low_watermark.c.at_ms)).where(old).scalar_subquery()
        work.connection.execute(low_watermark.delete().where(low_watermark.c.at_ms < newest_old))
    return horizon(work)


def tables_without_keys(work: Work) -> list[tuple[int, int | None]]:
    """Read the tables whose cells have no conflict keys, or expire: number, time to live in milliseconds."""
    wanted = sa.or_(t.c.conflict == "none", t.c.ttl_ms.is_not(None))
    statement = sa.select(t.c.number, t.c.ttl_ms).where(wanted).order_by(t.c.number)
    return [(number, ttl_ms) for number, ttl_ms in work.connection.execute(statement)]


def lowest_pending(work: Reading) -> tuple[int | None, int | None]:
    """Find the lowest seq of all pending entries of all queues, including staged rows, and of all dead letters.

    Both come from one statement, hence of one moment: an entry may become a letter, or a letter an entry again.
    """
    drained = entry.c.queue_number.not_in(sa.select(queue.c.number).where(is_state))
    entries = sa.select(sa.func.min(entry.c.seq)).where(drained).scalar_subquery()
    letters = sa.select(sa.func.min(dead_letter.c.seq)).scalar_subquery()
    found = work.connection.execute(sa.select(entries, lowest_seq(), letters)).one()
    return min((seq for seq in found[:2] if seq is not None), default=None), found[2]


def delete_idempotency_keys(work: Work, *, before_ms: int, tallies_before_ms: int, limit: int) -> int:
    """Delete idempotency keys that were committed before a time, and tallies that were begun before another one.

    The id must be old as well, since ids never go back with the clock. Ids far ahead of the clock do not count.
    """
    oldest = sa.case((is_tally(idempotency.c.idempotency_key), tallies_before_ms), else_=before_ms)
    ahead = (work.now() + _AHEAD_MS) * 1_000_000
    by_id = sa.or_(idempotency.c.id < oldest * 1_000_000, idempotency.c.id > ahead)
    doomed = (
        sa.select(idempotency.c.idempotency_key, idempotency.c.generation)
        .where(
            idempotency.c.committed_ms < max(before_ms, tallies_before_ms), idempotency.c.committed_ms < oldest, by_id
        )
        .order_by(idempotency.c.committed_ms)
        .limit(limit)
    )
    return work.connection.execute(
        idempotency.delete().where(sa.tuple_(idempotency.c.idempotency_key, idempotency.c.generation).in_(doomed))
    ).rowcount


def vacuum(database: Database, deleted: Mapping[str, int], *, after: int) -> None:
    """Vacuum the tables of a PostgreSQL store that have many dead rows for their size.

    The role must own the tables. Without that right, or during another vacuum, nothing happens.

    :param deleted: rows that this run has deleted, by table, which the server may not count yet.
    :param after: number of dead rows above which a table is vacuumed.
    """
    if database.dialect.name != "postgresql":
        return
    with database.connect() as connection:
        found = connection.execute(sa.text(_DEAD_ROWS), {"schema": schema_of(connection)}).all()
        for name, rows, dead in found:
            if (doomed := dead + deleted.get(name, 0)) > after and doomed > rows / 20:
                connection.exec_driver_sql(f"vacuum (index_cleanup on, skip_locked) {prefix_of(connection)}{name}")
