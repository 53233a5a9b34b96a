"""The horizon: the number below which clean-up may delete versions that no transaction reads.

Each run records a low-water mark: the time, and the smallest id that a snapshot does not see. Marks never fall, so
a snapshot that is younger than a mark lies above it. The horizon is raised to a mark that is older than the longest
short time-out, by which every short transaction that may lie below it has passed its deadline, and not above what
the start of a long transaction in progress recorded. The marks alone would make clean-up safe, since a snapshot
that reaches below the horizon is refused. Their age keeps live transactions from that refusal.
"""

from __future__ import annotations

from export_queue.core.store import Database, Work, queries

MARKS_PER_AGE = 60
"""Most marks that are kept; with more of them the horizon would follow hardly closer."""


def record_low_watermark(database: Database, *, age_ms: int) -> bool:
    """Record a low-water mark, unless there is a young one.

    :returns: whether the clock has gone back since the last mark. Either that mark's time was wrong, or today's is.
    """
    with database.read() as work:
        last, now = queries.cleanup.last_watermark(work), work.now()
    if last is not None and 0 <= now - last < age_ms / MARKS_PER_AGE:
        return False
    with database.connect() as connection:
        low = database.dialect.steps.take_snapshot(connection).low
    with database.begin() as work:  # the mark's time may be later than its snapshot, never earlier
        queries.cleanup.add_watermark(work, low)
    return last is not None and last > now


def raise_horizon(work: Work, *, before_ms: int) -> int:
    """Raise the horizon as far as is safe, and return it."""
    return queries.cleanup.raise_horizon(work, before_ms=before_ms)
