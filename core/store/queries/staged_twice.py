"""SQL about keys that a long transaction has added more than once; before its commit, only the latest entry stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.portable import prefix_of
from export_queue.core.store.refusals import StagedMeanwhile
from export_queue.core.store.schema import active as a
from export_queue.core.store.schema import entry as e
from export_queue.core.store.schema import load as ld
from export_queue.core.store.schema import queue as q
from export_queue.core.store.schema import segment as g
from export_queue.core.store.schema import staged_entry as s

Row = tuple[int, int, bytes, int]
"""Layout and bucket of a staged row, its key, and the number of its flush."""

_AT_ONCE = 200
"""Rows that one statement deletes: three parameters each."""
_UNSTAGE = """
    select {s}xq_unstage_v1(:tx, :queue, cast(:layouts as int[]), cast(:buckets as int[]), cast(:keys as bytea[]),
      cast(:flushes as bigint[]))
"""
_EMPTY_SEGMENTS = "select {s}xq_empty_segments_v1(:tx, cast(:numbers as int[]), cast(:known as bigint[]))"
"""On PostgreSQL functions of the store's owner do this: a writer may neither delete entries nor change segments."""


def may_repeat(work: Reading, transaction: int) -> bool:
    """Return whether a transaction may have added a key twice; the commit checks the same."""
    several = sa.select(g.c.queue_number).where(g.c.transaction_id == transaction)
    several = several.group_by(g.c.queue_number, g.c.first_bucket)
    several = several.having(sa.func.min(g.c.add_order) < sa.func.max(g.c.add_order))
    in_files = sa.select(g.c.queue_number).where(g.c.transaction_id == transaction)
    with_rows = sa.exists().where(s.c.id == transaction, s.c.queue_number.in_(in_files))
    statement = sa.select(ld.c.transaction_id).where(
        ld.c.transaction_id == transaction, ld.c.checked < ld.c.stagings, sa.or_(several.exists(), with_rows)
    )
    return work.connection.scalar(statement) is not None


def hold_stagings(work: Work, transaction: int) -> int | None:
    """Wait for stagings in progress and return the number of all so far; None if the transaction has ended."""
    held = sa.select(a.c.id).where(a.c.id == transaction).with_for_update()
    if work.connection.scalar(held) is None:
        return None
    return work.connection.scalar(sa.select(ld.c.stagings).where(ld.c.transaction_id == transaction))


def staged_segments(work: Reading, transaction: int) -> list[Mapping[str, Any]]:
    """Read the non-empty segments of a transaction in progress, by queue and first bucket."""
    statement = sa.select(g).where(g.c.transaction_id == transaction, g.c.entries > 0)
    statement = statement.order_by(g.c.queue_number, g.c.first_bucket, g.c.number)
    return work.rows(statement)


def count_rows(work: Reading, transaction: int) -> dict[int, int]:
    """Count the staged rows of a transaction by queue."""
    statement = sa.select(s.c.queue_number, sa.func.count()).where(s.c.id == transaction).group_by(s.c.queue_number)
    return {int(queue): int(count) for queue, count in work.connection.execute(statement)}


def queue_id(work: Reading, number: int) -> str | None:
    """Read the id of a queue."""
    return work.connection.scalar(sa.select(q.c.id).where(q.c.number == number))


def rows(work: Reading, transaction: int, queue: int, *, first: int, end: int, buckets: int) -> list[Row]:
    """Read the staged rows of a bucket interval.

    :param buckets: number of buckets of the layout to which the transaction adds.
    """
    # Rows of a queue with subscriptions have a hash instead of a bucket.
    remainder = s.c.hash % buckets
    bucket = sa.case((s.c.hash.is_(None), s.c.bucket), else_=(remainder + buckets) % buckets)
    statement = sa.select(s.c.layout, s.c.bucket, s.c.key, s.c.flush).where(
        s.c.id == transaction, s.c.queue_number == queue, bucket >= first, bucket < end
    )
    return [(layout, at, bytes(key), flush) for layout, at, key, flush in work.connection.execute(statement)]


def delete_rows(work: Work, transaction: int, queue: int, found: Sequence[Row]) -> None:
    """Delete staged rows.

    :raises StagedMeanwhile: one of them has been staged again, or is gone.
    """
    if not found:
        return
    if work.connection.dialect.name == "postgresql":
        columns = dict(zip(("layouts", "buckets", "keys", "flushes"), map(list, zip(*found, strict=True)), strict=True))
        call = sa.text(_UNSTAGE.replace("{s}", prefix_of(work.connection)))
        if work.connection.scalar(call, {"tx": transaction, "queue": queue, **columns}) < len(found):
            raise StagedMeanwhile
        return
    staged = sa.tuple_(s.c.layout, s.c.bucket, s.c.key, s.c.flush)
    stored = sa.tuple_(e.c.layout, e.c.bucket, e.c.key)
    for start in range(0, len(found), _AT_ONCE):
        block = list(found[start : start + _AT_ONCE])
        gone = s.delete().where(s.c.id == transaction, s.c.queue_number == queue, staged.in_(block))
        if work.connection.execute(gone).rowcount < len(block):
            raise StagedMeanwhile
        places = [row[:3] for row in block]
        work.connection.execute(e.delete().where(e.c.queue_number == queue, e.c.seq == transaction, stored.in_(places)))


def replace_segments(
    work: Work, transaction: int, emptied: Mapping[int, int], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Replace segments by new ones without the superseded entries.

    The old segments stay as empty ones, so that staging their files again has no effect.

    :param emptied: for each replaced segment its number of entries.
    :param rows: columns of the new segments, without transaction and number.
    :raises StagedMeanwhile: another process has replaced one of them.
    """
    counted = ld.update().where(ld.c.transaction_id == transaction).values(segments=ld.c.segments + len(rows))
    last = work.connection.execute(counted.returning(ld.c.segments)).scalar_one()
    if work.connection.dialect.name == "postgresql":
        call = sa.text(_EMPTY_SEGMENTS.replace("{s}", prefix_of(work.connection)))
        named = {"tx": transaction, "numbers": [*emptied], "known": [*emptied.values()]}
        if work.connection.scalar(call, named) < len(emptied):
            raise StagedMeanwhile
        emptied = {}
    for number, entries in sorted(emptied.items()):
        this = (g.c.transaction_id == transaction, g.c.number == number, g.c.entries == entries)
        if work.connection.execute(g.update().where(*this).values(entries=0, bytes=0)).rowcount != 1:
            raise StagedMeanwhile
    first = last - len(rows) + 1
    if rows:
        numbered = [{**row, "transaction_id": transaction, "number": first + i} for i, row in enumerate(rows)]
        work.connection.execute(g.insert(), numbered)


def note_checked(work: Work, transaction: int, stagings: int) -> None:
    """Record that among what the first stagings have added, no key has two entries."""
    work.connection.execute(
        ld.update().where(ld.c.transaction_id == transaction, ld.c.checked < stagings).values(checked=stagings)
    )
