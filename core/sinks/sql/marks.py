"""How a table is known again, and a loss of its rows noticed.

With the guard ``seq`` a table holds a row of the sink's own, its mark: a tombstone, which readers do not see, with a
random rank. The control record of the table notes that rank. Whatever takes the table's rows away takes the mark along:
a DROP, a TRUNCATE, a table that was made anew or renamed.

Tables of the guard ``fence`` show all their rows, and some tables of users' own take no such row. Of them the control
record notes whether they hold rows at all, in the transactions that write them.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from export_queue.core.errors import SinkLostData
from export_queue.core.sinks.control import check_loss
from export_queue.core.sinks.naming import names_of
from export_queue.core.sinks.operations import MAX_SEQ
from export_queue.core.sinks.sql.control_table import LOSSES, TABLES, WHOLE_SINK, control_table
from export_queue.core.sinks.sql.dialects import Dialect, TryAgain
from export_queue.core.sinks.sql.rows import mark_row
from export_queue.core.sinks.sql.tables import RANK, Table

_MARKS = 1 << 32


class NoMark(Exception):
    """The table does not take its mark, or does not give it back; the transaction is rolled back."""


@dataclass(frozen=True, slots=True)
class TableRecord:
    """What the control record knows of a table."""

    mark: int
    """Rank of its mark; 0 where it has none."""
    holds_rows: bool
    """Of a table without a mark: whether it is known to hold any row."""


def known_tables(connection: sa.Connection, schema: str | None, *, template: str) -> list[str]:
    """Name the tables that were set up and that a template may name.

    :param template: of their names, without a schema.
    """
    control = control_table(schema)
    pattern = re.compile(names_of(template), re.IGNORECASE)
    rows = connection.execute(
        sa.select(control.c.queue_id).where(
            control.c.queue_id.like(f"{TABLES}%"), control.c.queue_id.not_like(f"{LOSSES}%")
        )
    ).scalars()
    return sorted(name for row in rows if pattern.fullmatch(name := row.removeprefix(TABLES)))


def read_record(connection: sa.Connection, schema: str | None, name: str) -> TableRecord | None:
    """Read the record of a table; None if no sink has set it up."""
    control = control_table(schema)
    row = connection.execute(sa.select(control.c.fence, control.c.floor).where(_of(schema, name))).one_or_none()
    return None if row is None else TableRecord(row.fence, bool(row.floor))


def forget(connection: sa.Connection, schema: str | None, name: str, *, fence: int) -> None:
    """Remove the record of a table that was lost, and note the loss: other queues may have written to it, too.

    :param fence: of the queue that goes on with the sink as it is.
    """
    control = control_table(schema)
    connection.execute(sa.delete(control).where(_of(schema, name)))
    connection.execute(sa.delete(control).where(control.c.queue_id == LOSSES + name))
    values = {"queue_id": LOSSES + name, "store_id": WHOLE_SINK, "fence": fence, "floor": 0}
    try:
        connection.execute(sa.insert(control).values(values))
    except IntegrityError as error:
        raise TryAgain(f"table {name!r} is readmitted by another process") from error


def check_losses(connection: sa.Connection, schema: str | None, name: str, *, queue_id: str, sink: str) -> None:
    """Make sure that a queue has lost nothing in a table that another queue was readmitted with.

    :raises SinkLostData: it may have.
    """
    control = control_table(schema)
    lost_at = connection.execute(sa.select(control.c.fence).where(control.c.queue_id == LOSSES + name)).scalar()
    if lost_at:
        since = connection.execute(sa.select(control.c.floor).where(control.c.queue_id == queue_id)).scalar()
        check_loss(lost_at, since, what=f"table {name!r}", queue_id=queue_id, sink=sink)


def leave_mark(connection: sa.Connection, dialect: Dialect, table: Table) -> int:
    """Write a table's mark and note it; one that is there is noted as it is, one that is noted is left alone.

    :returns: the mark.
    :raises NoMark: the table does not give it back.
    """
    if (record := read_record(connection, table.schema, table.name)) is not None:
        return record.mark  # another sink was there a moment before
    if not table.ranked:
        raise NoMark
    mark = connection.execute(sa.select(found_mark(table))).scalar()
    if mark is None:
        # odd, as no tombstone's; so high that no record of the key, if there were any, would replace it
        mark = 2 * (MAX_SEQ - secrets.randbelow(_MARKS)) + 1
        dialect.upsert(connection, table, mark_row(table, dialect.limits, mark))
        if connection.execute(sa.select(found_mark(table))).scalar() != mark:
            raise NoMark
    _note(connection, table.schema, table.name, TableRecord(mark, True))
    return int(mark)


def note_without_mark(connection: sa.Connection, table: Table) -> None:
    """Note a table that takes no mark."""
    if read_record(connection, table.schema, table.name) is None:
        _note(connection, table.schema, table.name, TableRecord(0, holds_any(connection, table)))


def prove(connection: sa.Connection, table: Table, record: TableRecord, *, sink: str) -> None:
    """Make sure that a table is the one that was set up, and still holds its rows.

    :raises SinkLostData: it is gone, is another one, or was emptied.
    """
    require_table(connection, table, sink=sink)
    if record.mark:
        found = connection.execute(sa.select(found_mark(table))).scalar()
        holds = found != record.mark and holds_any(connection, table)
        check_mark(table, found, record.mark, sink=sink, holds_rows=holds)
    elif not record.holds_rows:
        _look_for_rows(connection, table)
    elif not holds_any(connection, table):
        raise SinkLostData(f"table {str(table)!r} of {sink} is empty: it was emptied, or is another one")


def require_table(connection: sa.Connection, table: Table, *, sink: str) -> None:
    """Make sure that a table that was set up is there.

    :raises SinkLostData: it is not.
    """
    if not sa.inspect(connection).has_table(table.name, schema=table.schema):
        raise SinkLostData(f"table {str(table)!r} of {sink} is gone: it was dropped or renamed")


def check_mark(table: Table, found: int | None, expected: int, *, sink: str, holds_rows: bool = False) -> None:
    """Compare the mark in a table with the one that was noted.

    :param holds_rows: whether the table is known to hold rows, in which case they may be of an older state.
    :raises SinkLostData: it is another one, or gone.
    """
    if found == expected:
        return
    message = (
        f"table {str(table)!r} of {sink} was emptied, or is another one: expected the mark {expected} in it,"
        f" found {'none' if found is None else found}"
    )
    if holds_rows:
        raise SinkLostData.older(f"{message}; its rows may be of an older state")
    raise SinkLostData(message)


def found_mark(table: Table) -> sa.ScalarSelect[int]:
    """Return the expression for the mark that lies in a table."""
    described = sa.table(table.name, *map(sa.column, table.keys), sa.column(RANK, sa.BigInteger), schema=table.schema)
    # constants of ours, written as literals: the database reads them as the types of its own columns
    same = [
        described.c[key] == sa.literal_column(str(value) if isinstance(value, int) else f"'{value}'")
        for key, value in zip(table.keys, table.key.mark, strict=True)
    ]
    return sa.select(described.c[RANK]).where(*same).scalar_subquery()


def note_rows(connection: sa.Connection, table: Table, *, deleted: bool) -> None:
    """Note, in the transaction that wrote a table without a mark, that it holds rows.

    :param deleted: whether rows were deleted: then nobody knows, until one is written or the table is proven again.
    """
    mine = sa.update(control_table(table.schema)).where(_of(table.schema, table.name))
    if deleted:
        connection.execute(mine.values(floor=0))
    else:
        # as a condition: batches of several drains do not wait for each other here
        connection.execute(mine.where(control_table(table.schema).c.floor == 0).values(floor=1))


def _look_for_rows(connection: sa.Connection, table: Table) -> None:
    """Note that a table holds rows, if it does."""
    mine = sa.update(control_table(table.schema)).where(_of(table.schema, table.name))
    # written before the table is looked at: what is being deleted at this moment is gone then
    connection.execute(mine.values(floor=1))
    if not holds_any(connection, table):
        connection.execute(mine.values(floor=0))


def holds_any(connection: sa.Connection, table: Table) -> bool:
    """Tell whether a table holds any row."""
    described: Any = sa.table(table.name, sa.column(table.keys[0]), schema=table.schema)
    return connection.execute(sa.select(sa.literal(1)).select_from(described).limit(1)).scalar() is not None


def _of(schema: str | None, name: str) -> sa.ColumnElement[bool]:
    return control_table(schema).c.queue_id == TABLES + name


def _note(connection: sa.Connection, schema: str | None, name: str, record: TableRecord) -> None:
    values = {
        "queue_id": TABLES + name,
        "store_id": WHOLE_SINK,
        "fence": record.mark,
        "floor": int(record.holds_rows),
    }
    try:
        connection.execute(sa.insert(control_table(schema)).values(values))
    except IntegrityError as error:
        raise TryAgain(f"another sink has set table {name!r} up") from error
