"""SQL of first loads in progress: long transactions that write no cells and add to one subscription alone."""

from __future__ import annotations

import sqlalchemy as sa

from export_queue.core.store.database import Reading
from export_queue.core.store.schema import active as a


def older(work: Reading, transaction: int, subscription: int) -> list[int]:
    """List the first loads of a subscription that began before one of its first loads."""
    statement = sa.select(a.c.id).where(a.c.load == subscription, a.c.id < transaction).order_by(a.c.id)
    return list(work.connection.scalars(statement))


def of_others(work: Reading, subscription: int) -> set[int]:
    """List the first loads in progress of all other subscriptions."""
    return set(work.connection.scalars(sa.select(a.c.id).where(a.c.load != subscription)))
