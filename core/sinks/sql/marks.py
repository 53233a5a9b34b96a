"""How the sink recognises a table, and notices that its rows were lost.

With the guard ``seq`` a table holds one row of the sink itself, its mark: a tombstone, which readers do not see, with a
random rank. The table's record contains that rank. Whatever removes the table's rows also removes the mark: a DROP, a
TRUNCATE, a table that was recreated or renamed.

Tables of the guard ``fence`` show all their rows, and some tables of users do not accept a mark. Their records contain,
updated in the transactions that write to the table, whether it holds any rows.
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
from export_queue.core.sinks.sql.control_tables import queue_table, records_table
from export_queue.core.sinks.sql.dialects import Dialect, TryAgain
from export_queue.core.sinks.sql.rows import mark_row
from export_queue.core.sinks.sql.tables import RANK, Table

_MARKS = 1 << 32


class NoMark(Exception):
    """The table does not accept its mark, or does not return it. The transaction is rolled back."""


@dataclass(frozen=True, slots=True)
class TableRecord:
    """What the sink records about a table that was set up."""

    mark: int
    """The rank of its mark; 0 if it has none."""
    holds_rows: bool
    """Whether a table without a mark is known to hold any row."""


def known_tables(connection: sa.Connection, schema: str | None, *, template: str) -> dict[str, TableRecord]:
    """Return the records of the tables that were set up and whose names fit a template without a schema."""
    records = records_table(schema).c
    pattern = re.compile(names_of(template), re.IGNORECASE)
    found = sa.select(records.table_name, records.mark, records.holds_rows).where(records.mark.is_not(None))
    rows = sorted(tuple(row) for row in connection.execute(found) if pattern.fullmatch(row.table_name))
    return {name: TableRecord(mark, holds_rows) for name, mark, holds_rows in rows}


def read_record(connection: sa.Connection, schema: str | None, name: str) -> TableRecord | None:
    """Return the record of a table; None if no sink has set it up, or set it up again after a loss."""
    records = records_table(schema).c
    found = sa.select(records.mark, records.holds_rows).where(records.table_name == name, records.mark.is_not(None))
    row = connection.execute(found).one_or_none()
    return None if row is None else TableRecord(row.mark, row.holds_rows)


def note_loss(connection: sa.Connection, schema: str | None, name: str, record: TableRecord, *, fence: int) -> None:
    """Forget a lost table for a queue that is readmitted, and record its fence: the table may have had other queues."""
    table = records_table(schema)
    known = sa.update(table).where(table.c.table_name == name, table.c.mark == record.mark)
    if connection.execute(known.values(mark=None, holds_rows=False, lost_fence=fence)).rowcount == 0:
        raise TryAgain(f"table {name!r} is readmitted by another process")


def check_losses(connection: sa.Connection, schema: str | None, name: str, *, queue_id: str, sink: str) -> None:
    """Raise SinkLostData if a queue may have lost records in a table that was readmitted for another queue."""
    records, queues = records_table(schema).c, queue_table(schema).c
    lost_at = connection.execute(sa.select(records.lost_fence).where(records.table_name == name)).scalar()
    if lost_at:
        since = connection.execute(sa.select(queues.since_fence).where(queues.queue_id == queue_id)).scalar()
        check_loss(lost_at, since, what=f"table {name!r}", queue_id=queue_id, sink=sink)


def leave_mark(connection: sa.Connection, dialect: Dialect, table: Table) -> int:
    """Write, record and return the mark of a table. Record an existing mark; leave a recorded mark unchanged."""
    if (record := read_record(connection, table.schema, table.name)) is not None:
        return record.mark  # another sink has just set it up
    if not table.ranked:
        raise NoMark
    mark = connection.execute(sa.select(found_mark(table))).scalar()
    if mark is None:
        # odd, unlike the rank of a tombstone, and so high that no other row of this key would replace it
        mark = 2 * (MAX_SEQ - secrets.randbelow(_MARKS)) + 1
        dialect.upsert(connection, table, mark_row(table, dialect.limits, mark))
        if connection.execute(sa.select(found_mark(table))).scalar() != mark:
            raise NoMark
    _record(connection, table.schema, table.name, TableRecord(mark, True))
    return int(mark)


def note_without_mark(connection: sa.Connection, table: Table) -> None:
    """Record a table that does not accept a mark."""
    if read_record(connection, table.schema, table.name) is None:
        _record(connection, table.schema, table.name, TableRecord(0, holds_any(connection, table)))


def prove(connection: sa.Connection, table: Table, record: TableRecord, *, sink: str) -> None:
    """Raise SinkLostData if a table is gone, was emptied, or is another one than was set up."""
    require_table(connection, table, sink=sink)
    if record.mark:
        found = connection.execute(sa.select(found_mark(table))).scalar()
        holds = found != record.mark and holds_any(connection, table)
        check_mark(table, found, record.mark, sink=sink, holds_rows=holds)
    elif not record.holds_rows:
        _note_found_rows(connection, table)
    elif not holds_any(connection, table):
        raise SinkLostData(f"table {str(table)!r} of {sink} is empty: it was emptied, or is another one")


def require_table(connection: sa.Connection, table: Table, *, sink: str) -> None:
    """Raise SinkLostData if a table that was set up does not exist."""
    if not sa.inspect(connection).has_table(table.name, schema=table.schema):
        raise SinkLostData(f"table {str(table)!r} of {sink} is gone: it was dropped or renamed")


def check_mark(table: Table, found: int | None, expected: int, *, sink: str, holds_rows: bool = False) -> None:
    """Raise SinkLostData if the mark in a table is not the recorded one.

    :param holds_rows: whether the table holds rows, which may then be of an older state.
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
    """Return the expression that reads the mark in a table."""
    described = sa.table(table.name, *map(sa.column, table.keys), sa.column(RANK, sa.BigInteger), schema=table.schema)
    # our own constants, written as literals: the database converts them to the types of its columns
    same = [
        described.c[key] == sa.literal_column(str(value) if isinstance(value, int) else f"'{value}'")
        for key, value in zip(table.keys, table.key.mark, strict=True)
    ]
    return sa.select(described.c[RANK]).where(*same).scalar_subquery()


