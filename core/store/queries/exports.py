"""SQL about what a reader has not acknowledged of one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
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
Kind = Literal["row", "file", "dead letter"]
_FROM = (0, 0, b"")


@dataclass(frozen=True, slots=True)
class Start:
    """Where a search begins: among the rows, the rows that stand for others, and the dead letters."""

    row: tuple[int, int, bytes] = _FROM
    """Layout, bucket and key."""
    covering: tuple[int, int, bytes] = _FROM
    letter: tuple[int, bytes] = (0, b"")
    """Sequence and key."""


@dataclass(frozen=True, slots=True)
class Left:
    """One place in which something of a transaction is left."""

    kind: Kind
    layout: int
    bucket: int
    """Of a file: its first bucket."""
    key: bytes = b""
    seq: int = 0
    """Of a file: the transaction that wrote it."""
    number: int = 0
    """Of a file: its number within that transaction."""


def left_of(
    work: Reading, queue: int, seqs: tuple[int, int], *, within: BucketsOf | None, start: Start, rows: int
) -> tuple[int | None, list[Left], Start | None]:
    """Find something that a reader has not acknowledged of a transaction: rows, a file, dead letters.

    It is one statement: entries move from rows to files and to dead letters, and back, and none is missed. It reads the
    rows of a few buckets, or, if these are not known, all rows of the reader from a position on, by their primary key.

    :param queue: number of the reader.
    :param seqs: the lowest and the highest sequence of the entries; a file is found if it may have the highest one.
    :param within: the buckets of all layouts of the queue that may have entries of the transaction; None if unknown.
    :param rows: maximum number of rows to find.
    :returns: the number of the queue's current layout, None if the reader was removed; what was found; and where the
        search goes on, None if nothing follows. Dead letters go on last, so that a row that becomes one is not missed.
    """
    named = [] if within is None else sorted((number, sorted(buckets)) for number, buckets in within.items())
    shape = None if within is None else tuple(len(buckets) for _, buckets in named)
    values = _values(queue, seqs[1], named) | {"least": seqs[0], "rows": rows, "page": PAGE}
    values |= {f"{kind}_{at}": part for kind in ("row", "covering") for at, part in enumerate(getattr(start, kind))}
    values |= {f"letter_{at}": part for at, part in enumerate(start.letter)}
    current = None
    shown: dict[str, Kind] = {"row": "row", "covering": "row", "dead letter": "dead letter", "file": "file"}
    by_kind: dict[str, list[Left]] = {kind: [] for kind in shown}
    starts_later = start.row > _FROM, start.covering > _FROM, start.letter > (0, b"")
    for kind, layout, bucket, key, at, number in work.connection.execute(_search(shape, starts_later), values):
        if kind == "layout":
            current = int(layout)
        else:
            by_kind[kind].append(Left(shown[kind], int(layout), int(bucket), bytes(key), int(at), int(number)))
    found = [one for of_kind in by_kind.values() for one in of_kind]
    return current, found, _following(by_kind, start, rows)


def _following(found: Mapping[str, Sequence[Left]], start: Start, rows: int) -> Start | None:
    row, covering, letters = found["row"], found["covering"], found["dead letter"]
    if len(row) == rows or len(covering) == PAGE:
        return replace(
            start,
            row=_after(row[-1]) if row else start.row,
            covering=_after(covering[-1]) if covering else start.covering,
        )
    if len(letters) == PAGE:
        return replace(start, letter=(letters[-1].seq, letters[-1].key + b"\0"))
    return None


def _after(row: Left) -> tuple[int, int, bytes]:
    return row.layout, row.bucket, row.key + b"\0"


def _values(queue: int, seq: int, named: Sequence[tuple[int, Sequence[int]]]) -> dict[str, Any]:
    values: dict[str, Any] = {"queue": queue, "seq": seq}
    values |= {f"layout_{at}": number for at, (number, _) in enumerate(named)}
    return values | {f"bucket_{at}_{i}": one for at, (_, buckets) in enumerate(named) for i, one in enumerate(buckets)}


def is_left(work: Reading, queue: int, left: Left) -> bool:
    """Return whether a row or a file that was found is still pending; one probe of a primary key."""
    if left.kind == "file":
        return bool(
            work.connection.scalar(_FILE_LEFT, {"queue": queue, "transaction": left.seq, "number": left.number})
        )
    values = {"queue": queue, "layout": left.layout, "bucket": left.bucket, "key": left.key, "seq": left.seq}
    return bool(work.connection.scalar(_ROW_LEFT, values))


PAGE = 1000
"""Maximum number of dead letters, and of retried ones, that one search returns."""
_NO_KEY = sa.literal(b"", sa.LargeBinary)
_queue, _seq = sa.bindparam("queue", type_=sa.BigInteger), sa.bindparam("seq", type_=sa.BigInteger)
Shape = tuple[int, ...] | None
"""The number of buckets in each layout; None if they are not known."""

# Built once: a wait runs them again and again, and building a statement takes several times as long as running it.
_ROW_LEFT = sa.select(
    sa.exists().where(
        e.c.queue_number == _queue,
        e.c.layout == sa.bindparam("layout", type_=sa.Integer),
        e.c.bucket == sa.bindparam("bucket", type_=sa.Integer),
        e.c.key == sa.bindparam("key", type_=sa.LargeBinary),
        e.c.seq == _seq,
    )
)
_FILE_LEFT = sa.select(
    sa.exists().where(
        r.c.queue_number == _queue,
        r.c.transaction_id == sa.bindparam("transaction", type_=sa.BigInteger),
        r.c.number == sa.bindparam("number", type_=sa.Integer),
    )
)


@lru_cache(maxsize=64)
def _search(shape: Shape, starts_later: tuple[bool, bool, bool]) -> sa.CompoundSelect[Any]:
    nothing = sa.literal_column("0", sa.Integer)
    columns = (e.c.layout, e.c.bucket, e.c.key, e.c.seq, nothing.label("number"))
    least = sa.bindparam("least", type_=sa.BigInteger)
    rows, page = sa.bindparam("rows", type_=sa.Integer), sa.bindparam("page", type_=sa.Integer)
    # the layout is in the order, so that the primary key is read in its order and the search ends at the first one
    exact = sa.select(_kind("row"), *columns).order_by(e.c.layout, e.c.bucket, e.c.key).limit(rows)
    exact = exact.where(e.c.queue_number == _queue, e.c.seq >= least, e.c.seq <= _seq, _in_buckets(e, shape))
    covering = sa.select(_kind("covering"), *columns).order_by(e.c.layout, e.c.bucket, e.c.key).limit(page)
    covering = covering.where(e.c.queue_number == _queue, e.c.covers.is_not(None), _covers(e), _in_buckets(e, shape))
    letters = sa.select(_kind("dead letter"), d.c.layout, d.c.bucket, d.c.key, d.c.seq, nothing.label("number"))
    letters = letters.order_by(d.c.seq, d.c.key).limit(page).where(d.c.queue_number == _queue, _in_buckets(d, shape))
    letters = letters.where(d.c.seq >= least, sa.or_(d.c.seq <= _seq, _covers(d)))
    if starts_later[0]:
        exact = exact.where(_from("row", e.c.layout, e.c.bucket, e.c.key))
    if starts_later[1]:
        covering = covering.where(_from("covering", e.c.layout, e.c.bucket, e.c.key))
    if starts_later[2]:
        letters = letters.where(_from("letter", d.c.seq, d.c.key))
    file = _files(shape).with_only_columns(
        _kind("file"), g.c.layout, g.c.first_bucket, _NO_KEY.label("key"), g.c.transaction_id, g.c.number
    )
    zero = (nothing.label("bucket"), _NO_KEY.label("key"), nothing.label("seq"), nothing.label("number"))
    layout = sa.select(_kind("layout"), q.c.layout, *zero).where(q.c.number == _queue)
    parts = (exact, covering, letters, file.limit(1), layout)
    return sa.union_all(*(sa.select(*part.subquery().c) for part in parts))


def _from(kind: str, *columns: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    start = [sa.bindparam(f"{kind}_{at}", type_=column.type) for at, column in enumerate(columns)]
    return sa.tuple_(*columns) >= sa.tuple_(*start)


def count_left(work: Reading, queue: int, seq: int, *, within: BucketsOf | None) -> tuple[int, int]:
    """Count the rows of a transaction that a reader has not acknowledged, and the files that may have more.

    Without buckets it reads all rows of the reader.
    """
    named = [] if within is None else sorted((number, sorted(buckets)) for number, buckets in within.items())
    shape = None if within is None else tuple(len(buckets) for _, buckets in named)
    rows = sa.select(sa.func.count()).where(e.c.queue_number == _queue, e.c.seq == _seq, _in_buckets(e, shape))
    files = _files(shape).with_only_columns(sa.func.count())
    both = sa.select(rows.scalar_subquery(), files.scalar_subquery())
    found = work.connection.execute(both, _values(queue, seq, named)).one()
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
    return sa.literal_column(f"'{kind}'", sa.Text).label("kind")


def _covers(table: sa.Table) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.covers <= _seq, table.c.seq > _seq)


def _layouts(shape: tuple[int, ...]) -> list[tuple[sa.BindParameter[int], list[sa.BindParameter[int]]]]:
    return [
        (
            sa.bindparam(f"layout_{at}", type_=sa.Integer),
            [sa.bindparam(f"bucket_{at}_{i}", type_=sa.Integer) for i in range(count)],
        )
        for at, count in enumerate(shape)
    ]


def _in_buckets(table: sa.Table, shape: Shape) -> sa.ColumnElement[bool]:
    if shape is None:
        return sa.true()
    return sa.or_(
        *(sa.and_(table.c.layout == layout, table.c.bucket.in_(buckets)) for layout, buckets in _layouts(shape))
    )


def _files(shape: Shape) -> sa.Select[Any]:
    """Select the pending files between whose sequences a transaction is.

    They may have an entry of it, or a later one that a compaction kept in its place.
    """
    joined = r.join(g, sa.and_(g.c.transaction_id == r.c.transaction_id, g.c.number == r.c.number))
    found = sa.select(g).select_from(joined)
    found = found.where(r.c.queue_number == _queue, g.c.lowest_seq <= _seq, g.c.highest_seq >= _seq)
    if shape is None:
        return found
    return found.where(
        sa.or_(
            *(
                sa.and_(g.c.layout == layout, g.c.first_bucket <= bucket, g.c.end_bucket > bucket)
                for layout, buckets in _layouts(shape)
                for bucket in buckets
            )
        )
    )
