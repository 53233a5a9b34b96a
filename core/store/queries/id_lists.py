"""Lists of ids in portable statements: one parameter, however many ids there are."""

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
        return column != sa.func.all(sa.literal(list(ids), ARRAY(sa.BigInteger)))
    listed = sa.func.json_each(f"[{','.join(map(str, ids))}]").table_valued("value")
    return column.not_in(sa.select(listed.c.value))


def visible_ids(work: Reading, column: sa.ColumnElement[Any], snapshot: Snapshot) -> sa.ColumnElement[bool]:
    """Say which ids a snapshot sees."""
    return sa.and_(column <= snapshot.read_pointer, not_among(work, column, snapshot.excluded))
