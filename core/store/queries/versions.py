"""SQL that deletes superseded versions and conflict keys, on each database in its fastest way.

Below the horizon every version is committed and every snapshot sees it. So all versions of a cell but the newest one
there are superseded. The newest one is deleted too if it is a tombstone, or past its table's time to live for every
snapshot. Versions are deleted oldest first, a tombstone after all that it hides: the cell reads the same wherever a
limit stops the deletion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.portable import prefix_of
from export_queue.core.store.schema import cell, conflict_key

Cells: TypeAlias = tuple[int, bytes, bytes | None]
"""Table number, row, and column, or None for the whole row."""
CellKey: TypeAlias = tuple[int, bytes, bytes, int]
"""Table number, row, column, version: the order of versions."""

_KEY = "c.table_number, c.row_key, c.column_key, c.version"
_DOOMED = """
    c.version < :horizon and (c.value is null or c.version <= :expired or exists (
        select 1 from {s}xq_cell n
        where n.table_number = c.table_number and n.row_key = c.row_key and n.column_key = c.column_key
          and n.version > c.version and n.version < :horizon))
"""
_OF_CELLS = (
    """
    from wanted w cross join {s}xq_cell c
    where c.table_number = w.number and c.row_key = w.row_key
      and (w.column_key is null or c.column_key = w.column_key) and """
    + _DOOMED
    + f"order by {_KEY} limit :most"
)
# By ctid: if the table were joined with a list of its own rows, PostgreSQL might read all of it.
_DELETE_OF_CELLS = (
    """
    delete from {s}xq_cell where ctid = any(array(
        with wanted(number, row_key, column_key) as (
            select * from unnest(cast(:numbers as bigint[]), cast(:rows as bytea[]), cast(:columns as bytea[])))
        select c.ctid """
    + _OF_CELLS
    + "))"
)
_DELETE_ONE = "delete from xq_cell where table_number = ? and row_key = ? and column_key = ? and version = ?"
_DELETE_OF_PAGE = (
    """
    delete from {s}xq_cell as c
    where c.table_number = :number and (c.row_key, c.column_key, c.version) > (:row, :column, :version) and """
    + _DOOMED
)
_TO_END = " and (c.row_key, c.column_key, c.version) <= (:end_row, :end_column, :end_version)"

_OF_KEYS = "from {s}xq_conflict_key where key > :after and key <= :last and writer < :horizon"
_DELETE_KEYS = {
    "sqlite": "delete " + _OF_KEYS,
    # A key that a commit is writing is skipped.
    "postgresql": "delete from {s}xq_conflict_key where ctid = any(array(select ctid "
    + _OF_KEYS
    + " for update skip locked))",
}

_NEVER = -1
"""No version is as old as this."""


def last_writer(work: Reading, key: bytes) -> int | None:
    """Read which transaction last committed a write of a conflict key; None if clean-up has deleted the key."""
    return work.connection.scalar(sa.select(conflict_key.c.writer).where(conflict_key.c.key == key))


def keys_after(work: Work, place: bytes, *, limit: int) -> list[bytes]:
    """Read the next conflict keys in their order."""
    key = conflict_key.c.key
    return list(work.connection.scalars(sa.select(key).where(key > place).order_by(key).limit(limit)))


def delete_keys(work: Work, after: bytes, last: bytes, *, horizon: int) -> int:
    """Delete the conflict keys after one and up to another whose last writer is below the horizon.

    Every transaction that may still commit sees that writer, so the key would never refuse its commit.
    """
    statement = _text(work, _DELETE_KEYS[work.connection.dialect.name])
    return work.connection.execute(statement, {"after": after, "last": last, "horizon": horizon}).rowcount


def delete_of_cells(work: Work, cells: Sequence[Cells], *, horizon: int, limit: int) -> int:
    """Delete the versions of some cells that no snapshot can read; expired ones stay."""
    arguments = {"horizon": horizon, "expired": _NEVER, "most": limit}
    numbers, rows, columns = zip(*cells, strict=True)
    if work.connection.dialect.name == "postgresql":
        wanted = {"numbers": list(numbers), "rows": list(rows), "columns": list(columns)}
        return work.connection.execute(_text(work, _DELETE_OF_CELLS), {**arguments, **wanted}).rowcount
    names = [f"(:n{i}, :r{i}, :k{i})" for i in range(len(cells))]
    for i, (number, row, column) in enumerate(cells):
        arguments |= {f"n{i}": number, f"r{i}": row, f"k{i}": column}  # type: ignore[dict-item]
    statement = f"with wanted(number, row_key, column_key) as (values {', '.join(names)}) select {_KEY} {_OF_CELLS}"
    doomed = [tuple(row) for row in work.connection.execute(_text(work, statement), arguments)]
    if doomed:
        work.connection.exec_driver_sql(_DELETE_ONE, doomed)
    return len(doomed)


def page_end(work: Work, after: CellKey, *, rows: int) -> CellKey | None:
    """Find the last of the next ``rows`` versions of a table; None if there are fewer."""
    c = cell.c
    place = sa.tuple_(
        sa.literal(after[1], sa.LargeBinary), sa.literal(after[2], sa.LargeBinary), sa.literal(after[3], sa.BigInteger)
    )
    order = (c.row_key, c.column_key, c.version)
    statement = sa.select(*order).where(c.table_number == after[0], sa.tuple_(*order) > place).order_by(*order)
    row = work.connection.execute(statement.offset(rows - 1).limit(1)).first()
    return None if row is None else (after[0], row[0], row[1], row[2])


def delete_of_page(work: Work, after: CellKey, end: CellKey | None, *, horizon: int, expired: int | None = None) -> int:
    """Delete the versions after one and up to another that no snapshot can read.

    :param end: the last version; None for all that follow.
    :param expired: versions up to this one are past their table's time to live for every snapshot.
    """
    arguments: dict[str, object] = {"number": after[0], "row": after[1], "column": after[2], "version": after[3]}
    arguments |= {"horizon": horizon, "expired": _NEVER if expired is None else expired}
    if end is not None:
        arguments |= {"end_row": end[1], "end_column": end[2], "end_version": end[3]}
    statement = _DELETE_OF_PAGE + ("" if end is None else _TO_END)
    return work.connection.execute(_text(work, statement), arguments).rowcount


def _text(work: Work, statement: str) -> sa.TextClause:
    return sa.text(statement.replace("{s}", prefix_of(work.connection)))
