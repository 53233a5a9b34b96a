"""``export-queue locks``: who works on which part of a queue, and who waits for whom."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from export_queue.core.cli.console import Result, seq_time, utc_time
from export_queue.core.cli.options import command
from export_queue.core.cli.queues import readers_of
from export_queue.core.client import Store
from export_queue.core.locks import Area, LockView, RequestView, explained_locks, explained_requests, members_text
from export_queue.core.queue import Queue, Range
from export_queue.core.store import Reading


@command()
def locks(
    store: Store,
    queue_id: Annotated[str | None, typer.Argument(metavar="QUEUE", help="id of the queue; by default all")] = None,
) -> Result:
    """Show who works on which part of a queue, who waits for whom, and which locks and requests no longer count."""
    rows: list[dict[str, Any]] = []
    for queue in store.queues() if queue_id is None else readers_of(store, queue_id):
        with store.database.read() as work:
            rows += _of_queue(work, queue)
    return Result(
        json=rows,
        table=[row | {"range": str(Range(*row["range"])), "covers": members_text(row["covers"])} for row in rows],
        hide=("attempt", "fence", "waits_for", "explanation"),
        # Once for each holder, who may hold many units.
        lines=list(dict.fromkeys(f"{row['task']} ({row['state']}): {row['explanation']}" for row in rows)),
    )


def _of_queue(work: Reading, queue: Queue) -> list[dict[str, Any]]:
    held = [_row(queue, lock.area, lock, fence=str(lock.fence)) for lock in explained_locks(work, queue)]
    asked = [
        _row(queue, area, request, waits_for=list(request.waits_for))
        for request in explained_requests(work, queue)
        for area in request.areas
    ]
    return held + asked


def _row(
    queue: Queue,
    area: Area,
    view: LockView | RequestView,
    *,
    fence: str | None = None,
    waits_for: list[str] | None = None,
) -> dict[str, Any]:
    return {
        "queue": queue.id,
        "range": Range(area.first, area.end, view.layout).to_json(),
        "covers": None if area.members is None else sorted(area.members),
        "state": view.state,
        "mode": view.mode,
        "priority": view.priority,
        "task": view.task,
        "attempt": view.attempt,
        "fence": fence,
        "since": seq_time(view.fence) if isinstance(view, LockView) else utc_time(view.asked_ms),
        "until": utc_time(view.until_ms),
        "waits_for": waits_for or [],
        "explanation": view.explanation,
    }
