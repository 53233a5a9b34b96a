"""Clean-up of the outcomes of commits."""

from __future__ import annotations

from collections import Counter

from export_queue.core.maintenance import pages
from export_queue.core.maintenance.pages import Page
from export_queue.core.store import Work, queries


def forget_outcomes(work: Work, limit: int, *, before_ms: int) -> Page:
    """Delete outcomes that are older than clients may ask for."""
    most = min(limit, pages.MOST_ROWS)
    deleted = queries.outcomes.delete_outcomes(work, before_ms=before_ms, limit=most)
    return Page(deleted, Counter(outcomes=deleted), more=deleted == most)
