"""SQL about readers whose entries a compaction may fold, and how far drains have looked at these."""

from __future__ import annotations

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.queries.inserts import insert_into
from export_queue.core.store.schema import fold as f


def begin(work: Work, queue: int, *, after: int | None) -> None:
    """Let a reader's entries be folded, or begin anew.

    :param after: only entries above this id are; None for none, until a drain has looked.
    """
    put = insert_into(work, f).values(queue_number=queue, after=after)
    work.connection.execute(put.on_conflict_do_update(index_elements=[f.c.queue_number], set_={"after": after}))


def end(work: Work, queue: int) -> None:
    """Let them not be folded any more."""
    work.connection.execute(f.delete().where(f.c.queue_number == queue))


def are_folded(work: Reading, queue: int) -> bool:
    """Tell whether a reader's entries may be folded."""
    return work.connection.execute(sa.select(f.c.queue_number).where(f.c.queue_number == queue)).first() is not None


def note_look(work: Work, queue: int) -> None:
    """Note that a drain has looked, or may have: what is there by now is not folded."""
    seen = work.database.dialect.draw(work.connection)
    higher = sa.or_(f.c.after.is_(None), f.c.after < seen)
    work.connection.execute(f.update().where(f.c.queue_number == queue, higher).values(after=seen))


def after(work: Reading, queue: int) -> int | None:
    """Read the id above which a reader's entries may be folded; None where none may be."""
    found = work.connection.execute(sa.select(f.c.after).where(f.c.queue_number == queue)).scalar()
    return None if found is None else int(found)
