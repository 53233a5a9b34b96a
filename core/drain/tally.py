"""Counts that survive the tasks of a drain: each SQL transaction that removes a chunk adds to its task's tally.

The reports of Spark's tasks are lost if the job fails, and a repeated task reports again. The tallies count each entry
that left the queue exactly once, whatever happened to the tasks (I13).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from export_queue.core.drain.report import Counts, total
from export_queue.core.drain.request import DrainRequest
from export_queue.core.store import Reading, Work, queries


@dataclass(slots=True)
class Tally:
    """Counts what one attempt of one task removed, in its own row of the store.

    :param request: parameters of the drain.
    :param number: number of the attempt, unique within the drain.
    """

    request: DrainRequest
    number: int
    _stored: Counts | None = None
    """What the row holds; None if it is not known, for example after a commit whose answer was lost."""
    _next: Counts | None = field(default=None, init=False)

    def add(self, work: Work, removed: Counts, *, now_ms: int) -> None:
        """Count what an open SQL transaction removes.

        :param removed: without the entries that another attempt removed before.
        """
        self._next = None  # the answer of an earlier try may have been lost: the row must be read
        if not removed.read:
            return
        stored = self._stored
        if stored is None:
            stored = _sum(queries.reports.find_tallies(work, _name(self.request), self.number))
        self._next = Counts(**total([stored, removed]))
        queries.reports.save_tally(work, _name(self.request), self.number, asdict(self._next), now_ms=now_ms)

    def committed(self) -> None:
        """Note that the SQL transaction was committed."""
        self._stored = self._next


def counted(work: Reading, request: DrainRequest) -> Counts:
    """Sum up what all tasks of a drain removed."""
    return _sum(queries.reports.find_tallies(work, _name(request)))


def forget(work: Work, request: DrainRequest) -> None:
    """Delete the tallies of a drain, in the SQL transaction that stores its report."""
    queries.reports.delete_tallies(work, _name(request))


def newly_removed(applied: Counts, *, removed: int, dead: int) -> Counts:
    """Subtract from the counts of a chunk what another attempt removed before.

    :param applied: counts of the whole chunk.
    :param removed: entries of the chunk that were still queued.
    :param dead: dead letters of the chunk that did not exist yet.
    """
    if removed == applied.read:
        return applied
    if not removed:
        return Counts()
    # Operations were sent for the whole chunk, and cannot be attributed to its entries.
    return replace(applied, read=removed, acknowledged=removed - dead, dead=dead)


def _name(request: DrainRequest) -> str:
    # per attempt: a submission may run again under the same id
    return f"{request.drain_id}/{request.owner.attempt}"


def _sum(found: list[dict[str, int | None]]) -> Counts:
    return Counts(**total(Counts(**counts) for counts in found))  # type: ignore[arg-type]
