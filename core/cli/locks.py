"""``export-queue locks``: who works on which part of a queue, who waits for whom, and what of it counts no more."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from export_queue.core.cli.console import say, seq_time, show, utc_time
from export_queue.core.cli.options import AsJson, StoreOptions, command
from export_queue.core.cli.queues import readers_of
from export_queue.core.locks import Area, LockView, RequestView, explained_locks, explained_requests, members_text
from export_queue.core.queue import Queue, Range
from export_queue.core.store import Reading


@command()
def locks(
    store: StoreOptions,
    queue_id: Annotated[str | None, typer.Argument(metavar="QUEUE", help="id of the queue; by default all")] = None,
    as_json: AsJson = False,
) -> None:
    """Show who works on which part of a queue, who waits for whom, and what becomes of holders that are gone."""
    rows: list[dict[str, Any]] = []
    with store.open() as opened:
        readers = opened.queues() if queue_id is None else readers_of(opened, queue_id)
        for queue in readers:
            with opened.database.read() as work:
                rows += _of_queue(work, queue)
    if as_json:
        show(rows, as_json=True)
        return
    show(
        [row | {"range": str(Range(*row["range"])), "covers": members_text(row["covers"])} for row in rows],
        as_json=False,
        hide=("attempt", "fence", "waits_for", "explanation"),
    )
    # Below the table, where a sentence has room; a holder of many units is explained once.
    for line in dict.fromkeys(f"{row['task']} ({row['state']}): {row['explanation']}" for row in rows):
        say(line)


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
