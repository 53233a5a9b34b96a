"""SQL about the layouts that a queue had before its current one; those of its subscriptions are its own."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.schema import entry, lock, segment, segment_reader
from export_queue.core.store.schema import layout as lt
from export_queue.core.store.schema import queue as q

Found = tuple[int, int, int]
"""Its number, its buckets, and those of one unit."""

_found = (lt.c.layout, lt.c.buckets, lt.c.buckets_per_range)
_is_open = lt.c.closed_ms.is_(None)


def open_ones(work: Reading, source: int, *, before: int) -> list[Found]:
    """Read the former layouts in which entries may still wait, oldest first.

    :param source: number of the queue that is added to, also for its subscriptions.
    :param before: the current one, as it was read: the queue may have been altered since.
    """
    return _read(work, lt.c.queue_number == source, lt.c.layout < before, _is_open)


def former(work: Reading, source: int, *, before: int) -> list[Found]:
    """Read all former layouts, oldest first."""
    return _read(work, lt.c.queue_number == source, lt.c.layout < before)


def of_transaction(work: Reading, source: int, transaction: int) -> Found | None:
    """Find the former layout in which a transaction adds; None if that is the current one.

    It is the oldest one that was current when the transaction had begun: all that a transaction adds lies in one.
    """
    found = _read(work, lt.c.queue_number == source, _is_open, lt.c.ceased_id >= transaction)
    return found[0] if found else None


def _read(work: Reading, *conditions: sa.ColumnElement[bool]) -> list[Found]:
    statement = sa.select(*_found).where(*conditions).order_by(lt.c.layout)
    return [(int(number), int(buckets), int(units)) for number, buckets, units in work.connection.execute(statement)]


def cease(work: Work, source: int, found: Found, *, is_closed: bool) -> None:
    """Note that a layout is not the current one any more; the caller keeps out all who add to the queue.

    :param is_closed: whether nothing is in it, and nobody may add to it.
    """
    number, buckets, units = found
    now = work.now()
    row: dict[str, Any] = {
        "queue_number": source,
        "layout": number,
        "buckets": buckets,
        "buckets_per_range": units,
        # Read, and not drawn: a commit that has drawn one may wait for the caller to end.
        "ceased_id": work.database.dialect.administration.last_id(work.connection),
        "ceased_ms": now,
        "closed_ms": now if is_closed else None,
    }
    work.connection.execute(lt.insert().values(**row))


def ceased_ids(work: Reading, source: int) -> dict[int, int]:
    """Read of open former layouts the last ids that had been drawn when they ceased to be current."""
    statement = sa.select(lt.c.layout, lt.c.ceased_id).where(lt.c.queue_number == source, _is_open)
    return {int(number): int(last) for number, last in work.connection.execute(statement)}


def try_close(work: Work, source: int, number: int) -> bool:
    """Close a former layout if nothing waits in it and nobody works in it; tells whether it was done.

    Nobody adds to it any more: the caller has seen that. Only a dead letter of it may come back, under a lock of its
    unit: by the rows of the locks whoever is about to do so is waited for, and who comes later opens the layout again.
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
    # A new statement, which sees what those have done who were waited for.
    in_files = segment_reader.join(
        segment,
        sa.and_(
            segment.c.transaction_id == segment_reader.c.transaction_id, segment.c.number == segment_reader.c.number
        ),
    )
    waits = sa.or_(
        sa.exists().where(entry.c.queue_number.in_(numbers), entry.c.layout == number),
        sa.exists().select_from(in_files).where(segment_reader.c.queue_number.in_(numbers), segment.c.layout == number),
    )
    if work.connection.scalar(sa.select(waits)):
        return False
    work.connection.execute(lt.update().where(this).values(closed_ms=now))
    return True


def open_again(work: Work, source: int, number: int) -> None:
    """Let entries wait in a former layout again, before one of its dead letters comes back."""
    work.connection.execute(
        lt.update().where(lt.c.queue_number == source, lt.c.layout == number).values(closed_ms=None)
    )