def note_rows(connection: sa.Connection, table: Table, *, deleted: bool) -> None:
    """Record, in the transaction that wrote to a table without a mark, whether it is known to hold rows.

    After a delete that is unknown until a row is written, or until the table is proven again.
    """
    records = records_table(table.schema)
    mine = sa.update(records).where(records.c.table_name == table.name)
    if deleted:
        connection.execute(mine.values(holds_rows=False))
    else:
        # conditional, so that batches of several drains do not wait for each other here
        connection.execute(mine.where(records.c.holds_rows == sa.false()).values(holds_rows=True))


def _note_found_rows(connection: sa.Connection, table: Table) -> None:
    """Record that a table holds rows, if it does."""
    records = records_table(table.schema)
    mine = sa.update(records).where(records.c.table_name == table.name)
    # written before the table is read: rows that are being deleted at this moment are gone by then
    connection.execute(mine.values(holds_rows=True))
    if not holds_any(connection, table):
        connection.execute(mine.values(holds_rows=False))


def holds_any(connection: sa.Connection, table: Table) -> bool:
    """Return whether a table holds any row."""
    described: Any = sa.table(table.name, sa.column(table.keys[0]), schema=table.schema)
    return connection.execute(sa.select(sa.literal(1)).select_from(described).limit(1)).scalar() is not None


def _record(connection: sa.Connection, schema: str | None, name: str, record: TableRecord) -> None:
    table = records_table(schema)
    values = {"mark": record.mark, "holds_rows": record.holds_rows}
    lost = sa.update(table).where(table.c.table_name == name, table.c.mark.is_(None))
    if connection.execute(lost.values(values)).rowcount:
        return
    try:
        connection.execute(sa.insert(table).values(table_name=name, lost_fence=0, **values))
    except IntegrityError as error:
        raise TryAgain(f"another sink has set up table {name!r}") from error
