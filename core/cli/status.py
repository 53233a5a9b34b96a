"""``export-queue status``: every queue, its readers and its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from export_queue.core.cli.console import Result, seq_time
from export_queue.core.cli.finished import comparison_row, drain_row, problem_lines
from export_queue.core.cli.options import command
from export_queue.core.client import Store
from export_queue.core.drain import FinishedDrain
from export_queue.core.queue import Mark, Queue
from export_queue.core.state import StateStatus


@command()
def status(store: Store) -> Result:
    """Show every queue: the number of pending entries, the time of the oldest, its dead letters, sink and last drain.

    A reader whose sink was compared has the time and the result of the last comparison.

    A queue with subscriptions has one line for each of them, which says whether its first load is missing. After a
    change of buckets, the line says how many entries are still pending in the previous buckets. A queue with a state
    has a line for it, which says whether it is complete, its history, and what no compaction has merged yet.

    Marks say what a sink lacks because somebody accepted a loss, and what somebody promised. A queue with subscriptions
    has its own line if one of them was removed with pending entries. Marks of the whole store, such as its adoption,
    have a line without a queue.
    """
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for queue in store.queues():
        marks = store.marks(queue.id)
        if marks or not queue.fans_out:
            last = next(iter(store.finished_drains(queue.id, limit=1)), None)
            compared = next(iter(store.finished_comparisons(queue.id, limit=1)), None)
            rows.append(_row_of_queue(store, queue, marks, last) | {"last_comparison": comparison_row(compared)})
            problems += _problem(queue, last)
        if queue.parent is None and queue.history_ms is not None:
            rows.append(_row_of_state(store.state(queue.id).status()))
    if marks := store.marks():
        rows.append({**_NOTHING, "incomplete": _is_incomplete(marks), "marks": marks})
    rare = ("last_comparison", "first_load", "in_older_layouts", "state", "incomplete", "marks")
    return Result(
        json=[row | {"marks": [mark.to_dict() for mark in row["marks"]]} for row in rows],
        table=[
            row
            | {
                "marks": "; ".join(map(Mark.line, row["marks"])),
                "last_drain": _outcome(row["last_drain"]),
                "last_comparison": _equality(row["last_comparison"]),
                "state": _state_line(row["state"]),
            }
            for row in rows
        ],
        hide=("ranges", *(name for name in rare if not any(row[name] or row[name] == 0 for row in rows))),
        lines=problems,
    )


_NOTHING: dict[str, Any] = {
    "queue": None,
    "sink": None,
    "entries": 0,
    "bytes": 0,
    "ranges": [],
    "oldest": None,
    "dead": 0,
    "last_drain": None,
    "last_comparison": None,
    "first_load": None,
    "in_older_layouts": None,
    "state": None,
    "incomplete": None,
    "marks": [],
}
"""The line of something without pending entries."""


def _row_of_queue(store: Store, queue: Queue, marks: list[Mark], last: FinishedDrain | None) -> dict[str, Any]:
    units = [] if queue.fans_out else store.backlog(queue.id)
    oldest = min((unit.oldest_seq for unit in units), default=None)
    older = sum(unit.entries for unit in units if unit.range.layout != queue.layout) if queue.older else None
    return {
        **_NOTHING,
        "queue": queue.id,
        "sink": queue.sink,
        "entries": sum(unit.entries for unit in units),
        "bytes": sum(unit.bytes for unit in units),
        "ranges": [unit.range.to_json() for unit in units],
        "oldest": None if oldest is None else seq_time(oldest),
        "dead": 0 if queue.fans_out else store.dead_letters.count(queue.id),
        "last_drain": drain_row(last),
        "first_load": queue.first_load,
        "in_older_layouts": older,
        "incomplete": _is_incomplete(marks),
        "marks": marks,
    }


def _row_of_state(state: StateStatus) -> dict[str, Any]:
    return {
        **_NOTHING,
        "queue": state.id,
        "first_load": state.first_load,
        "in_older_layouts": state.in_older_layouts,
        "state": {
            "complete": state.is_complete,
            "history": state.history,
            "rows": state.rows,
            "oldest_row": None if state.oldest_row is None else seq_time(state.oldest_row),
            "files": state.files,
        },
    }


def _state_line(state: Mapping[str, Any] | None) -> str | None:
    """Describe a state in a cell."""
    if state is None:
        return None
    complete = "complete" if state["complete"] else "first load missing"
    return f"{complete}; history {_in_units(state['history'])}; {state['rows']} rows, {state['files']} files"


def _in_units(seconds: float) -> str:
    """Format a duration in the largest unit that divides it."""
    sizes = {"d": 86400, "h": 3600, "m": 60}
    return next((f"{seconds / size:g}{unit}" for unit, size in sizes.items() if seconds % size == 0), f"{seconds:g}s")


def _problem(queue: Queue, last: FinishedDrain | None) -> list[str]:
    if last is None or last.report.problem is None:
        return []
    return [f"{queue.id}: drain {last.report.drain_id} stopped:", *problem_lines(last.report.problem)]


def _outcome(drain: Mapping[str, Any] | None) -> str | None:
    """Say in a cell when a drain ended and how."""
    if drain is None:
        return None
    dead = f"{drain['dead']} dead" if drain["dead"] else "ok"
    return f"{drain['finished']} {drain['stopped_by'] or dead}"


def _equality(comparison: Mapping[str, Any] | None) -> str | None:
    """Say in a cell when a sink was last compared, and how many records differed."""
    if comparison is None:
        return None
    differences = comparison["differences"]
    return f"{comparison['finished']} {differences or 'no'} difference{'' if differences == 1 else 's'}"


def _is_incomplete(marks: list[Mark]) -> bool | None:
    return any(mark.is_loss for mark in marks) or None
