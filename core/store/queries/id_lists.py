"""Lists of ids and other numbers in portable statements: one parameter, however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from export_queue.core.store.database import Reading
from export_queue.core.store.snapshot import Snapshot


def not_among(work: Reading, column: sa.ColumnElement[Any], ids: Sequence[int]) -> sa.ColumnElement[bool]:
    """Say that a column is none of these ids; a parameter for each would be more than a statement may have."""
    if not ids:
        return sa.true()
    if work.connection.dialect.name == "postgresql":
        return column != sa.func.all(_array(ids))
    return column.not_in(_listed(ids))


def among(work: Reading, column: sa.ColumnElement[Any], numbers: Sequence[int]) -> sa.ColumnElement[bool]:
    """Say that a column is one of these numbers."""
    if work.connection.dialect.name == "postgresql":
        return column == sa.func.any(_array(numbers))
    return column.in_(_listed(numbers))


def _array(numbers: Sequence[int]) -> sa.BindParameter[list[int]]:
    return sa.literal(list(numbers), ARRAY(sa.BigInteger))


def _listed(numbers: Sequence[int]) -> sa.Select[Any]:
    listed = sa.func.json_each(f"[{','.join(map(str, numbers))}]").table_valued("value")
    return sa.select(listed.c.value)


def visible_ids(work: Reading, column: sa.ColumnElement[Any], snapshot: Snapshot) -> sa.ColumnElement[bool]:
    """Say which ids a snapshot sees."""
    return sa.and_(column <= snapshot.read_pointer, not_among(work, column, snapshot.excluded))
