"""Deleting former values among the rows of states, in place. Compactions delete those in files."""

from __future__ import annotations

from export_queue.core.queue import find_state, list_queues, oldest_kept
from export_queue.core.store import Database, queries
from export_queue.core.transactions import settled_snapshot


def trim(database: Database, *, limit: int) -> int:
    """Delete rows of states that a later row of their key replaces, and deletes that nothing older can follow.

    Former values are kept as long as the history of their queue says.

    :param limit: maximum number of rows to delete of each state.
    :returns: the number of deleted rows.
    """
    deleted = 0
    with database.read() as work:
        states = [find_state(work, queue.id) for queue in list_queues(work) if queue.history_ms is not None]
    for known in states:
        settled = settled_snapshot(database, known.number)
        with database.begin() as work:
            row = queries.queues.queue_row(work, known.id)
            if row is None or row["number"] != known.number:
                continue  # it was removed
            state = find_state(work, known.id)  # afterwards: it has all layouts of entries in the snapshot
            cut = oldest_kept(state, settled, work.now())
            if cut is not None:
                queries.queues.raise_oldest_cut(work, state.number, cut)
        if not cut:
            continue
        with database.begin() as work:  # later: whoever sees a deletion sees that the cut has risen
            deleted += queries.states.delete_replaced(work, state.number, settled, cut=cut, limit=limit)
        if not state.older:
            with database.begin() as work:
                deleted += queries.states.delete_deletes(work, state.number, settled, cut=cut, limit=limit)
    return deleted
