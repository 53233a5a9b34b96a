"""SQL about the rows of states: readers that are never drained."""

from __future__ import annotations

import sqlalchemy as sa

from export_queue.core.store.database import Work
from export_queue.core.store.portable import visible_ids
from export_queue.core.store.schema import entry as e
from export_queue.core.store.schema import segment_reader as r
from export_queue.core.store.snapshot import Snapshot

_KEY = ("queue_number", "layout", "bucket", "key")
_ROW = (*_KEY, "seq")


def delete_replaced(work: Work, state: int, settled: Snapshot, *, cut: int, limit: int) -> int:
    """Delete rows that a later row of their key up to a cut replaces; return their number."""
    later = e.alias().c
    is_replaced = sa.exists().where(
        *(later[name] == e.c[name] for name in _KEY),
        later.seq > e.c.seq,
        later.seq <= cut,
        visible_ids(work, later.seq, settled),
    )
    return _delete(work, state, settled, is_replaced, cut=cut, limit=limit)


def delete_deletes(work: Work, state: int, settled: Snapshot, *, cut: int, limit: int) -> int:
    """Delete rows up to a cut that say that their key is gone, and return their number.

    Only if no older entry of the key is left: no row, and no file has any entry. The state has one layout.
    """
    if work.connection.scalar(sa.select(sa.exists().where(r.c.queue_number == state))):
        return 0
    older = e.alias().c
    has_older = sa.exists().where(*(older[name] == e.c[name] for name in _KEY), older.seq < e.c.seq)
    is_gone = sa.and_(e.c.value.is_(None), sa.not_(has_older))
    return _delete(work, state, settled, is_gone, cut=cut, limit=limit)


def _delete(
    work: Work, state: int, settled: Snapshot, condition: sa.ColumnElement[bool], *, cut: int, limit: int
) -> int:
    row = sa.tuple_(*(e.c[name] for name in _ROW))
    old = (e.c.queue_number == state, e.c.seq <= cut, visible_ids(work, e.c.seq, settled), condition)
    # A compaction deletes rows in another order: neither may wait for the other.
    doomed = sa.select(*(e.c[name] for name in _ROW)).where(*old).limit(limit).with_for_update(of=e, skip_locked=True)
    return work.connection.execute(e.delete().where(row.in_(doomed))).rowcount
