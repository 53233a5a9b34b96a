"""SQL about notifications, observed columns, and failed observers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.portable import insert_into, not_among, visible_ids
from export_queue.core.store.schema import notification as n
from export_queue.core.store.schema import observed as o
from export_queue.core.store.schema import observer_failure as f
from export_queue.core.store.schema import table as t
from export_queue.core.store.seams import Cell
from export_queue.core.store.snapshot import AnySnapshot, ServerSnapshot, Snapshot

NotificationKey = tuple[int, bytes]
"""Version and row: the order of one column's notifications, oldest first."""

FURTHEST_MS = 3_600_000
"""If a retry is due even later than this, the observer failed while the clock was ahead; it is called now."""


def observed_columns(work: Reading) -> list[tuple[int, bytes, str]]:
    """Read table number, column and kind of all columns that have observers."""
    return [tuple(row) for row in work.connection.execute(sa.select(o.c.table_number, o.c.column_key, o.c.kind))]


def observed_names(work: Reading) -> list[tuple[str, bytes]]:
    """Read the names of observed tables and columns, in order."""
    statement = sa.select(t.c.name, o.c.column_key).join_from(o, t, t.c.number == o.c.table_number)
    return [tuple(row) for row in work.connection.execute(statement.order_by(t.c.name, o.c.column_key))]


def table_of_observed(work: Reading, table: str, column: bytes) -> tuple[int, str] | None:
    """Read number and row codec of a table; None unless the column is observed."""
    statement = sa.select(t.c.number, t.c.row_codec).join_from(o, t, t.c.number == o.c.table_number)
    found = work.connection.execute(statement.where(t.c.name == table, o.c.column_key == column)).first()
    return None if found is None else tuple(found)


def add_observed(work: Work, table: int, column: bytes, kind: str) -> str:
    """Record that a column has observers, unless that is recorded; return the recorded kind."""
    values = {"table_number": table, "column_key": column, "kind": kind}
    work.connection.execute(insert_into(work, o).values(values).on_conflict_do_nothing())
    statement = sa.select(o.c.kind).where(o.c.table_number == table, o.c.column_key == column)
    return str(work.connection.execute(statement).scalar_one())


def due(
    work: Reading, table: int, column: bytes, snapshot: Snapshot, *, after: NotificationKey | None, limit: int
) -> list[tuple[int, bytes, int]]:
    """Read the notifications of one column after a key that a snapshot sees, oldest first.

    Those whose observer failed and backs off are left out.

    :returns: version, row and failed attempts of each; a row that was written often may occur more than once.
    """
    order = sa.tuple_(n.c.version, n.c.row_key)
    statement = (
        sa.select(n.c.version, n.c.row_key, sa.func.coalesce(f.c.attempts, 0))
        .where(_due(work, table, column, snapshot, work.now()))
        .select_from(_WITH_FAILURES)
        .order_by(n.c.version, n.c.row_key)
        .limit(limit)
    )
    if after is not None:
        key = sa.tuple_(sa.literal(after[0], sa.BigInteger), sa.literal(after[1], sa.LargeBinary))
        statement = statement.where(order > key)
    return [tuple(row) for row in work.connection.execute(statement)]


def count_due(work: Reading, table: int, column: bytes, snapshot: Snapshot, *, limit: int) -> int:
    """Count the rows of one column that have any of the first ``limit`` notifications due in a snapshot."""
    # The limit is inside, because a database that removes duplicates first would read all rows.
    due_now = _due(work, table, column, snapshot, work.now())
    rows = sa.select(n.c.row_key).select_from(_WITH_FAILURES).where(due_now).limit(limit).subquery()
    return int(work.connection.execute(sa.select(sa.func.count(rows.c.row_key.distinct()))).scalar_one())


def due_rows(
    work: Reading, table: int, column: bytes, snapshot: Snapshot, *, now_ms: int, limit: int, most: int
) -> tuple[list[bytes], int, int]:
    """Read the rows of one column with notifications due in a snapshot, oldest notification first.

    :param limit: maximum number of rows that are returned.
    :param most: maximum number of notifications that are read, oldest first.
    :returns: the rows; the number of rows of the notifications that were read; the number of these notifications.
    """
    oldest = (
        sa.select(n.c.version, n.c.row_key)
        .select_from(_WITH_FAILURES)
        .where(_due(work, table, column, snapshot, now_ms))
        .order_by(n.c.version, n.c.row_key)
        .limit(most)
        .subquery()
    )
    of_row = sa.func.count()
    statement = (
        sa.select(oldest.c.row_key, sa.func.count().over(), sa.func.sum(of_row).over())
        .group_by(oldest.c.row_key)
        .order_by(sa.func.min(oldest.c.version), oldest.c.row_key)
        .limit(limit)
    )
    found = list(work.connection.execute(statement))
    return [row for row, _, _ in found], *((int(found[0][1]), int(found[0][2])) if found else (0, 0))


