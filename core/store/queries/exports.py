"""SQL about what a reader has not acknowledged of one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from export_queue.core.store.database import Reading
from export_queue.core.store.portable import visible_ids
from export_queue.core.store.schema import dead_letter as d
from export_queue.core.store.schema import entry as e
from export_queue.core.store.schema import outcome as o
from export_queue.core.store.schema import queue as q
from export_queue.core.store.schema import segment as g
from export_queue.core.store.schema import segment_reader as r
from export_queue.core.store.snapshot import Snapshot

BucketsOf = Mapping[int, Collection[int]]
"""By number of a layout, the buckets in which the transaction's keys lie."""


@dataclass(frozen=True, slots=True)
class Left:
    """One place in which something of a transaction is left."""

    kind: Literal["row", "file", "dead letter"]
    layout: int
    bucket: int
    """Of a file: its first bucket."""
    key: bytes = b""
    seq: int = 0


def left_of(
    work: Reading, queue: int, seq: int, *, within: BucketsOf | None, after: tuple[int, int] = (0, 0)
) -> tuple[int | None, list[Left]]:
    """Find something that a reader has not acknowledged of a transaction: at most one row, one file, one dead letter.

    It is one statement: entries move from rows to files and to dead letters, and back, and none is missed. It reads the
    rows of a few buckets, or, if these are not known, all rows of the reader from a position on, by their primary key.

    :param queue: number of the reader.
    :param seq: the sequence of the transaction's entries.
    :param within: the buckets of all layouts of the queue that may have entries of the transaction; None if unknown.
    :param after: layout and bucket before which no rows are searched.
    :returns: the number of the queue's current layout, None if the reader was removed; and what was found.
    """
    row = sa.select(_kind("row"), e.c.layout, e.c.bucket, e.c.key, e.c.seq)
    exact = row.where(e.c.queue_number == queue, e.c.seq == seq, _in_buckets(e, within))
    if after > (0, 0):
        exact = exact.where(sa.tuple_(e.c.layout, e.c.bucket) >= sa.tuple_(sa.literal(after[0]), sa.literal(after[1])))
    # the layout is in the order, so that the primary key is read in its order and the search ends at the first one
    exact = exact.order_by(e.c.layout, e.c.bucket, e.c.key).limit(1)
    covering = row.where(e.c.queue_number == queue, e.c.covers.is_not(None), _covers(e, seq), _in_buckets(e, within))
    letter = sa.select(_kind("dead letter"), d.c.layout, d.c.bucket, d.c.key, d.c.seq).where(
        d.c.queue_number == queue, d.c.seq >= seq, sa.or_(d.c.seq == seq, _covers(d, seq)), _in_buckets(d, within)
    )
    file = _files(queue, seq, within).with_only_columns(
        _kind("file"), g.c.layout, g.c.first_bucket, sa.literal(b"", sa.LargeBinary), g.c.lowest_seq
    )
    layout = sa.select(
        _kind("layout"), q.c.layout, sa.literal(0), sa.literal(b"", sa.LargeBinary), sa.literal(0, sa.BigInteger)
    ).where(q.c.number == queue)
    parts = (exact, covering.limit(1), letter.order_by(d.c.seq).limit(1), file.limit(1), layout)
    statement = sa.union_all(*(sa.select(*part.subquery().c) for part in parts))
    current, found = None, []
    for kind, number, bucket, key, at in work.connection.execute(statement):
        if kind == "layout":
            current = int(number)
        else:
            found.append(Left(kind, int(number), int(bucket), bytes(key), int(at)))
    return current, found


def count_left(work: Reading, queue: int, seq: int, *, within: BucketsOf | None) -> tuple[int, int]:
    """Count the rows of a transaction that a reader has not acknowledged, and the files that may have more.

    Without buckets it reads all rows of the reader.
    """
    rows = sa.select(sa.func.count()).where(e.c.queue_number == queue, e.c.seq == seq, _in_buckets(e, within))
    files = _files(queue, seq, within).with_only_columns(sa.func.count())
    found = work.connection.execute(sa.select(rows.scalar_subquery(), files.scalar_subquery())).one()
    return int(found[0]), int(found[1])


def first_letter(work: Reading, queue: int, snapshot: Snapshot) -> Left | None:
    """Find the oldest dead letter of a reader whose transaction a snapshot sees."""
    statement = sa.select(d.c.layout, d.c.bucket, d.c.key, d.c.seq)
    found = work.connection.execute(
        statement.where(d.c.queue_number == queue, visible_ids(work, d.c.seq, snapshot)).order_by(d.c.seq).limit(1)
    ).first()
    return None if found is None else Left("dead letter", found[0], found[1], bytes(found[2]), found[3])


def reason_of(work: Reading, queue: int, letter: Left) -> tuple[str, str, str]:
    """Read why an entry is a dead letter: class of the error, reason, drain; empty texts if it is none any more."""
    statement = sa.select(d.c.error_class, d.c.reason, d.c.drain_id)
    found = work.connection.execute(
        statement.where(d.c.queue_number == queue, d.c.key == letter.key, d.c.seq == letter.seq)
    ).first()
    return ("", "", "") if found is None else (found[0], found[1], found[2])


def committed_as(work: Reading, request: Any) -> int | None:
    """Read under which id a request has committed; None if it has not, or was refused."""
    statement = sa.select(o.c.id).where(o.c.request == request, o.c.status == "committed")
    return work.connection.scalar(statement)


def is_refused(work: Reading, request: Any) -> bool:
    """Return whether a request was refused, and so never commits."""
    return work.connection.scalar(sa.select(o.c.status).where(o.c.request == request)) == "refused"


def first_load_seq(work: Reading, queue: int) -> int | None:
    """Read the sequence of the entries of a subscription's last first load; None if none was made."""
    return work.connection.scalar(sa.select(q.c.first_load_seq).where(q.c.number == queue))


def _kind(kind: str) -> sa.ColumnElement[str]:
    return sa.literal(kind).label("kind")


def _covers(table: sa.Table, seq: int) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.covers <= seq, table.c.seq > seq)


def _in_buckets(table: sa.Table, within: BucketsOf | None) -> sa.ColumnElement[bool]:
    if within is None:
        return sa.true()
    return sa.or_(
        *(sa.and_(table.c.layout == number, table.c.bucket.in_(sorted(buckets))) for number, buckets in within.items())
    )


def _files(queue: int, seq: int, within: BucketsOf | None) -> sa.Select[Any]:
    """Select the pending files between whose sequences a transaction is: they may have an entry of it, or a later one
    that a compaction kept in its place.
    """
    joined = r.join(g, sa.and_(g.c.transaction_id == r.c.transaction_id, g.c.number == r.c.number))
    found = sa.select(g).select_from(joined)
    found = found.where(r.c.queue_number == queue, g.c.lowest_seq <= seq, g.c.highest_seq >= seq)
    if within is None:
        return found
    return found.where(
        sa.or_(
            *(
                sa.and_(g.c.layout == number, g.c.first_bucket <= bucket, g.c.end_bucket > bucket)
                for number, buckets in within.items()
                for bucket in sorted(buckets)
            )
        )
    )
