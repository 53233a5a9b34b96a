"""The sink's own tables: one row per queue, one floor for all queues, one row per table of records, one per unit.

A batch reads the floor in its own transaction and keeps it unchanged until the transaction ends. A sweep that raises
the floor waits for the batches that have read the old one, and then finds their rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    MetaData,
    Table,
    Unicode,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from export_queue.core.errors import SinkLostData
from export_queue.core.sinks import control
from export_queue.core.sinks.control import ControlRecord, FloorRecord
from export_queue.core.sinks.sql.dialects.protocol import TryAgain

_ONLY_ROW = 1


@cache
def queue_table(schema: str | None) -> Table:
    """Describe the table that has a row for each queue."""
    return Table(
        "xq_control",
        MetaData(),
        Column("queue_id", Unicode(450), primary_key=True),
        Column("store_id", Unicode(450), nullable=False),
        Column("fence", BigInteger, nullable=False),
        # the fence of the queue's first drain, or of its last readmission
        Column("since_fence", BigInteger, nullable=False),
        schema=schema,
    )


@cache
def floor_table(schema: str | None) -> Table:
    """Describe the table whose only row has the floor."""
    return Table(
        "xq_floor",
        MetaData(),
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("floor", BigInteger, nullable=False),
        # the store that has swept the sink
        Column("store_id", Unicode(450)),
        # raised by writers, since some databases do not count a row whose values stay the same
        Column("changes", BigInteger, nullable=False),
        schema=schema,
    )


@cache
def records_table(schema: str | None) -> Table:
    """Describe the table that has a row for each table of records."""
    return Table(
        "xq_target",
        MetaData(),
        Column("table_name", Unicode(450), primary_key=True),
        # the rank of the table's mark; 0 if it accepts no mark; NULL if it was lost and is not set up again
        Column("mark", BigInteger),
        # whether a table without a mark is known to hold any row
        Column("holds_rows", Boolean, nullable=False),
        # the fence of the last queue that was readmitted after a loss of this table; 0 if it was never lost
        Column("lost_fence", BigInteger, nullable=False),
        schema=schema,
    )


@cache
def unit_table(schema: str | None) -> Table:
    """Describe the table that has a row for each unit, if the sink has the guard ``fence``."""
    return Table(
        "xq_unit",
        MetaData(),
        Column("unit", Unicode(450), primary_key=True),
        Column("fence", BigInteger, nullable=False),
        # raised by each batch, for the same reason as in the table of the floor
        Column("batches", BigInteger, nullable=False),
        schema=schema,
    )


def control_tables(schema: str | None) -> list[Table]:
    """Describe the control tables in the order of their creation: if the last one exists, all have existed."""
    return [records_table(schema), floor_table(schema), queue_table(schema)]


def missing_control_tables(connection: Connection, schema: str | None) -> list[Table]:
    """Return the control tables that do not exist, in the order of their creation."""
    found = inspect(connection)
    # last to first: a sink that is being created never looks as if it had lost one
    tables = [table for table in control_tables(schema)[::-1] if not found.has_table(table.name, schema=schema)]
    return tables[::-1]


def check_control_tables(connection: Connection, schema: str | None, *, sink: str) -> None:
    """Raise SinkLostData if a sink that has queues lacks a control table."""
    missing, queues = missing_control_tables(connection, schema), queue_table(schema)
    if missing and queues not in missing and connection.execute(select(queues).limit(1)).first():
        raise SinkLostData(f"table {missing[0].name!r} of {sink} is gone: it was dropped or renamed")


def check_queue(
    connection: Connection,
    *,
    schema: str | None,
    queue_id: str,
    store_id: str,
    fence: int,
    sink: str,
    shown: int,
    readmit: bool,
    locks_reads: bool,
) -> None:
    """Check a queue's control record and update it; see :func:`~export_queue.core.sinks.control.check_owner`.

    If two first drains of a queue start at once, the second violates the primary key and is retried.
    """
    table = queue_table(schema)
    mine = table.c.queue_id == queue_id
    with held_floor(connection, schema, locks_reads=locks_reads):
        row = connection.execute(select(table).where(mine).with_for_update()).one_or_none()
        found = None if row is None else ControlRecord(row.store_id, row.fence)
        wanted = control.check_owner(found, queue_id=queue_id, store_id=store_id, fence=fence, sink=sink, shown=shown)
        since = fence if row is None or readmit else row.since_fence
        if row is None or found is None:
            values = {"queue_id": queue_id, "store_id": store_id, "fence": fence, "since_fence": since}
            try:
                connection.execute(insert(table).values(values))
            except IntegrityError as error:
                raise TryAgain(f"another drain of {queue_id!r} was first") from error
        elif wanted != found or since != row.since_fence:
            # compared again in the condition: not every database locks a row that is read
            raised = update(table).where(mine, table.c.fence == found.fence, table.c.store_id == store_id)
            if connection.execute(raised.values(fence=fence, since_fence=since)).rowcount == 0:
                raise TryAgain(f"another drain of {queue_id!r} started at the same moment")
        control.register_store(_floor_record(connection, schema), store_id=store_id, sink=sink)


def read_queue(connection: Connection, *, schema: str | None, queue_id: str) -> ControlRecord | None:
    """Return a queue's control record; None if it or its table does not exist."""
    table = queue_table(schema)
    if not inspect(connection).has_table(table.name, schema=schema):
        return None
    row = connection.execute(select(table).where(table.c.queue_id == queue_id)).one_or_none()
    return None if row is None else ControlRecord(row.store_id, row.fence)


