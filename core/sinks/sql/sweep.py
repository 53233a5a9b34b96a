"""Removes tombstones from tables, page by page of the primary key, each page in its own short transaction."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from export_queue.core.sinks.control import stale_rank
from export_queue.core.sinks.naming import names_of
from export_queue.core.sinks.sql.tables import DELETED, RANK

PAGE = 5000
"""Rows that one transaction examines."""
REPORT_PAGES = 200
"""Pages between two log lines about progress."""

_Result = TypeVar("_Result")
Run = Callable[[Callable[[sa.Connection], _Result]], _Result]
"""Runs a transaction. Retries when it gives way to another one."""

log = logging.getLogger("export_queue.sweep")


def tables_of(connection: sa.Connection, *, schema: str | None, template: str, keys: Sequence[str]) -> list[str]:
    """Find the tables whose names fit a template without a schema, and whose columns are those of the sink."""
    inspector = sa.inspect(connection)
    pattern = re.compile(names_of(template), re.IGNORECASE)
    wanted = {*keys, RANK, DELETED}
    found = []
    for name in sorted(inspector.get_table_names(schema=schema)):
        if not pattern.fullmatch(name) or not wanted <= {one["name"] for one in inspector.get_columns(name, schema)}:
            continue
        if set(inspector.get_pk_constraint(name, schema)["constrained_columns"]) == set(keys):
            found.append(name)
    return found


def sweep_table(run: Run[Any], *, schema: str | None, name: str, keys: Sequence[str], floor: int) -> int:
    """Remove the tombstones of a table at or below the floor, which was raised before, and return their number.

    The deleting statement itself checks each row, so a record that was put again is not removed.
    """
    table = sa.table(
        name, *map(sa.column, keys), sa.column(RANK, sa.BigInteger), sa.column(DELETED, sa.Boolean), schema=schema
    )
    columns = [table.c[key] for key in keys]
    # the sink's own row is a tombstone, too, but its rank is odd
    tombstones = sa.and_(table.c[DELETED] == sa.true(), table.c[RANK] % 2 == 0)
    doomed = sa.and_(tombstones, table.c[RANK] <= stale_rank(floor))
    removed = pages = 0
    after: sa.Row[Any] | None = None

    def page(connection: sa.Connection) -> tuple[int, sa.Row[Any] | None]:
        rest = [] if after is None else [beyond(columns, after, upwards=True)]
        last = connection.execute(
            sa.select(*columns).where(*rest).order_by(*columns).limit(1).offset(PAGE - 1)
        ).one_or_none()
        within = rest if last is None else [*rest, beyond(columns, last, upwards=False)]
        return connection.execute(sa.delete(table).where(*within, doomed)).rowcount, last

    while True:
        gone, after = run(page)
        removed += int(gone)
        pages += 1
        if after is None:
            return removed
        if pages % REPORT_PAGES == 0:
            log.info("table %s: %d rows examined, %d tombstones removed", name, pages * PAGE, removed)


def beyond(
    columns: Sequence[sa.ColumnElement[Any]], position: Sequence[Any], *, upwards: bool
) -> sa.ColumnElement[bool]:
    """Return the condition that a key comes after a position, or that it does not.

    Columns are compared one by one: some databases have no row values, and some use no index for them.
    """
    column, value, rest = columns[0], position[0], columns[1:]
    strictly: sa.ColumnElement[bool] = column > value if upwards else column < value
    from_there: sa.ColumnElement[bool] = column >= value if upwards else column <= value
    if not rest:
        return strictly if upwards else from_there
    deeper = sa.or_(strictly, sa.and_(column == value, beyond(rest, position[1:], upwards=upwards)))
    # redundant, but databases find the beginning of a range by this condition
    return sa.and_(from_there, deeper)
