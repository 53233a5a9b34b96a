"""SQL of the sequences that a store may still send to its sinks: below all of them, tombstones may go."""

from __future__ import annotations

import sqlalchemy as sa

from export_queue.core.store.database import Reading
from export_queue.core.store.queries.segments import lowest_seq
from export_queue.core.store.schema import dead_letter, entry
from export_queue.core.store.schema_names import prefix_of

_WINDOW = 30 * 24 * 3600 * 1000 * 1_000_000
"""How old an id may be while a lock registers it: wide, since a SQL transaction of a user's may stay open for days,
and not without end, since the lock of an application, read as an id, may be any number."""

_OLDEST_LOCK = "select min(v.id) from {s}xq_locked_id v where v.id <= %s and v.id > %s"


def oldest_lock(work: Reading, below: int) -> int | None:
    """Find the smallest id up to a bound whose lock is held, also where it is so old that no snapshot lists it.

    A transaction that is bound to a user's own has such an id when that was left open for hours: it may commit even so.
    """
    if work.connection.dialect.name != "postgresql":
        return None
    statement = _OLDEST_LOCK.format(s=prefix_of(work.connection))
    found = work.connection.exec_driver_sql(statement, (below, max(0, below - _WINDOW))).scalar()
    return None if found is None else int(found)


def lowest_waiting(work: Reading) -> tuple[int | None, int | None]:
    """Find the lowest sequence of all entries of all queues, rows that are staged too, and of all dead letters.

    In one statement, which sees one moment: between two, an entry may become a letter, or a letter an entry again.
    """
    entries = sa.select(sa.func.min(entry.c.seq)).scalar_subquery()
    letters = sa.select(sa.func.min(dead_letter.c.seq)).scalar_subquery()
    found = work.connection.execute(sa.select(entries, lowest_seq(), letters)).one()
    return min((seq for seq in found[:2] if seq is not None), default=None), found[2]
