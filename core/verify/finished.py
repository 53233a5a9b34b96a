"""Comparisons that the store remembers."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from export_queue.core.errors import ExportQueueError
from export_queue.core.store import Database, Reading, queries
from export_queue.core.verify.report import VerifyReport

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FinishedComparison:
    """A comparison that has reached its end."""

    finished_ms: int
    report: VerifyReport


def keep(database: Database, report: VerifyReport) -> None:
    """Store the report of a comparison. It is the caller's in any case: if the store refuses it, that is logged."""
    try:
        with database.connect() as connection:
            number = database.dialect.steps.draw(connection)
        with database.begin() as work:
            queries.reports.save_comparison(work, report.to_dict(), number=number, queue_id=report.queue)
    except ExportQueueError as error:
        log.warning("the store does not keep the result of this comparison: %s", error)


def finished_comparisons(work: Reading, queue_id: str | None = None, *, limit: int = 100) -> list[FinishedComparison]:
    """Read the stored comparisons of a queue's readers, or of all, newest first."""
    found = queries.reports.latest_comparisons(work, queue_id, limit=limit)
    return [FinishedComparison(finished_ms, VerifyReport.from_dict(report)) for finished_ms, report in found]
