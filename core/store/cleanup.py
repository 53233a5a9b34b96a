"""SQL of clean-up: the horizon, and what may go below it.

Below the horizon nothing is in progress and nothing is invalid: every version there is committed, and every
snapshot that may still read sees all of them. Reads and commits look at the horizon, see ``postgresql.py`` and
``functions.sql``; it is raised before anything is deleted, so nobody sees a deletion and not the horizon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from export_queue.core.store.database import Database, Work
from export_queue.core.store.schema import active, cell, cleanup, conflict_key, invalid, low_mark, store, token
from export_queue.core.store.schema import table as t

TURN = "turn"
"""The row that is locked by the process whose turn it is."""

CellKey = tuple[int, bytes, bytes, int]
"""Table number, row, column, version: the order of cells."""

_cell_key = (cell.c.table_number, cell.c.row_key, cell.c.column_key, cell.c.version)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one subject has come."""

    reached: int
    place: bytes | None


def add_subjects(work: Work, subjects: Sequence[str]) -> None:
    """Make sure that there is a row for the turn and for each subject."""
    known = set(work.connection.scalars(sa.select(cleanup.c.subject)))
    for subject in sorted({TURN, *subjects} - known):
        work.connection.execute(_insert(work, cleanup).values(subject=subject, reached=0).on_conflict_do_nothing())


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


def horizon(work: Work) -> int:
    """Read the horizon."""
    return int(work.connection.execute(sa.select(store.c.horizon)).scalar_one())


def last_mark(work: Work) -> int | None:
    """Read when the last low-water mark was recorded, in milliseconds."""
    return work.connection.execute(sa.select(sa.func.max(low_mark.c.at_ms))).scalar()


def add_mark(work: Work, low: int) -> None:
    """Record the smallest id that a snapshot did not see which was taken before this call."""
    work.connection.execute(_insert(work, low_mark).values(at_ms=work.now(), low=low).on_conflict_do_nothing())


def raise_horizon(work: Work, *, age_ms: int) -> int:
    """Raise the horizon as far as no live snapshot reaches, and return it.

    :param age_ms: the longest that a transaction may read which has no active row: only marks so old count.
    """
    old = low_mark.c.at_ms <= work.now() - age_ms
    bounds = work.connection.execute(
        sa.select(
            sa.select(sa.func.max(low_mark.c.low)).where(old).scalar_subquery(),
            sa.select(sa.func.min(active.c.low)).scalar_subquery(),
            sa.select(sa.func.min(invalid.c.id)).scalar_subquery(),
        )
    ).one()
    if bounds[0] is not None:
        highest = min(bound for bound in bounds if bound is not None)
        work.connection.execute(store.update().where(store.c.horizon < highest).values(horizon=highest))
        newest_old = sa.select(sa.func.max(low_mark.c.at_ms)).where(old).scalar_subquery()
        work.connection.execute(low_mark.delete().where(low_mark.c.at_ms < newest_old))
    return horizon(work)


def keys_after(work: Work, place: bytes, *, limit: int) -> list[bytes]:
    """Read the next conflict keys in their order."""
    statement = (
        sa.select(conflict_key.c.key).where(conflict_key.c.key > place).order_by(conflict_key.c.key).limit(limit)
    )
    return list(work.connection.scalars(statement))


def delete_keys(work: Work, keys: Sequence[bytes], *, horizon: int) -> int:
    """Delete those of some conflict keys whose last writer is below the horizon; one that a commit holds stays."""
    settled = (
        sa.select(conflict_key.c.key)
        .where(conflict_key.c.key.in_(keys), conflict_key.c.writer < horizon)
        .with_for_update(skip_locked=True)
    )
    return work.connection.execute(conflict_key.delete().where(conflict_key.c.key.in_(settled))).rowcount


def of_cells(cells: Sequence[tuple[int, bytes, bytes | None]]) -> sa.ColumnElement[bool]:
    """Say which versions belong to some cells: table number, row, and column, or None for the whole row."""
    rows = [(number, row) for number, row, column in cells if column is None]
    single = [(number, row, column) for number, row, column in cells if column is not None]
    return sa.or_(sa.tuple_(*_cell_key[:2]).in_(rows), sa.tuple_(*_cell_key[:3]).in_(single))


