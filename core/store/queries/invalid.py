"""Invalid ids: transactions that never commit and whose rows may still be there."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.schema import active, invalid


def invalid_ids(work: Reading) -> frozenset[int]:
    """Read all invalid ids."""
    return frozenset(work.connection.scalars(sa.select(invalid.c.id)))


@dataclass(frozen=True, slots=True)
class KeptInvalid:
    """An id that stays invalid since a participant could not undo what it wrote under it."""

    id: int
    since_ms: int
    left_to: str
    """The participants, with commas between them."""


def kept_invalid(work: Reading) -> list[KeptInvalid]:
    """Read the invalid ids that are kept for participants."""
    rows = work.connection.execute(
        sa.select(invalid.c.id, invalid.c.since_ms, invalid.c.left_to)
        .where(invalid.c.left_to.is_not(None))
        .order_by(invalid.c.id)
    )
    return [KeptInvalid(*row) for row in rows]


def forget_invalid(work: Work, transaction: int) -> bool:
    """Forget an id that was kept for participants; False if there is none."""
    done = work.connection.execute(
        sa.update(invalid).where(invalid.c.id == transaction, invalid.c.left_to.is_not(None)).values(left_to=None)
    )
    return done.rowcount > 0


def end_all(work: Work) -> int:
    """End all transactions with an active row; what long ones staged is deleted by the next clean-up.

    :returns: how many there were.
    """
    staged = sa.select(active.c.id, sa.literal(work.now()), sa.null()).where(
        active.c.kind == "long", active.c.id.not_in(sa.select(invalid.c.id))
    )
    count = work.connection.execute(sa.select(sa.func.count()).where(active.c.id == active.c.owner)).scalar_one()
    work.connection.execute(invalid.insert().from_select(["id", "since_ms", "left_to"], staged))
    work.connection.execute(active.delete())
    return int(count)
