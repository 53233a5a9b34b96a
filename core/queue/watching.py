"""Noticing that a queue has work, and that some of it is newer than what was noticed before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from export_queue.core.queue.buckets import Range
from export_queue.core.queue.queue import Queue
from export_queue.core.queue.read import waiting_in_files, waiting_ranges
from export_queue.core.store import Reading, queries
from export_queue.core.transactions import Snapshot


@dataclass(frozen=True, slots=True)
class Sighting:
    """The result of one look at a queue."""

    waiting: tuple[Range, ...]
    """Units that have work."""
    has_news: bool
    """Whether entries wait that the earlier sighting did not see; without an earlier one, whether any do."""
    snapshot: Snapshot
    retries: tuple[int, int]
    """Number and last id of the retries of dead letters, whose entries come back under the sequences they had."""


def look(
    work: Reading,
    queue: Queue,
    snapshot: Snapshot,
    within: Sequence[Range] | None = None,
    *,
    since: Sighting | None = None,
) -> Sighting:
    """Look at a queue, at the cost of one index probe a unit; entries are not counted.

    With an earlier sighting, units that have work are searched for an entry that it did not see: as long as there is
    none, the look reads all entries of these units.

    :param snapshot: taken just before.
    :param within: units that are looked at; None means all.
    :param since: an earlier sighting of the same units.
    """
    retries = queries.acts.count_retries(work, queue.id)
    waiting = waiting_ranges(work, queue, snapshot, within)
    has_news = bool(waiting)
    if waiting and since is not None and retries == since.retries:
        has_news = any(_has_news(work, of, snapshot, units, since.snapshot) for of, units in queue.by_layout(waiting))
    return Sighting(tuple(waiting), has_news, snapshot, retries)


def _has_news(work: Reading, queue: Queue, snapshot: Snapshot, units: Sequence[Range], since: Snapshot) -> bool:
    in_rows = (
        queries.entries.first_bucket(
            work, queue.number, queue.layout, snapshot, first=unit.first, end=unit.end, since=since
        )
        for unit in units
    )
    return any(at is not None for at in in_rows) or bool(waiting_in_files(work, queue, snapshot, units, since=since))