def has_newer(work: Reading, table: int, column: bytes, snapshot: Snapshot, *, now_ms: int, since: Snapshot) -> bool:
    """Return whether a notification of one column is due that an earlier snapshot did not see."""
    statement = (
        sa.select(n.c.version)
        .select_from(_WITH_FAILURES)
        .where(
            _due(work, table, column, snapshot, now_ms),
            n.c.version >= since.low,  # the earlier one saw all below; uses the index, as all of them may be pending
            sa.not_(visible_ids(work, n.c.version, since)),
        )
    )
    return work.connection.execute(statement.limit(1)).first() is not None


def has_come_due(work: Reading, table: int, column: bytes, snapshot: Snapshot, *, now_ms: int, since_ms: int) -> bool:
    """Return whether a notification of one column is due whose observer backed off at an earlier time."""
    # No join: without statistics a database may read all notifications instead of the few failures.
    statement = sa.select(f.c.row_key).where(
        f.c.table_number == table,
        f.c.column_key == column,
        sa.or_(sa.and_(f.c.next_ms > since_ms, f.c.next_ms <= now_ms), f.c.next_ms > now_ms + FURTHEST_MS),
        sa.exists().where(_SAME_CELL, _visible(work, snapshot)),
    )
    return work.connection.execute(statement.limit(1)).first() is not None


def is_set(work: Reading, cell: Cell, snapshot: AnySnapshot) -> bool:
    """Return whether a snapshot sees a notification on a cell."""
    statement = sa.select(n.c.version).where(_on(n, cell), _visible(work, snapshot)).limit(1)
    return work.connection.execute(statement).first() is not None


def record_failure(work: Work, cell: Cell, *, attempts: int, next_ms: int, error: str) -> None:
    """Record that an observer failed, and when it is called again, unless the notification is gone."""
    failure = {"attempts": attempts, "next_ms": next_ms, "error": error}
    row = sa.select(
        *(sa.literal(part, column.type) for part, column in zip((*cell, *failure.values()), f.c, strict=True))
    ).where(sa.exists().where(_on(n, cell)))
    statement = insert_into(work, f).from_select(f.c.keys(), row)
    work.connection.execute(statement.on_conflict_do_update(index_elements=f.primary_key.columns, set_=failure))


def clear_failure(work: Work, cell: Cell) -> None:
    """Forget that an observer failed."""
    work.connection.execute(f.delete().where(_on(f, cell)))


def failures(work: Reading, *, limit: int) -> list[Mapping[str, Any]]:
    """Read failures whose notifications are pending, next retry first."""
    statement = (
        sa.select(t.c.name, t.c.row_codec, f)
        .join_from(f, t, t.c.number == f.c.table_number)
        .where(sa.exists().where(_SAME_CELL))
        .order_by(f.c.next_ms, f.c.table_number, f.c.row_key)
        .limit(limit)
    )
    return work.rows(statement)


_SAME_CELL = sa.and_(f.c.table_number == n.c.table_number, f.c.row_key == n.c.row_key, f.c.column_key == n.c.column_key)
_WITH_FAILURES = n.outerjoin(f, _SAME_CELL)


def _due(work: Reading, table: int, column: bytes, snapshot: Snapshot, now_ms: int) -> sa.ColumnElement[bool]:
    return sa.and_(
        n.c.table_number == table,
        n.c.column_key == column,
        _visible(work, snapshot),
        sa.or_(f.c.next_ms.is_(None), f.c.next_ms <= now_ms, f.c.next_ms > now_ms + FURTHEST_MS),
    )


def _visible(work: Reading, snapshot: AnySnapshot) -> sa.ColumnElement[bool]:
    if not isinstance(snapshot, ServerSnapshot):
        return visible_ids(work, n.c.version, snapshot)
    seen = [n.c.xid < snapshot.xmax]
    if snapshot.xip:
        seen.append(n.c.xid.not_in(snapshot.xip))
    return sa.and_(*seen, not_among(work, n.c.version, snapshot.excluded))


def _on(table: sa.Table, cell: Cell) -> sa.ColumnElement[bool]:
    number, row, column = cell
    return sa.and_(table.c.table_number == number, table.c.row_key == row, table.c.column_key == column)