def page_end(work: Work, after: CellKey, *, rows: int) -> CellKey | None:
    """Find the last of the next versions of a table; None if there are fewer."""
    statement = (
        sa.select(*_cell_key)
        .where(cell.c.table_number == after[0], _behind(after))
        .order_by(*_cell_key)
        .offset(rows - 1)
        .limit(1)
    )
    row = work.connection.execute(statement).first()
    return None if row is None else (row[0], row[1], row[2], row[3])


def of_page(after: CellKey, end: CellKey | None) -> sa.ColumnElement[bool]:
    """Say which versions of a table lie behind one place and not behind another."""
    page = sa.and_(cell.c.table_number == after[0], _behind(after))
    return page if end is None else sa.and_(page, sa.tuple_(*_cell_key[1:]) <= _values(end))


def delete_versions(
    work: Work, where: sa.ColumnElement[bool], *, horizon: int, expired: int | None = None, limit: int
) -> int:
    """Delete versions that nobody can read any more: superseded below the horizon, tombstones there, expired.

    A tombstone goes once all that it hides has gone. Versions go in their order, oldest first, so each cell reads
    the same wherever the limit cuts.

    :param expired: versions up to this one are past their table's time to live for every snapshot.
    """
    newer = cell.alias("newer")
    superseded = sa.exists().where(
        *(newer.c[column.name] == column for column in _cell_key[:3]),
        newer.c.version > cell.c.version,
        newer.c.version < horizon,
    )
    readable_by_nobody = [cell.c.value.is_(None), superseded]
    if expired is not None:
        readable_by_nobody.append(cell.c.version <= expired)
    doomed = (
        sa.select(*_cell_key)
        .where(where, cell.c.version < horizon, sa.or_(*readable_by_nobody))
        .order_by(*_cell_key)
        .limit(limit)
    )
    return work.connection.execute(cell.delete().where(sa.tuple_(*_cell_key).in_(doomed))).rowcount


def tables_without_keys(work: Work) -> list[tuple[int, int | None]]:
    """Read the tables whose cells no conflict key leads to, or which expire: number, time to live in milliseconds."""
    statement = (
        sa.select(t.c.number, t.c.ttl_ms)
        .where(sa.or_(t.c.conflict == "none", t.c.ttl_ms.is_not(None)))
        .order_by(t.c.number)
    )
    return [(number, ttl_ms) for number, ttl_ms in work.connection.execute(statement)]


def delete_tokens(work: Work, *, before_ms: int, limit: int) -> int:
    """Delete tokens that were committed before a time."""
    doomed = (
        sa.select(token.c.token, token.c.generation)
        .where(token.c.committed_ms < before_ms)
        .order_by(token.c.committed_ms)
        .limit(limit)
    )
    return work.connection.execute(
        token.delete().where(sa.tuple_(token.c.token, token.c.generation).in_(doomed))
    ).rowcount


def vacuum(database: Database, name: str, *, deleted: int) -> None:
    """Reclaim what deleted rows left, where they are many for the table's size and the database does not by itself.

    Needs the owner's rights; without them, or while somebody else vacuums, nothing happens.
    """
    if database.dialect.name != "postgresql":
        return
    with database.connect() as connection:
        schema = connection.get_execution_options()["schema_translate_map"][None]
        table = f"{connection.dialect.identifier_preparer.quote_schema(schema)}.{name}"
        rows = connection.exec_driver_sql("select reltuples from pg_class where oid = %s::regclass", (table,)).scalar()
        if deleted > float(rows or 0) / 20:
            connection.exec_driver_sql(f"vacuum (index_cleanup on, skip_locked) {table}")


def _behind(after: CellKey) -> sa.ColumnElement[bool]:
    behind: sa.ColumnElement[bool] = sa.tuple_(*_cell_key[1:]) > _values(after)
    return behind


def _values(place: CellKey) -> Any:
    return sa.tuple_(
        sa.literal(place[1], sa.LargeBinary), sa.literal(place[2], sa.LargeBinary), sa.literal(place[3], sa.BigInteger)
    )


def _insert(work: Work, table: sa.Table) -> Any:
    # The same words in both dialects, which SQLAlchemy keeps apart.
    return (postgresql if work.connection.dialect.name == "postgresql" else sqlite).insert(table)
