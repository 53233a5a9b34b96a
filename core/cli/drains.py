"""``export-queue drain``, ``wait`` and ``locks``: draining a queue, waiting for drains, and who works where."""

from __future__ import annotations

import contextlib
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Unpack

import typer
from rich.console import Console

from export_queue.core.cli.console import Result, log_to, print_json, utc_time
from export_queue.core.cli.finished import problem_lines
from export_queue.core.cli.naming import search_current_folder
from export_queue.core.cli.options import (
    AsJson,
    QueueId,
    SinkName,
    SinkOptions,
    SinkText,
    SinkTextIfAny,
    StoreOptions,
    command,
)
from export_queue.core.cli.queues import readers_of
from export_queue.core.cli.stopping import StopSignals, sigterm_interrupts, status_of
from export_queue.core.client import Store
from export_queue.core.drain import (
    DrainOptions,
    DrainReport,
    DrainRequest,
    Progress,
    dead_letters_allowed,
    drain_as_requested,
    follow,
    refuse_dead_letters,
)
from export_queue.core.errors import ExportQueueError, InvalidArgument
from export_queue.core.locks import LockView, explained, members_text
from export_queue.core.printable import printable
from export_queue.core.progress_bar import ProgressBar
from export_queue.core.queue import Queue, Range


@command()
def drain(
    queue_id: QueueId,
    sink: SinkText,
    store: StoreOptions,
    sink_options: SinkOptions,
    sink_name: SinkName = None,
    follows: Annotated[
        bool, typer.Option("--follow", help="continue until SIGTERM or Ctrl-C; deliver entries soon after their commit")
    ] = False,
    dead_letters: Annotated[
        str | None,
        typer.Option(help="if the queue has dead letters at the end: fail, allow, or up to a number; by default fail"),
    ] = None,
    as_json: AsJson = False,
    **options: Unpack[DrainOptions],
) -> Result:
    """Deliver the committed entries of a queue to a sink, in this process.

    Status 0 means that every entry committed before the start is in the sink. If the queue has dead letters, everything
    else is delivered, and then the status is 1 unless they are allowed. Ctrl-C and SIGTERM end the drain cleanly: what
    the sink has acknowledged stays removed, the rest stays pending. A time limit does so too, with status 75. With
    --follow they are the normal end, with status 0: the current chunk is delivered first.
    """
    search_current_folder()
    allowed = dead_letters_allowed(dead_letters, what="--dead-letters")
    with sink_options.describe(sink, name=sink_name) as described, store.open() as opened:
        options["drain_id"] = uuid.uuid4().hex
        if follows and dead_letters is not None:
            raise InvalidArgument(
                "--dead-letters: a follower does not end, and leaves dead letters behind", hint="omit it"
            )
        if follows:
            with StopSignals() as signals, log_to():
                return _result(follow(opened, queue_id, described, stop=signals.requested, **options))
        request = DrainRequest.of(queue_id, described.name, options)
        try:
            with sigterm_interrupts(), _shown_progress(opened, request) as on_progress:
                report = drain_as_requested(opened, described, request, on_progress=on_progress)
                refuse_dead_letters(opened, report, allowed, of_ranges=request.ranges is not None)
                return _result(report)
        except KeyboardInterrupt as interruption:
            _print_failed(opened, request, as_json=as_json)
            print("\n".join(["stopped", *map(printable, getattr(interruption, "__notes__", ()))]), file=sys.stderr)
            raise typer.Exit(status_of(interruption)) from None
        except ExportQueueError:
            _print_failed(opened, request, as_json=as_json)
            raise


@command()
def wait(
    queue_id: QueueId,
    store: Store,
    sink_options: SinkOptions,
    sink: SinkTextIfAny = None,
    token: Annotated[
        str | None, typer.Option(help="token of a transaction; by default all that is committed now")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0, help="maximum number of seconds to wait; then status 75")] = 30.0,
    searchable: Annotated[
        bool, typer.Option("--searchable", help="then refresh the indices of --sink, so that searches show it, too")
    ] = False,
) -> Result:
    """Wait until the sink of a queue or subscription has acknowledged what a transaction added. It starts no drain."""
    if searchable and sink is None:
        raise typer.BadParameter("--searchable refreshes the sink: name it with --sink")
    begun = time.monotonic()
    awaited = store.token() if token is None else token
    with sink_options.describe(sink) if searchable and sink is not None else contextlib.nullcontext() as described:
        store.wait_exported(awaited, queue_id, timeout=timeout, searchable=searchable, sink=described)
    waited = round(time.monotonic() - begun, 3)
    row = {"queue": queue_id, "token": awaited, "seconds": waited}
    shown = ", and searches show it" if searchable else ""
    return Result(json=row, lines=[f"{queue_id}: exported, after {waited:g} s{shown}"])


@command()
def reports(
    store: Store,
    queue_id: Annotated[str | None, typer.Argument(metavar="QUEUE", help="id of the queue; by default all")] = None,
    limit: Annotated[int, typer.Option(min=1, help="maximum number of reports; newest first")] = 20,
    idle: Annotated[bool, typer.Option("--idle", help="also those of drains that found nothing")] = False,
) -> Result:
    """Show the reports of the last drains, newest first: when they ended, what they delivered, what stopped them."""
    if queue_id is not None:
        store.queue(queue_id)
    found = store.finished_drains(queue_id, idle=idle, limit=limit)
    shown = ("sink", "read", "acknowledged", "dead", "left", "waiting", "seconds", "drain_id")
    rows = [
        {"finished": utc_time(one.finished_ms), "queue": one.report.queue}
        | {name: getattr(one.report, name) for name in shown}
        | {"stopped_by": one.report.problem and one.report.problem.error_class}
        for one in found
    ]
    problems = [
        line
        for one in found
        if one.report.problem is not None
        for line in (f"{one.report.drain_id}:", *problem_lines(one.report.problem))
    ]
    return Result(
        json=[{"finished": utc_time(one.finished_ms)} | one.report.to_dict() for one in found],
        table=rows,
        hide=() if problems else ("stopped_by",),
        lines=problems,
    )


def _result(report: DrainReport) -> Result:
    return Result(json=report.to_dict(), is_indented=False, lines=[report.line()])


def _print_failed(store: Store, request: DrainRequest, *, as_json: bool) -> None:
    """Print the report of a failed drain for programs. For people, the error says enough."""
    if as_json:
        with contextlib.suppress(ExportQueueError):  # the error of the drain is reported instead
            for report in store.reports(drain_id=request.drain_id):
                print_json(report)


@contextlib.contextmanager
def _shown_progress(store: Store, request: DrainRequest) -> Iterator[Callable[[Progress], None] | None]:
    """Show the progress of a drain on the standard error during a block.

    The drain logs one line every 10 seconds, and one when it starts to wait. On a terminal they appear above a bar.

    :returns: what the drain calls after each chunk.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        with log_to():
            yield None
        return
    pending = sum(unit.entries for unit in store.backlog(request.queue_id, request.ranges))
    with ProgressBar(console, f"{request.queue_id} → {request.sink_name}", total=pending) as bar, log_to(bar.lines()):

        def on_progress(progress: Progress) -> None:
            # It may exceed the total, when entries are committed meanwhile.
            remark = f"{progress.dead} dead" if progress.dead else ""
            bar.show(done=progress.acknowledged + progress.dead, remark=remark)

        yield on_progress


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