@contextmanager
def held_floor(
    connection: Connection, schema: str | None, *, locks_reads: bool, beside: Sequence[ColumnElement[Any]] = ()
) -> Iterator[tuple[int, Sequence[Any]]]:
    """Read the floor and further values, and keep the floor from being raised until the transaction ends.

    If the database cannot lock a row that it reads, the row is updated at the end of the block, on the condition that
    the floor has not changed.
    """
    table = floor_table(schema)
    reading = select(table.c.floor, *beside).where(table.c.id == _ONLY_ROW)
    row = connection.execute(reading.with_for_update(read=True) if locks_reads else reading).one_or_none()
    if row is None:
        _add_floor(connection, schema)
        row = connection.execute(reading).one()
    floor, *values = row
    yield floor, values
    if not locks_reads:
        unchanged = update(table).where(table.c.id == _ONLY_ROW, table.c.floor == floor)
        if connection.execute(unchanged.values(changes=table.c.changes + 1)).rowcount == 0:
            raise TryAgain("the floor was raised at the same moment")


def read_floor(connection: Connection, *, schema: str | None) -> int:
    """Return the floor; 0 if it was never raised."""
    table = floor_table(schema)
    if not inspect(connection).has_table(table.name, schema=schema):
        return 0
    return int(connection.execute(select(table.c.floor)).scalar() or 0)


def raise_floor(connection: Connection, *, schema: str | None, store_id: str, floor: int, sink: str) -> int:
    """Raise the floor after all batches that have read the old one have ended, and return it. It never falls."""
    table = floor_table(schema)
    if connection.dialect.name == "postgresql":
        # this lock queues in order: new batches would always overtake a wait for the row's lock
        name = connection.dialect.identifier_preparer.format_table(table)
        connection.exec_driver_sql(f"LOCK TABLE {name} IN EXCLUSIVE MODE")
    # written before it is read, so no database has to upgrade a lock
    if connection.execute(update(table).values(changes=table.c.changes + 1)).rowcount == 0:
        _add_floor(connection, schema)
    wanted = control.raise_floor(_floor_record(connection, schema), store_id=store_id, floor=floor, sink=sink)
    connection.execute(update(table).values(store_id=store_id, floor=wanted.floor))
    return wanted.floor


def _floor_record(connection: Connection, schema: str | None) -> FloorRecord:
    stores = set(connection.execute(select(queue_table(schema).c.store_id).distinct()).scalars())
    table = floor_table(schema)
    floor, swept_by = connection.execute(select(table.c.floor, table.c.store_id)).one()
    return FloorRecord(frozenset(stores | {swept_by} if floor else stores), floor)


def _add_floor(connection: Connection, schema: str | None) -> None:
    fields = {"id": _ONLY_ROW, "floor": 0, "store_id": None, "changes": 0}
    try:
        connection.execute(insert(floor_table(schema)).values(fields))
    except IntegrityError as error:
        raise TryAgain("another writer was first") from error
