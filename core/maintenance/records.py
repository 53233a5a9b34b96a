"""Clean-up of records: reports of drains, acts on dead letters, attempts of tasks that did not end in order.

Their ids carry the time, so that old ones are found without an index of their own. And of subscriptions that were
removed: all that they had.
"""

from __future__ import annotations

from collections import Counter

from export_queue.core.maintenance import pages
from export_queue.core.maintenance.pages import Page
from export_queue.core.queue import KEPT
from export_queue.core.store import Work, queries

DAY_MS = 24 * 3600 * 1000
KEEP_IDLE_MS = DAY_MS
"""For reports of drains that found nothing: one a minute is the rule where drains are scheduled so."""
KEEP_ACTS_MS = 366 * DAY_MS
KEEP_ATTEMPTS_MS = 30 * DAY_MS
"""No process is still at work after so long."""


def forget_reports(work: Work, limit: int, *, now_ms: int, keep_ms: int) -> Page:
    """Delete old reports of drains, and those of idle drains after a day."""
    most = min(limit, pages.MOST_ROWS)
    deleted = queries.reports.delete_reports(
        work, before_ms=now_ms - keep_ms, idle_before_ms=now_ms - min(keep_ms, KEEP_IDLE_MS), limit=most
    )
    return Page(deleted, Counter(drain_reports=deleted), more=deleted == most)


def forget_acts(work: Work, limit: int, *, now_ms: int) -> Page:
    """Delete the records of acts that are older than a year; what marks a whole sink as incomplete stays."""
    most = min(limit, pages.MOST_ROWS)
    deleted = queries.acts.delete_old(work, KEPT, before_ms=now_ms - KEEP_ACTS_MS, limit=most)
    return Page(deleted, Counter(dead_letter_acts=deleted), more=deleted == most)


def forget_subscriptions(work: Work, limit: int) -> Page:
    """Delete what subscriptions had that were removed."""
    most = min(limit, pages.MOST_ROWS)
    deleted = queries.readers.delete_removed(work, most)
    return Page(deleted, Counter(removed=deleted), more=deleted == most)


def forget_attempts(work: Work, limit: int, *, now_ms: int) -> Page:
    """Delete attempts that were killed or revoked long ago."""
    most = min(limit, pages.MOST_ROWS)
    deleted = queries.locks.delete_old_attempts(work, before_ms=now_ms - KEEP_ATTEMPTS_MS, limit=most)
    return Page(deleted, Counter(attempts=deleted), more=deleted == most)
