"""Clean-up of idempotency keys."""

from __future__ import annotations

from collections import Counter

from export_queue.core.maintenance import pages
from export_queue.core.maintenance.pages import Page
from export_queue.core.store import Work, queries


def forget_idempotency_keys(work: Work, limit: int, *, before_ms: int) -> Page:
    """Delete keys of work that is older than retries may be."""
    most = min(limit, pages.MOST_ROWS)
    deleted = queries.cleanup.delete_idempotency_keys(work, before_ms=before_ms, limit=most)
    return Page(deleted, Counter(idempotency_keys=deleted), more=deleted == most)
