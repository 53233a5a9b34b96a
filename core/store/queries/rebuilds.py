"""SQL about rebuilds: which reader replaces which, and how far the replacement is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.schema import rebuild as r

OVER = ("finished", "cancelled")
"""Phases after which a new rebuild of the reader may start."""
_TURNING = ("switching", "returning")
"""Phases in which pointers change."""


def find(work: Reading, reader: str) -> Mapping[str, Any] | None:
    """Read the last rebuild of a reader."""
    return next(iter(work.rows(sa.select(r).where(r.c.reader == reader))), None)


def all_of(work: Reading) -> list[Mapping[str, Any]]:
    """Read the last rebuild of each reader, by name."""
    return work.rows(sa.select(r).order_by(r.c.reader))


def add(work: Work, row: Mapping[str, Any]) -> bool:
    """Store a new rebuild.

    :returns: False if the reader has a rebuild that is not over.
    """
    work.connection.execute(r.delete().where(r.c.reader == row["reader"], r.c.phase.in_(OVER)))
    if find(work, row["reader"]) is not None:
        return False
    now = work.now()
    work.connection.execute(r.insert().values(**row, begun_ms=now, changed_ms=now))
    return True


def move(work: Work, reader: str, phase: str, *, before: Collection[str], step: str, of_step: bool = False) -> bool:
    """Change the phase of a rebuild.

    :param before: the phases from which it may change.
    :param step: the run of a step that changes it.
    :param of_step: only if the same run has set the phase before.
    :returns: whether it was changed.
    """
    statement = r.update().where(r.c.reader == reader, r.c.phase.in_(before))
    if of_step:
        statement = statement.where(r.c.step == step)
    return work.connection.execute(statement.values(phase=phase, step=step, changed_ms=work.now())).rowcount == 1


def turning(work: Reading, readers: Collection[str]) -> list[str]:
    """Return which of some readers have a rebuild whose pointers are being changed, by name."""
    found = sa.select(r.c.reader).where(r.c.reader.in_(readers), r.c.phase.in_(_TURNING)).order_by(r.c.reader)
    return [row["reader"] for row in work.rows(found)]


def needing(work: Reading, reader: str) -> Mapping[str, Any] | None:
    """Read the rebuild that is not over and needs a reader: it replaces this reader, or fills its target by it.

    While a rebuild starts, its new reader may still be somebody else's subscription of that name.
    """
    filled = sa.and_(r.c.new_reader == reader, r.c.phase != "filling")
    found = sa.select(r).where(sa.or_(r.c.reader == reader, filled), r.c.phase.not_in(OVER))
    return next(iter(work.rows(found)), None)
