"""Clean-up of idempotency keys."""

from __future__ import annotations

from collections import Counter

from export_queue.core.maintenance import pages
from export_queue.core.maintenance.pages import Page
from export_queue.core.maintenance.records import KEEP_ATTEMPTS_MS
from export_queue.core.store import Work, queries


def forget_idempotency_keys(work: Work, limit: int, *, now_ms: int, keep_ms: int) -> Page:
    """Delete keys of work that is older than retries may be, and tallies of drains that were killed long ago."""
    most = min(limit, pages.MOST_ROWS)
    deleted = queries.cleanup.delete_idempotency_keys(
        work, before_ms=now_ms - keep_ms, tallies_before_ms=now_ms - KEEP_ATTEMPTS_MS, limit=most
    )
    return Page(deleted, Counter(idempotency_keys=deleted), more=deleted == most)
