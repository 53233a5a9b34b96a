"""``export-queue locks``: who works on which part of a queue, and who waits for whom."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from export_queue.core.cli.console import Result, utc_time
from export_queue.core.cli.options import command
from export_queue.core.cli.queues import readers_of
from export_queue.core.client import Store
from export_queue.core.locks import LockView, explained, members_text
from export_queue.core.queue import Queue, Range


@command()
def locks(
    store: Store,
    queue_id: Annotated[str | None, typer.Argument(metavar="QUEUE", help="id of the queue; by default all")] = None,
) -> Result:
    """Show who works on which part of a queue, who waits for whom, and which locks and requests no longer count."""
    rows: list[dict[str, Any]] = []
    for queue in store.queues() if queue_id is None else readers_of(store, queue_id):
        with store.database.read() as work:
            rows += [_row(queue, view) for view in explained(work, queue)]
    return Result(
        json=rows,
        table=[row | {"range": str(Range(*row["range"])), "covers": members_text(row["covers"])} for row in rows],
        hide=("attempt", "fence", "waits_for", "explanation"),
        # Once for each holder, who may hold many units.
        lines=list(dict.fromkeys(f"{row['task']} ({row['state']}): {row['explanation']}" for row in rows)),
    )


def _row(queue: Queue, view: LockView) -> dict[str, Any]:
    area = view.area
    return {
        "queue": queue.id,
        "range": Range(area.first, area.end, view.layout).to_json(),
        "covers": None if area.members is None else sorted(area.members),
        "state": view.state,
        "mode": view.mode,
        "priority": view.priority,
        "task": view.task,
        "attempt": view.attempt,
        "fence": None if view.fence is None else str(view.fence),
        "since": utc_time(view.since_ms),
        "until": utc_time(view.until_ms),
        "waits_for": list(view.waits_for),
        "explanation": view.explanation,
    }
