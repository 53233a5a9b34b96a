"""The control records: a row a queue, one a table, and one for all of them, in statements that every database has.

The row of the whole sink has the floor. A batch reads it in its own transaction, and keeps it as it is to its end:
a sweep that raises it waits for the batches that have read the old floor, and then finds their rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
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

from export_queue.core.sinks import control
from export_queue.core.sinks.control import ControlRecord, FloorRecord
from export_queue.core.sinks.sql.dialects.protocol import TryAgain
from export_queue.core.sinks.sql.statements import CONTROL_TABLE, lock_control

WHOLE_SINK = "*"
"""Stands for all queues; no queue has this id."""
TABLES = "/"
"""Begins the name of a table's row; no queue's id does."""
LOSSES = "//"
"""Begins the name of the row that a lost table leaves when it is readmitted."""


@cache
def control_table(schema: str | None) -> Table:
    """Describe the table."""
    return Table(
        CONTROL_TABLE,
        MetaData(),
        Column("queue_id", Unicode(450), primary_key=True),
        Column("store_id", Unicode(450), nullable=False),
        Column("fence", BigInteger, nullable=False),
        # of the whole sink's row; in a queue's row the fence of its first drain, or of its last readmission
        Column("floor", BigInteger, nullable=False, server_default="0"),
        schema=schema,
    )


def admit(
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
    """Check a queue's control record and bring it up to date.

    Of two drains that are the first ones, the second breaks the primary key, and is tried again.

    :raises SinkBelongsToAnother: the sink was fed by another store, or by a later state of this one.
    :raises SinkLostData: the control record is gone, or older than it was.
    """
    table = control_table(schema)
    mine = table.c.queue_id == queue_id
    with held_floor(connection, schema, locks_reads=locks_reads) as (floor, _):
        row = connection.execute(select(table).where(mine).with_for_update()).one_or_none()
        found = None if row is None else ControlRecord(row.store_id, row.fence)
        wanted = control.check_owner(found, queue_id=queue_id, store_id=store_id, fence=fence, sink=sink, shown=shown)
        since = fence if row is None or readmit else row.floor
        if row is None or found is None:
            try:
                connection.execute(insert(table).values(queue_id=queue_id, store_id=store_id, fence=fence, floor=since))
            except IntegrityError as error:
                raise TryAgain(f"another drain of {queue_id!r} was the first one") from error
        elif wanted != found or since != row.floor:
            # again as a condition: not every database locks a row that is read
            raised = update(table).where(mine, table.c.fence == found.fence, table.c.store_id == store_id)
            if connection.execute(raised.values(fence=fence, floor=since)).rowcount == 0:
                raise TryAgain(f"another drain of {queue_id!r} began at the same moment")
        control.register_store(_floor_record(connection, schema, floor), store_id=store_id, sink=sink)


def read_control(connection: Connection, *, schema: str | None, queue_id: str) -> ControlRecord | None:
    """Read a queue's control record; None where there is none, or no table of such records."""
    table = control_table(schema)
    if not inspect(connection).has_table(CONTROL_TABLE, schema=schema):
        return None
    row = connection.execute(select(table).where(table.c.queue_id == queue_id)).one_or_none()
    return None if row is None else ControlRecord(row.store_id, row.fence)


@contextmanager
def held_floor(
    connection: Connection, schema: str | None, *, locks_reads: bool, beside: Sequence[ColumnElement[Any]] = ()
) -> Iterator[tuple[int, Sequence[Any]]]:
    """Read the floor, and keep it from being raised until the transaction ends.

    :param locks_reads: whether the database keeps a row that was read as it is, on demand or always. Else the row is
        written at the end of the block, on the condition that the floor has not changed since.
    :param beside: further values to read in the same statement.
    :returns: the floor, and those values.
    :raises TryAgain: it is not.
    """
    table = control_table(schema)
    mine = table.c.queue_id == WHOLE_SINK
    reading = select(table.c.floor, *beside).where(mine)
    row = connection.execute(reading.with_for_update(read=True) if locks_reads else reading).one_or_none()
    if row is None:
        _add_whole(connection, schema)
        row = connection.execute(reading).one()
    found, *values = row
    floor = found or 0
    yield floor, values
    if not locks_reads:
        unchanged = update(table).where(mine, table.c.floor == floor)
        if connection.execute(unchanged.values(fence=table.c.fence + 1)).rowcount == 0:
            raise TryAgain("the floor was raised at the same moment")


def raise_floor(connection: Connection, *, schema: str | None, store_id: str, floor: int, sink: str) -> int:
    """Raise the floor, once all batches that have read the old one are through; it never falls.

    :returns: where it is now.
    :raises SinkBelongsToAnother: another store feeds the sink, too.
    """
    table = control_table(schema)
    mine = table.c.queue_id == WHOLE_SINK
    if connection.dialect.name == "postgresql":
        # waits in turn: for a lock of the row alone it would be overtaken by batch after batch
        connection.exec_driver_sql(lock_control(schema))
    # written before it is read: a lock that no database upgrades
    if connection.execute(update(table).where(mine).values(fence=table.c.fence + 1)).rowcount == 0:
        _add_whole(connection, schema)
    found = _floor_record(connection, schema, connection.execute(select(table.c.floor).where(mine)).scalar_one())
    wanted = control.raise_floor(found, store_id=store_id, floor=floor, sink=sink)
    connection.execute(update(table).where(mine).values(store_id=store_id, floor=wanted.floor))
    return wanted.floor


def _floor_record(connection: Connection, schema: str | None, floor: int) -> FloorRecord:
    """Read which stores feed the sink; of a sink that was swept also the one that did it."""
    table = control_table(schema)
    rows = connection.execute(select(table.c.queue_id, table.c.store_id).where(table.c.queue_id.not_like(f"{TABLES}%")))
    return FloorRecord(frozenset(row.store_id for row in rows if floor or row.queue_id != WHOLE_SINK), floor)


def _add_whole(connection: Connection, schema: str | None) -> None:
    fields = {"queue_id": WHOLE_SINK, "store_id": WHOLE_SINK, "fence": 0, "floor": 0}
    try:
        connection.execute(insert(control_table(schema)).values(fields))
    except IntegrityError as error:
        raise TryAgain("another writer was the first one") from error
