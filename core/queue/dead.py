"""Entries that were set aside because exporter or sink rejected them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from export_queue.core.queue.options import Queue
from export_queue.core.queue.read import Position
from export_queue.core.store import Work
from export_queue.core.store import entries as sql


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One entry that was set aside; it keeps its sequence."""

    position: Position
    value: bytes | None
    error_class: str
    reason: str
    """The exporter's or sink's own words."""
    drain: str
    """Token of the drain that set it aside."""

    def __repr__(self) -> str:  # a value is shown only on request
        return f"DeadLetter({self.position.key!r}, seq={self.position.seq}, {self.error_class}: {self.reason})"


def bury(work: Work, queue: Queue, letters: Sequence[DeadLetter]) -> None:
    """Keep entries as dead letters, in the SQL transaction that removes them from the queue (I6)."""
    sql.insert_dead(
        work,
        [
            {
                "queue_number": queue.number,
                "layout": queue.layout,
                "bucket": letter.position.bucket,
                "key": letter.position.key,
                "seq": letter.position.seq,
                "value": letter.value,
                "error_class": letter.error_class,
                "reason": letter.reason,
                "drain": letter.drain,
            }
            for letter in letters
        ],
    )


def dead_letters(work: Work, queue: Queue, *, limit: int = 100) -> list[DeadLetter]:
    """Read dead letters, oldest entries first."""
    return [
        DeadLetter(
            Position(row["bucket"], bytes(row["key"]), row["seq"]),
            row["value"],
            row["error_class"],
            row["reason"],
            row["drain"],
        )
        for row in sql.select_dead(work, queue.number, limit=limit)
    ]


def count_dead(work: Work, queue: Queue, *, drain: str | None = None) -> int:
    """Count a queue's dead letters.

    :param drain: only those that the drain of this token set aside.
    """
    return sql.count_dead(work, queue.number, drain=drain)
