"""How the commands show a finished drain or comparison: when it ended, what it did or found, and what stopped it."""

from __future__ import annotations

from typing import Any

from export_queue.core.cli.console import utc_time
from export_queue.core.drain import FinishedDrain, Problem
from export_queue.core.verify import FinishedComparison


def drain_row(drain: FinishedDrain | None) -> dict[str, Any] | None:
    """Return a drain as a row; None if there was none."""
    if drain is None:
        return None
    report = drain.report
    return {
        "drain_id": report.drain_id,
        "finished": utc_time(drain.finished_ms),
        "sink": report.sink,
        "acknowledged": report.acknowledged,
        "dead": report.dead,
        "stopped_by": None if report.problem is None else report.problem.error_class,
        "message": None if report.problem is None else report.problem.message,
        "hint": None if report.problem is None else report.problem.hint or None,
    }


def comparison_row(comparison: FinishedComparison | None) -> dict[str, Any] | None:
    """Return a comparison as a row; None if there was none."""
    if comparison is None:
        return None
    report = comparison.report
    shown = ("sink", "source", "compared", "differences", "repaired")
    return {"finished": utc_time(comparison.finished_ms)} | {name: getattr(report, name) for name in shown}


def problem_lines(problem: Problem | None) -> list[str]:
    """Return what stopped a drain, and what to do about it, as lines."""
    if problem is None:
        return []
    told = f"{problem.error_class}: {problem.message}" + (f"\nhint: {problem.hint}" if problem.hint else "")
    return [f"  {line}" for line in told.splitlines()]
