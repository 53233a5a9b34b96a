"""Clean-up that happens by itself: a bounded part of it after a drain, if there was none for ten minutes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from export_queue.core.maintenance.cleanup import DAY, KEEP_ACTS, maintain, record_low_watermark
from export_queue.core.store import Database, queries

EVERY_SECONDS = 600.0
LONGEST_SECONDS = 5.0
"""Time after which no further page of rows is begun."""
PAGE_ROWS = 10_000
"""Maximum number of rows of each kind that are read between two looks at the clock."""

log = logging.getLogger("export_queue.maintenance")


def maintain_if_due(database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
    """Clean up for at most about five seconds, unless anybody did so in the last ten minutes.

    An error is logged and not raised: the work of the caller is done, and the next drain tries again.

    :param clock: returns seconds; only differences count.
    """
    end = clock() + LONGEST_SECONDS
    try:
        if not _is_due(database):
            return
        while True:
            # A caller of maintain may want to keep records longer than its defaults: this keeps them longer still.
            report = maintain(
                database,
                limit=PAGE_ROWS,
                keep_outcomes=3 * DAY,
                keep_idempotency_keys=KEEP_ACTS,
                keep_reports=KEEP_ACTS,
            )
            log.debug("clean-up after a drain: %s", report.line())
            if report.busy or not report.more or clock() >= end:
                return
    except Exception as error:
        log.warning("the clean-up after a drain failed, and the next drain repeats it: %s", error)


def _is_due(database: Database) -> bool:
    """Return whether the last clean-up is long ago. The first one of a store only notes its time: nothing is old."""
    with database.read() as work:
        last, now = queries.cleanup.last_watermark(work), work.now()
    if last is None:
        record_low_watermark(database)
        return False
    return not 0 <= now - last < EVERY_SECONDS * 1000
