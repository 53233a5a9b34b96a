"""The segments of a reader as rows, as ``export-queue segments`` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from export_queue.core.queue import Queue, Range
from export_queue.core.store import Reading, queries

SegmentState = Literal["visible", "hidden", "retired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSegment:
    """A segment of a reader."""

    segment: str
    """Transaction and number: its name in locks."""
    range: Range
    state: SegmentState
    """``visible``: pending. ``hidden``: replaced by another segment. ``retired``: a replacement that is drained."""
    entries: int
    left: int
    """Entries that the reader has not drained; 0 for a hidden segment."""
    bytes: int
    hidden_by: str | None
    """The segment that has replaced it, or the transaction that has moved it into another layout."""
    file: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"range": self.range.to_json()}


def list_segments(work: Reading, queue: Queue) -> list[ListedSegment]:
    """List the segments of a reader in one of its layouts, by first bucket, the newest first.

    :param queue: the reader in that layout.
    """
    which = (queue.number, queue.layout)
    merged = [row for row in queries.compactions.outputs(work, *which) if _is_unit(queue, row)]
    hidden = [row for row in queries.compactions.hidden(work, *which) if _is_unit(queue, row)]
    found = {_id(row): _listed(row, "retired") for row in merged}
    found |= {_id(row): _listed(row, "hidden", by=(row["by_transaction"], row["by_number"])) for row in hidden}
    found |= {_id(row): _listed(row, "visible", left=row["left"]) for row in queries.segments.of_reader(work, *which)}
    return [found[one] for one in sorted(found, key=lambda one: (found[one].range.first, -one[0], -one[1]))]


def _is_unit(queue: Queue, row: Mapping[str, Any]) -> bool:
    """Return whether a segment has a unit of the queue: replaced segments of earlier units only wait for clean-up."""
    first, size = row["first_bucket"], queue.buckets_per_range
    return bool(first % size == 0 and row["end_bucket"] == min(first + size, queue.buckets))


def _listed(
    row: Mapping[str, Any], state: SegmentState, *, left: int = 0, by: tuple[int, int] | None = None
) -> ListedSegment:
    return ListedSegment(
        segment=_name(*_id(row)),
        range=Range(row["first_bucket"], row["end_bucket"], row["layout"]),
        state=state,
        entries=row["entries"],
        left=int(left),
        bytes=row["bytes"],
        hidden_by=None if by is None else _name(*by),
        file=row["file"],
    )


def _id(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["transaction_id"], row["number"]


def _name(transaction: int, number: int) -> str:
    return str(transaction) if number == queries.compactions.ALL else f"{transaction}.{number}"
