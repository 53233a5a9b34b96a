"""SQL of clean-up: the horizon, and the rows that may go below it.

Below the horizon nothing is in progress and nothing is invalid: every version there is committed, and every
snapshot that may still read sees all of them. Reads and commits look at the horizon, see the dialects; it is raised
before anything is deleted, so that no reader sees a deletion without the horizon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from export_queue.core.store.database import Database, Reading, Work
from export_queue.core.store.queries.inserts import insert_into
from export_queue.core.store.queries.tallies import is_tally
from export_queue.core.store.schema import active, cleanup, idempotency, invalid, low_watermark, store
from export_queue.core.store.schema import table as t
from export_queue.core.store.schema_names import prefix_of, schema_of

_DEAD_ROWS = """
    select c.relname, c.reltuples, pg_stat_get_dead_tuples(c.oid)
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = :schema and c.relkind = 'r' and c.relname like 'xq!_%' escape '!' order by c.relname
"""
_AHEAD_MS = 3_600_000
"""Ids that are further ahead of the clock follow one that was wrong."""
TURN = "turn"
"""The row that is locked by the process whose turn it is."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one subject has come."""

    reached: int
    place: bytes | None


def add_subjects(work: Work, subjects: Sequence[str]) -> None:
    """Make sure that there is a row for the turn and for each subject."""
    known = set(work.connection.scalars(sa.select(cleanup.c.subject)))
    for subject in sorted({TURN, *subjects} - known):
        work.connection.execute(insert_into(work, cleanup).values(subject=subject, reached=0).on_conflict_do_nothing())


def take_turn(work: Work) -> bool:
    """Make this the one SQL transaction that cleans up; False if another one does.

    Two at once would wait for each other's rows, and not always in the same order.
    """
    mine = sa.select(cleanup.c.subject).where(cleanup.c.subject == TURN).with_for_update(skip_locked=True)
    return work.connection.execute(mine).first() is not None


def progress(work: Work, subject: str) -> Progress:
    """Read how far a subject has come."""
    row = work.connection.execute(
        sa.select(cleanup.c.reached, cleanup.c.place).where(cleanup.c.subject == subject)
    ).one()
    return Progress(int(row.reached), row.place)


def save_progress(work: Work, subject: str, state: Progress) -> None:
    """Note how far a subject has come."""
    work.connection.execute(
        cleanup.update().where(cleanup.c.subject == subject).values(reached=state.reached, place=state.place)
    )


def horizon(work: Reading) -> int:
    """Read the horizon."""
    return int(work.connection.execute(sa.select(store.c.horizon)).scalar_one())


def expiry_ms(work: Reading) -> int:
    """Read the time to which ages of cells may have counted that clean-up has deleted, in milliseconds."""
    return int(work.connection.execute(sa.select(store.c.expiry_ms)).scalar_one())


def started_ms(work: Reading, transaction: int) -> int | None:
    """Read when a long transaction began, in milliseconds; None if it has ended."""
    return work.connection.execute(sa.select(active.c.started_ms).where(active.c.id == transaction)).scalar()


def last_watermark(work: Reading) -> int | None:
    """Read when the last low-water mark was recorded, in milliseconds."""
    return work.connection.execute(sa.select(sa.func.max(low_watermark.c.at_ms))).scalar()


def add_watermark(work: Work, low: int) -> None:
    """Record the smallest id that a snapshot, taken before this call, did not see.

    Marks of the future go: they were recorded while the clock was wrong, and would vouch for that time.
    """
    now = work.now()
    work.connection.execute(low_watermark.delete().where(low_watermark.c.at_ms > now))
    statement = insert_into(work, low_watermark).values(at_ms=now, low=low)
    # Either of two in one millisecond is right.
    work.connection.execute(statement.on_conflict_do_update(index_elements=[low_watermark.c.at_ms], set_={"low": low}))


def settled_time(work: Reading, *, gap_ms: int) -> int | None:
    """Find the time of the newest mark that is as old as a gap: all that was old by then is old by two clocks' words.

    :returns: milliseconds; None if no mark is that old.
    """
    mark = low_watermark.c.at_ms
    return work.connection.execute(sa.select(sa.func.max(mark)).where(mark <= work.now() - gap_ms)).scalar()


def raise_horizon(work: Work, *, before_ms: int) -> int:
    """Raise the horizon as far as no live snapshot reaches, and return it.

    With it comes the time from which ages count. It stays behind the clock as well: ids may be far ahead of that.

    :param before_ms: younger marks do not count: a transaction without an active row may read since then.
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
    """Read the tables whose cells no conflict key leads to, or which expire: number, time to live in milliseconds."""
    statement = (
        sa.select(t.c.number, t.c.ttl_ms)
        .where(sa.or_(t.c.conflict == "none", t.c.ttl_ms.is_not(None)))
        .order_by(t.c.number)
    )
    return [(number, ttl_ms) for number, ttl_ms in work.connection.execute(statement)]


def delete_idempotency_keys(work: Work, *, before_ms: int, tallies_before_ms: int, limit: int) -> int:
    """Delete idempotency keys that were committed before a time, and tallies that were begun before another one.

    An id tells a time, too, which goes back with no clock. One that is far ahead of the clock tells nothing.
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
    """Reclaim the space of dead rows, where they are many for their table's size and the database does not by itself.

    What other runs, drains and commits have left dead counts too. Needs the owner's rights; without them, or during
    another vacuum, nothing happens.

    :param deleted: rows that this run has deleted, by table, of which the server may not know yet.
    :param after: dead rows of a table from which on it is worth it.
    """
    if database.dialect.name != "postgresql":
        return
    with database.connect() as connection:
        found = connection.execute(sa.text(_DEAD_ROWS), {"schema": schema_of(connection)}).all()
        for name, rows, dead in found:
            if (doomed := dead + deleted.get(name, 0)) > after and doomed > rows / 20:
                connection.exec_driver_sql(f"vacuum (index_cleanup on, skip_locked) {prefix_of(connection)}{name}")
