"""One batch at a sink: operations are refused before they are sent, superseded, or written (pure).

The drain and all sinks share this code. A sink only has to write operations on distinct records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter
from typing import TypeVar

from export_queue.core.errors import AmbiguousRecord, SinkConfigurationError
from export_queue.core.sinks.naming import first_collection
from export_queue.core.sinks.operations import MAX_SEQ, Operations, collapse, ttl_problem
from export_queue.core.sinks.protocol import ApplyResult, Rejection

Reasons = dict[int, str]
"""Reasons why operations can never be written, by position."""

Refusal = TypeVar("Refusal")


@dataclass(frozen=True, slots=True)
class Round:
    """Operations on distinct records, and the operations of the same batch that they supersede."""

    batch: Operations
    operations: Operations
    """The operations to send."""
    positions: Sequence[int]
    """Position of each of them in the batch."""
    superseded: Sequence[int]
    """Positions in the batch of the superseded operations."""

    def freed_by(self, rejected: Iterable[int]) -> list[int]:
        """Return the operations that rejected ones had superseded, to be tried next (I6).

        :param rejected: positions in the batch.
        """
        vacant = {_record(self.batch, position) for position in rejected}
        return [position for position in self.superseded if _record(self.batch, position) in vacant]


def next_round(batch: Operations, pending: Sequence[int]) -> Round:
    """Choose the operation of each record that is sent next.

    :param batch: operations, possibly several for one record.
    :param pending: positions of the operations that are neither sent nor rejected, ascending.
    :raises AmbiguousRecord: two entries put different documents into one record at one sequence. Its ``positions`` are
        those in the batch.
    """
    offered = batch if len(pending) == len(batch) else batch.take(pending)
    try:
        chosen, dropped = collapse(offered)
    except AmbiguousRecord as error:
        one, other = error.positions
        error.positions = pending[one], pending[other]
        raise
    gone = set(dropped)
    positions = [position for i, position in enumerate(pending) if i not in gone] if gone else pending
    return Round(batch, chosen, positions, [pending[i] for i in dropped])


def isolate(
    count: int,
    attempt: Callable[[range], Refusal | None],
    *,
    weigh: Callable[[int], int] | None = None,
) -> Iterator[tuple[int, Refusal]]:
    """Try operations together. If they are refused, halve them until each refused operation is alone.

    :param count: number of operations.
    :param attempt: tries the operations at some positions; returns why they were refused as a whole, or None.
    :param weigh: returns the weight of an operation; both halves get about the same weight. By default all weigh 1.
    :returns: position and refusal of each refused operation, ascending, each as soon as it is found.
    """
    parts = [range(count)] if count else []
    while parts:
        part = parts.pop()
        refusal = attempt(part)
        if refusal is None:
            continue
        if len(part) == 1:
            yield part.start, refusal
            continue
        middle = len(part) // 2
        if weigh is not None:
            ends = list(accumulate(map(weigh, part)))
            middle = min(max(bisect_left(ends, ends[-1] / 2), 1), len(part) - 1)
        parts += (part[middle:], part[:middle])


def apply_batch(
    operations: Operations, *, reasons: Reasons, write: Callable[[Operations], ApplyResult], ttl: bool = False
) -> ApplyResult:
    """Apply a batch that may contain several operations on one record.

    Superseded operations count as stale. If the sink rejects an operation, those that it superseded are tried next.

    :param operations: the batch, with the sink's own targets as collections.
    :param reasons: reasons why operations are rejected without being sent.
    :param write: writes operations on distinct records.
    :param ttl: whether ``write`` supports times to live; if not, puts that have one are rejected.
    :raises AmbiguousRecord: two entries put different documents into one record at one sequence.
    """
    if not len(operations):
        return ApplyResult(0, 0)
    if operations.ttls is not None:
        refuse_ttls(operations, reasons, taken=ttl)
    if not reasons and operations.is_distinct:
        result = write(operations)
        return replace(result, rejected=tuple(sorted(result.rejected, key=attrgetter("position"))))
    rejected = dict(reasons)
    pending: Sequence[int] = [i for i in range(len(operations)) if i not in rejected]
    written = 0
    while pending:
        current = next_round(operations, pending)
        result = write(current.operations)
        written += result.written
        refused = {current.positions[rejection.position]: rejection.reason for rejection in result.rejected}
        rejected |= refused
        pending = current.freed_by(refused)
    return ApplyResult(
        written,
        len(operations) - written - len(rejected),
        tuple(Rejection(position, rejected[position]) for position in sorted(rejected)),
    )


def retarget(operations: Operations, targets: Mapping[str, str]) -> Operations:
    """Replace each collection by the sink's own target, such as a table or a template of keys.

    Two collections may share a target. Records are identified by target and id.
    """
    names = operations.collections
    if names and names.count(names[0]) == len(names):  # the usual case
        return replace(operations, collections=[targets.get(names[0], "")] * len(names))
    return replace(operations, collections=[targets.get(name, "") for name in names])


def refuse_seqs(operations: Operations, reasons: Reasons) -> None:
    """Refuse sequences whose rank is no signed 64-bit integer."""
    if not len(operations) or (min(operations.seqs) >= 0 and max(operations.seqs) <= MAX_SEQ):
        return
    for i, seq in enumerate(operations.seqs):
        if not 0 <= seq <= MAX_SEQ:
            reasons.setdefault(i, f"seq {seq} is not between 0 and {MAX_SEQ}")


def refuse_ttls(operations: Operations, reasons: Reasons, *, taken: bool) -> None:
    """Refuse times to live that are not valid, or all of them.

    :param taken: whether the sink supports times to live.
    """
    for i, ttl in enumerate(operations.ttls or ()):
        if ttl is None:
            continue
        if not taken:
            reasons.setdefault(i, "this sink keeps records until they are deleted: it takes no put with a time to live")
        elif operations.documents[i] is None:
            reasons.setdefault(i, "a delete has no time to live")
        elif problem := ttl_problem(ttl):
            reasons.setdefault(i, problem)


def refuse_lengths(operations: Operations, reasons: Reasons, *, id_bytes: int, document_bytes: int) -> None:
    if max(map(len, operations.ids), default=0) > id_bytes:
        for i, record in enumerate(operations.ids):
            if len(record) > id_bytes:
                reasons.setdefault(i, f"the id has {len(record)} bytes, at most {id_bytes} are possible")
    if max(map(len, filter(None, operations.documents)), default=0) > document_bytes:
        for i, document in enumerate(operations.documents):
            if document is not None and len(document) > document_bytes:
                reasons.setdefault(i, f"the document has {len(document)} bytes, at most {document_bytes} are possible")


def refuse_collections(
    operations: Operations, reasons: Reasons, refusals: Mapping[str, str], *, queue_id: str | None = None
) -> None:
    """Refuse operations whose collection cannot be a target.

    :param refusals: the reason for each refused collection.
    :param queue_id: the queue that is drained.
    :raises SinkConfigurationError: the queue's default collection is refused: all entries would be dead letters.
    """
    if refusals:
        if queue_id is not None and (own := first_collection(queue_id)) in refusals:
            error = SinkConfigurationError(
                f"queue {queue_id!r}, whose id names the collection: {refusals[own]}",
                hint="give the sink another template (table=, index=), or an exporter that names the collection",
            )
            error.is_unwritten = True
            raise error
        for i, name in enumerate(operations.collections):
            if name in refusals:
                reasons.setdefault(i, refusals[name])


def _record(operations: Operations, position: int) -> tuple[str, bytes]:
    return operations.collections[position], operations.ids[position]
