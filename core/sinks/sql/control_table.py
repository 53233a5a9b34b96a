"""The control records: a row a queue, in statements that every database has."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, Unicode, insert, select, update
from sqlalchemy.exc import IntegrityError

from export_queue.core.sinks.control import ControlRecord, admission
from export_queue.core.sinks.sql.dialect import TryAgain
from export_queue.core.sinks.sql.statements import CONTROL_TABLE


def control_table(schema: str | None) -> Table:
    """Describe the table."""
    return Table(
        CONTROL_TABLE,
        MetaData(),
        Column("queue_id", Unicode(450), primary_key=True),
        Column("store_id", Unicode(450), nullable=False),
        Column("fence", BigInteger, nullable=False),
        Column("floor", BigInteger, nullable=False, server_default="0"),
        schema=schema,
    )


def admit(
    connection: Connection, *, schema: str | None, queue_id: str, store_id: str, fence: int, sink: str, drained: bool
) -> None:
    """Check a queue's control record and bring it up to date.

    Two drains may be the first ones: whoever comes second breaks the primary key, and is tried again.

    :raises SinkBelongsToAnother: the sink was fed by another store, or by a later state of this one.
    :raises SinkLostData: there is no control record though there was one.
    """
    table = control_table(schema)
    mine = table.c.queue_id == queue_id
    row = connection.execute(select(table).where(mine).with_for_update()).one_or_none()
    found = None if row is None else ControlRecord(row.store_id, row.fence, row.floor)
    wanted = admission(found, queue_id=queue_id, store_id=store_id, fence=fence, sink=sink, drained=drained)
    if found is None:
        fields = {"queue_id": queue_id, "store_id": store_id, "fence": fence, "floor": wanted.floor}
        try:
            connection.execute(insert(table).values(fields))
        except IntegrityError as error:
            raise TryAgain(f"another drain of {queue_id!r} was the first one") from error
    elif wanted != found:
        # again as a condition: not every database locks a row that is read
        raised = update(table).where(mine, table.c.fence == found.fence, table.c.store_id == store_id)
        if connection.execute(raised.values(fence=fence)).rowcount == 0:
            raise TryAgain(f"another drain of {queue_id!r} began at the same moment")
