"""The guard ``fence`` in SQL: one row per unit, which each batch compares in its transaction.

The row is changed, not only read: a transaction that changes it holds its lock until it ends, on every database and at
every isolation level. So a claim waits for the batch that is being written, and a batch after the claim finds another
fence.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from export_queue.core.sinks.guards import Claim, needs_higher_fence, overtaken_error
from export_queue.core.sinks.sql import tables
from export_queue.core.sinks.sql.control_tables import unit_table
from export_queue.core.sinks.sql.dialects import KEPT_OUT, Dialect, Poison, TryAgain
from export_queue.core.sinks.sql.marks import note_rows
from export_queue.core.sinks.sql.rows import Rows


def claim_units(connection: Connection, schema: str | None, claims: Sequence[Claim], sink: object) -> None:
    """Raise the fences of units, or raise LeaseLost if a unit has a higher fence."""
    units = unit_table(schema)
    for claim in sorted(claims):  # in one order, so that two drains cannot lock each other out
        mine = units.c.unit == claim.unit
        found = connection.execute(select(units.c.fence).where(mine).with_for_update()).scalar_one_or_none()
        if not needs_higher_fence(found, claim, sink):
            continue
        if found is None:
            try:
                connection.execute(insert(units).values(unit=claim.unit, fence=claim.fence, batches=0))
            except IntegrityError as error:
                raise TryAgain(f"another drain was the first to claim {claim.unit}") from error
            continue
        # compared again in the condition: not every database locks a row that is read
        raised = update(units).where(mine, units.c.fence == found).values(fence=claim.fence)
        if connection.execute(raised).rowcount != 1:
            raise TryAgain(f"another drain claims {claim.unit} at the same moment")


def write_under(
    connection: Connection, table: tables.Table, rows: Rows, *, dialect: Dialect, claim: Claim, sink: object
) -> int:
    """Write all rows and return their number, or raise LeaseLost if their unit has another fence than the claim's."""
    units = unit_table(table.schema)
    mine = units.c.unit == claim.unit
    held = update(units).where(mine, units.c.fence == claim.fence).values(batches=units.c.batches + 1)
    if connection.execute(held).rowcount != 1:
        found = connection.execute(select(units.c.fence).where(mine)).scalar_one_or_none()
        raise overtaken_error(found, claim, sink)
    put, gone = rows.puts(), rows.deletes()
    if (len(put) and dialect.upsert(connection, table, put) != len(put)) or (
        len(gone) and dialect.delete(connection, table, gone)
    ):
        raise Poison(KEPT_OUT)
    note_rows(connection, table, deleted=len(gone) > 0)
    return len(rows)
