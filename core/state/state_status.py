"""What a state has in the store: whether it is complete, and how much no compaction has merged yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from export_queue.core.queue import Queue
from export_queue.core.store import Database, queries
from export_queue.core.transactions import take_snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStatus:
    """How complete the state of a queue is, and how it is stored."""

    id: str
    """The id of the reader that is the state."""
    first_load: Literal["missing", "made", "waived"] | None
    """Whether it received what was committed before it began; None if it began with its queue."""
    history: float
    """How long former values are kept, in seconds."""
    rows: int
    """Committed entries that are rows: no compaction has merged them into a file."""
    oldest_row: int | None
    """The lowest sequence among these rows."""
    files: int
    """Parts of files; each unit has its own part of a file."""
    in_older_layouts: int | None
    """Entries in buckets that the queue had before, in rows and in files; None if it had no others."""

    @property
    def is_complete(self) -> bool:
        """Whether it has what was committed before it began: False until its first load is made."""
        return self.first_load != "missing"


def status_of(database: Database, state: Queue) -> StateStatus:
    """Count what a state has in the store. This reads the primary keys of its rows.

    :param state: the reader that is the state.
    """
    snapshot = take_snapshot(database)
    with database.read() as work:
        found = queries.states.count_stored(work, state.number, snapshot)
    lowest = [one.lowest_seq for one in found if one.lowest_seq is not None]
    older = sum(one.rows + one.entries_in_files for one in found if one.layout != state.layout)
    return StateStatus(
        id=state.id,
        first_load=state.first_load,
        history=(state.history_ms or 0) / 1000,
        rows=sum(one.rows for one in found),
        oldest_row=min(lowest, default=None),
        files=sum(one.files for one in found),
        in_older_layouts=older if state.older else None,
    )
