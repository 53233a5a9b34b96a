"""SQL of what the store knows of its sinks: how far each of them has shown to be, by the fence that it keeps."""

from __future__ import annotations

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.queries.inserts import insert_into
from export_queue.core.store.schema import queue as q
from export_queue.core.store.schema import sink_fence as f


def shown_fence(work: Reading, queue_id: str, sink: str) -> int:
    """Read the highest fence of a queue that a sink is known to have kept; 0 where nothing was drained into it."""
    statement = sa.select(f.c.fence).where(f.c.queue == queue_id, f.c.sink == sink)
    return int(work.connection.execute(statement).scalar() or 0)


def note_fence(work: Work, queue: int, sink: str, fence: int) -> None:
    """Note that a sink has kept a fence; a lower one than is noted changes nothing.

    :param queue: the queue's number. Nothing is noted for a subscription that was removed: its id may be another's.
    """
    # The row is held, so that whoever removes it deletes this fence, too.
    there = (
        sa.select(q.c.id, sa.literal(sink), sa.literal(fence, sa.BigInteger))
        .where(q.c.number == queue)
        .with_for_update(read=True, key_share=True)
    )
    statement = insert_into(work, f).from_select(["queue", "sink", "fence"], there)
    higher = statement.excluded.fence > f.c.fence
    work.connection.execute(
        statement.on_conflict_do_update(
            index_elements=[f.c.queue, f.c.sink], set_={"fence": statement.excluded.fence}, where=higher
        )
    )


def forget_fence(work: Work, queue_id: str, sink: str, fence: int) -> None:
    """Forget a fence, unless a higher one has been noted since."""
    work.connection.execute(f.delete().where(f.c.queue == queue_id, f.c.sink == sink, f.c.fence == fence))
