"""SQL about states: readers that are never drained."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.portable import visible_ids
from export_queue.core.store.schema import entry as e
from export_queue.core.store.schema import segment as g
from export_queue.core.store.schema import segment_reader as r
from export_queue.core.store.snapshot import Snapshot

_KEY = ("queue_number", "layout", "bucket", "key")
_ROW = (*_KEY, "seq")


@dataclass(frozen=True, slots=True)
class StoredInLayout:
    """How many entries of a state a layout has."""

    layout: int
    rows: int
    lowest_seq: int | None
    """Of the rows."""
    files: int
    """Parts of files."""
    entries_in_files: int


def count_stored(work: Reading, state: int, snapshot: Snapshot) -> list[StoredInLayout]:
    """Count by layout what a state has in rows that a snapshot sees, and in files.

    It is one statement, so that rows which a compaction merges at the same time are counted once.
    """
    none: sa.ColumnElement[int] = sa.literal_column("0", sa.Integer)
    in_rows = (
        sa.select(
            e.c.layout.label("layout"),
            sa.func.count().label("rows"),
            sa.func.min(e.c.seq).label("lowest"),
            none.label("files"),
            none.label("entries"),
        )
        .where(e.c.queue_number == state, visible_ids(work, e.c.seq, snapshot))
        .group_by(e.c.layout)
    )
    of_segment = sa.and_(g.c.transaction_id == r.c.transaction_id, g.c.number == r.c.number)
    in_files = (
        sa.select(g.c.layout, none, sa.cast(sa.null(), sa.BigInteger), sa.func.count(), sa.func.sum(g.c.entries))
        .select_from(r.join(g, of_segment))
        .where(r.c.queue_number == state)
        .group_by(g.c.layout)
    )
    both = sa.union_all(in_rows, in_files).subquery().c
    summed = (sa.func.sum(both.rows), sa.func.min(both.lowest), sa.func.sum(both.files), sa.func.sum(both.entries))
    statement = sa.select(both.layout, *summed).group_by(both.layout).order_by(both.layout)
    return [
        StoredInLayout(int(layout), int(rows), lowest, int(files), int(entries))
        for layout, rows, lowest, files, entries in work.connection.execute(statement)
    ]


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
