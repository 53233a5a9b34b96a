"""Counts that outlive the tasks of a drain: each SQL transaction that removes a chunk adds to its task's tally.

Reports of Spark's tasks are lost with a job that fails, and a task that is repeated reports anew. The tallies say what
has left the queue whatever became of the tasks, each entry once (I13).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from export_queue.core.drain.report import Counts, total
from export_queue.core.drain.request import DrainRequest
from export_queue.core.store import Reading, Work, queries


@dataclass(slots=True)
class Tally:
    """What one attempt of one task has removed; it writes a row of the store that is its own.

    :param request: parameters of the drain.
    :param number: the attempt's, which no other of the drain has.
    """

    request: DrainRequest
    number: int
    _stored: Counts | None = None
    """What the row holds; None where that is not known, as after a commit whose answer was lost."""
    _next: Counts | None = field(default=None, init=False)

    def add(self, work: Work, removed: Counts, *, now_ms: int) -> None:
        """Count what an open SQL transaction has removed.

        :param removed: without what another attempt had removed before.
        """
        self._next = None  # the answer of an earlier try may have been lost: only the row knows what it holds
        if not removed.read:
            return
        stored = self._stored
        if stored is None:
            stored = _sum(queries.reports.find_tallies(work, _name(self.request), self.number))
        self._next = Counts(**total([stored, removed]))
        queries.reports.save_tally(work, _name(self.request), self.number, asdict(self._next), now_ms=now_ms)

    def committed(self) -> None:
        """Note that the SQL transaction has taken effect."""
        self._stored = self._next


def counted(work: Reading, request: DrainRequest) -> Counts:
    """Sum up what all tasks of a drain have removed."""
    return _sum(queries.reports.find_tallies(work, _name(request)))


def forget(work: Work, request: DrainRequest) -> None:
    """Take the tallies of a drain away, in the SQL transaction that stores its report."""
    queries.reports.delete_tallies(work, _name(request))


def newly_removed(applied: Counts, *, removed: int, dead: int) -> Counts:
    """Take from the counts of a chunk what another attempt had removed before.

    :param applied: counts of the whole chunk.
    :param removed: entries of it that were still there.
    :param dead: dead letters of it that were not there yet.
    """
    if removed == applied.read:
        return applied
    if not removed:
        return Counts()
    # Operations went to the sink for the whole chunk, and cannot be told apart any more.
    return replace(applied, read=removed, acknowledged=removed - dead, dead=dead)


def _name(request: DrainRequest) -> str:
    # by attempt: a submission may be run again under the same id
    return f"{request.drain_id}/{request.owner.attempt}"


def _sum(found: list[dict[str, int | None]]) -> Counts:
    return Counts(**total(Counts(**counts) for counts in found))  # type: ignore[arg-type]
