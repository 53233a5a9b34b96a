"""SQL about the former layouts of a queue, which are also those of its subscriptions."""

from __future__ import annotations

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.schema import entry, lock, segment, segment_reader
from export_queue.core.store.schema import layout as lt
from export_queue.core.store.schema import queue as q

Found = tuple[int, int, int]
"""Number of a layout, its number of buckets, and the buckets of one unit."""

_is_open = lt.c.closed_ms.is_(None)


def open_ones(work: Reading, source: int, *, before: int) -> list[Found]:
    """Read the former layouts that may still have pending entries, oldest first.

    :param source: number of the queue to which entries are added, also for its subscriptions.
    :param before: the current layout as the caller has read it: the queue may have been altered since.
    """
    return _read(work, lt.c.queue_number == source, lt.c.layout < before, _is_open)


def former(work: Reading, source: int, *, before: int) -> list[Found]:
    """Read all former layouts, oldest first."""
    return _read(work, lt.c.queue_number == source, lt.c.layout < before)


def of_transaction(work: Reading, source: int, transaction: int) -> Found | None:
    """Find the former layout to which a transaction adds; None if it adds to the current one.

    It is the oldest layout that was current when the transaction began: a transaction adds to one layout only.
    """
    found = _read(work, lt.c.queue_number == source, _is_open, lt.c.ceased_id >= transaction)
    return found[0] if found else None


def _read(work: Reading, *conditions: sa.ColumnElement[bool]) -> list[Found]:
    statement = sa.select(lt.c.layout, lt.c.buckets, lt.c.buckets_per_range).where(*conditions).order_by(lt.c.layout)
    return [(int(number), int(buckets), int(units)) for number, buckets, units in work.connection.execute(statement)]


def cease(work: Work, source: int, found: Found, *, is_closed: bool) -> None:
    """Record that a layout is no longer the current one. The caller keeps out all commits that add to the queue.

    :param is_closed: whether the layout is empty and nobody may add to it.
    """
    now = work.now()
    # The last id is read, not drawn: a commit that has drawn one may be waiting for the caller.
    last = work.database.dialect.administration.last_id(work.connection)
    work.connection.execute(lt.insert().values((source, *found, last, now, now if is_closed else None)))


def ceased_ids(work: Reading, source: int) -> dict[int, int]:
    """Read for each open former layout the last id that had been drawn when it ceased to be current."""
    statement = sa.select(lt.c.layout, lt.c.ceased_id).where(lt.c.queue_number == source, _is_open)
    return {int(number): int(last) for number, last in work.connection.execute(statement)}


def try_close(work: Work, source: int, number: int) -> bool:
    """Close a former layout if it has no pending entries and nobody holds its locks; return whether it was closed.

    The caller has checked that nobody adds to it any more. Only a dead letter may come back into it, under a lock of
    its unit. Locking the rows of locks waits for whoever is about to do so; a later one opens the layout again.
    """
    numbers = list(
        work.connection.scalars(sa.select(q.c.number).where(sa.or_(q.c.number == source, q.c.parent == source)))
    )
    of_locks = (lock.c.queue_number.in_(numbers), lock.c.layout == number)
    order = (lock.c.fence, lock.c.first_bucket)
    held = work.connection.execute(
        sa.select(lock.c.lease_ms, lock.c.revoked).where(*of_locks).order_by(*order).with_for_update()
    ).all()
    now = work.now()
    if any(lease_ms > now and not revoked for lease_ms, revoked in held):
        return False
    this = sa.and_(lt.c.queue_number == source, lt.c.layout == number)
    work.connection.execute(sa.select(lt.c.layout).where(this).with_for_update())
    # A new statement, which sees what those have done that were waited for.
    r, g = segment_reader, segment
    in_files = r.join(g, sa.and_(g.c.transaction_id == r.c.transaction_id, g.c.number == r.c.number))
    pending = sa.or_(
        sa.exists().where(entry.c.queue_number.in_(numbers), entry.c.layout == number),
        sa.exists().select_from(in_files).where(r.c.queue_number.in_(numbers), g.c.layout == number),
    )
    if work.connection.scalar(sa.select(pending)):
        return False
    work.connection.execute(lt.update().where(this).values(closed_ms=now))
    return True


def open_again(work: Work, source: int, number: int) -> None:
    """Open a former layout again, before one of its dead letters comes back."""
    work.connection.execute(
        lt.update().where(lt.c.queue_number == source, lt.c.layout == number).values(closed_ms=None)
    )
