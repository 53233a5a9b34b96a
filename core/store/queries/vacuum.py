"""SQL of the vacuum: which files of ended transactions are in use, and since when the others are not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.portable import insert_into
from export_queue.core.store.queries.compactions import ALL
from export_queue.core.store.schema import active, invalid, low_watermark
from export_queue.core.store.schema import compacted as c
from export_queue.core.store.schema import hidden_segment as h
from export_queue.core.store.schema import load as ld
from export_queue.core.store.schema import segment as g
from export_queue.core.store.schema import segment_done as d
from export_queue.core.store.schema import segment_reader as r
from export_queue.core.store.schema import unused_file as u

_AT_ONCE = 300
"""Segments or files that one statement names, with at most three parameters each."""


def _place(table: Any) -> Any:
    return sa.tuple_(table.c.queue_number, table.c.transaction_id, table.c.number)


def _is(table: sa.Table) -> sa.ColumnElement[bool]:
    return sa.exists().where(table.c.transaction_id == g.c.transaction_id, table.c.number == g.c.number)


def _kept(before_ms: int) -> sa.CTE:
    """Find the hidden segments that may become pending again, also through several merges.

    :param before_ms: segments that were hidden before this time stay hidden.
    """
    young = sa.select(h.c.queue_number, h.c.transaction_id, h.c.number).where(h.c.hidden_ms >= before_ms)
    kept = young.join(r, _is_by(r)).cte("kept", recursive=True)
    return kept.union(young.join(kept, _is_by(kept)))


def _is_by(above: sa.FromClause) -> sa.ColumnElement[bool]:
    """Build the condition that a row of another table is the segment which replaces a hidden one."""
    return sa.and_(
        above.c.queue_number == h.c.queue_number,
        above.c.transaction_id == h.c.by_transaction,
        sa.or_(above.c.number == h.c.by_number, h.c.by_number == ALL),
    )


def ended_loads(work: Reading, limit: int, *, after: int) -> list[Mapping[str, Any]]:
    """Read long transactions with a folder that have ended permanently, in the order of their ids.

    One statement sees one moment: a commit deletes the active row and writes the readers of segments.

    :param after: the id after which reading starts.
    """
    statement = (
        sa.select(ld)
        .where(
            ld.c.transaction_id > after,
            ld.c.transaction_id.not_in(sa.select(active.c.id)),
            ld.c.transaction_id.not_in(sa.select(invalid.c.id)),
        )
        .order_by(ld.c.transaction_id)
        .limit(limit)
    )
    return work.rows(statement)


def correct_times(work: Work, *, now_ms: int, seen_by_ms: int) -> None:
    """Set times of the future to now: they were recorded while the clock was ahead, and would keep files too long.

    If the clock is behind, right times are in the future, too. So only times are set that an earlier call has found,
    at a time that is past by now.

    :param seen_by_ms: the newest time of such an earlier call.
    """
    seen = sa.select(sa.func.max(low_watermark.c.low)).where(low_watermark.c.at_ms <= seen_by_ms).scalar_subquery()
    for column, transaction in ((h.c.hidden_ms, h.c.by_transaction), (ld.c.ended_ms, ld.c.transaction_id)):
        wrong = column.table.update().where(column > now_ms, transaction < seen)
        work.connection.execute(wrong.values({column: now_ms}))


def forget_hidden(work: Work, *, before_ms: int) -> None:
    """Forget the hidden segments that cannot become pending again; none is forgotten before those that it hides.

    :param before_ms: as of :func:`_kept`.
    """
    kept = _kept(before_ms)
    stays = _place(h).in_(sa.select(kept.c.queue_number, kept.c.transaction_id, kept.c.number))
    doomed = h.delete().where(sa.not_(stays))
    # Rows that a fall-back deletes meanwhile are not returned: it needs to know what was drained of them.
    found = work.connection.execute(doomed.returning(h.c.queue_number, h.c.transaction_id, h.c.number))
    gone = [tuple(row) for row in found]
    for start in range(0, len(gone), _AT_ONCE):
        work.connection.execute(d.delete().where(_place(d).in_(gone[start : start + _AT_ONCE])))


def delete_unread(work: Work, transaction: int) -> None:
    """Delete the segments of an ended transaction that are neither pending nor hidden.

    A segment that hides others stays as long as these, which would show again without it.
    """
    named = sa.or_(h.c.by_number == g.c.number, h.c.by_number == ALL)
    hides = sa.exists().where(h.c.by_transaction == g.c.transaction_id, named)
    needed = sa.or_(_is(r), _is(h), hides)
    work.connection.execute(g.delete().where(g.c.transaction_id == transaction, sa.not_(needed)))
    is_there = sa.exists().where(g.c.transaction_id == c.c.transaction_id, g.c.number == c.c.number)
    work.connection.execute(c.delete().where(c.c.transaction_id == transaction, sa.not_(is_there)))


def files(work: Reading, transaction: int) -> set[str]:
    """Read the files of a transaction that segments have: its own ones, and those of first loads that share them."""
    # One statement each: both use their index.
    own = sa.select(g.c.file).where(g.c.transaction_id == transaction)
    return set(work.connection.scalars(own.union(sa.select(g.c.file).where(g.c.written_by == transaction))))


def folder_of_aborted(work: Reading, transaction: int) -> str | None:
    """Read the folder of an aborted transaction; None if it is in progress, has committed, or is invalid.

    A committed transaction has segments until :func:`delete_unread`, and its end is recorded then.
    """
    others = [sa.exists().where(table.c.id == transaction) for table in (active, invalid)]
    staged = sa.exists().where(g.c.transaction_id == transaction)
    aborted = sa.select(ld.c.folder).where(ld.c.transaction_id == transaction, ld.c.ended_ms.is_(None))
    return work.connection.scalar(aborted.where(~staged, *(~other for other in others)))


def files_kept(work: Reading, transactions: Sequence[int], *, before_ms: int) -> set[str]:
    """Read the files of ended transactions that are still in use after the deletions above.

    :param before_ms: as of :func:`forget_hidden`.
    """
    kept = _kept(before_ms)
    is_kept = sa.tuple_(g.c.transaction_id, g.c.number).in_(sa.select(kept.c.transaction_id, kept.c.number))
    of_these = sa.or_(g.c.transaction_id.in_(transactions), g.c.written_by.in_(transactions))
    return set(work.connection.scalars(sa.select(g.c.file).where(of_these, sa.or_(_is(r), is_kept)).distinct()))


def note_end(work: Work, transaction: int) -> None:
    """Record when a transaction was first found to have ended."""
    ended = ld.update().where(ld.c.transaction_id == transaction, ld.c.ended_ms.is_(None))
    work.connection.execute(ended.values(ended_ms=work.now()))


def unused_since(work: Reading, transactions: Sequence[int]) -> dict[str, int]:
    """Read when unused files were first found to be unused, in milliseconds."""
    statement = sa.select(u.c.file, u.c.since_ms).where(u.c.transaction_id.in_(transactions))
    return {file: int(since_ms) for file, since_ms in work.connection.execute(statement)}


def note_unused(work: Work, transaction: int, *, since: Mapping[str, int], gone: Collection[str]) -> None:
    """Record since when files of an ended transaction are unused.

    :param since: files whose time is new or corrected.
    :param gone: files that no longer exist.
    """
    doomed = sorted({*gone, *since})
    for start in range(0, len(doomed), _AT_ONCE):
        these = u.c.file.in_(doomed[start : start + _AT_ONCE])
        work.connection.execute(u.delete().where(u.c.transaction_id == transaction, these))
    if since:
        rows = [{"transaction_id": transaction, "file": file, "since_ms": at} for file, at in sorted(since.items())]
        work.connection.execute(insert_into(work, u).on_conflict_do_nothing(), rows)


def forget(work: Work, transaction: int) -> None:
    """Forget a transaction whose files are deleted, including what was drained of them."""
    for table in (d, u, ld):
        work.connection.execute(table.delete().where(table.c.transaction_id == transaction))


def forget_strays(work: Work) -> None:
    """Forget the files of forgotten transactions: one run may record a file while another forgets its transaction."""
    work.connection.execute(u.delete().where(u.c.transaction_id.not_in(sa.select(ld.c.transaction_id))))
