"""Clean-up of invalid transactions: their rows go, then they need not be excluded from snapshots any more."""

from __future__ import annotations

from export_queue.core.store import Database
from export_queue.core.transactions import prune

MOST_PRUNED = 20
"""Invalid ids that one SQL transaction rolls back."""


def prune_invalid(database: Database, limit: int) -> int:
    """Delete the rows of invalid transactions.

    :param limit: most transactions.
    :returns: how many transactions were pruned.
    """
    pruned = 0
    while pruned < limit:
        done = prune(database, limit=min(MOST_PRUNED, limit - pruned))
        pruned += done
        if not done:  # fewer than were asked for may be left, or cannot be pruned: the others still can
            break
    return pruned
