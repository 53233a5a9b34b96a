"""``export-queue segments``, ``compact``, ``vacuum``, ``maintain`` …: files of bulk entries, clean-up, and metrics."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from export_queue.core.cli.console import Result, log_to
from export_queue.core.cli.options import QueueId, Who, command
from export_queue.core.cli.stopping import StopSignals
from export_queue.core.client import Store
from export_queue.core.maintenance import MaintenanceReport, Patience, read_metrics, render
from export_queue.core.maintenance import maintain as clean_up
from export_queue.core.maintenance import vacuum as delete_files
from export_queue.core.progress_bar import ProgressBar
from export_queue.core.queue import find_reader
from export_queue.core.segments import (
    GRACE_SECONDS,
    Candidates,
    CompactionProgress,
    list_segments,
)
from export_queue.core.segments import compact as merge

HOUR = 3600.0
DAY = 24 * HOUR
_DEFAULT = Candidates()


@command()
def segments(
    queue_id: QueueId,
    store: Store,
    limit: Annotated[int, typer.Option(min=1, help="maximum number of segments in the table; JSON has all")] = 40,
) -> Result:
    """List the segments of a queue or subscription: which are pending, and which others have replaced."""
    with store.database.read() as work:
        queue = find_reader(work, queue_id, states=True)
        found = [one for layout in queue.layouts() for one in list_segments(work, queue.laid_out_as(layout))]
    states = ", ".join(f"{count} {state}" for state, count in Counter(one.state for one in found).items())
    lines = [f"{len(found)} segments: {states}"] if found else []
    if len(found) > limit:
        lines.insert(0, f"… and {len(found) - limit} more (--limit)")
    return Result(
        json=[one.to_json() for one in found],
        table=[{**one.to_json(), "range": str(one.range)} for one in found[:limit]],
        hide=("file",),
        lines=lines,
    )


@command()
def compact(
    queue_id: QueueId,
    store: Store,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only report what would be merged")] = False,
    small: Annotated[
        float, typer.Option(help="segments below this number of megabytes are small; others are left unchanged")
    ] = _DEFAULT.small_bytes / (1 << 20),
    least: Annotated[
        int, typer.Option(min=2, help="minimum number of sources in a unit; all its rows count as one")
    ] = _DEFAULT.least,
    age: Annotated[float, typer.Option(min=0, help="minimum age of segments in seconds")] = 0.0,
    older_layouts: Annotated[
        bool,
        typer.Option(
            "--older-layouts",
            help="instead, move all pending entries out of the queue's previous buckets; "
            "without --small, --least, --age",
        ),
    ] = False,
) -> Result:
    """Merge small segments and settled rows of a queue or subscription.

    Others may use the queue meanwhile, and the command may be interrupted.
    """
    wanted = Candidates(small_bytes=int(small * (1 << 20)), least=least, age_seconds=age)
    with StopSignals() as signals, _shown(queue_id, is_quiet=dry_run) as on_progress:
        report = merge(
            store.database,
            queue_id,
            older_layouts=older_layouts,
            wanted=wanted,
            dry_run=dry_run,
            on_progress=on_progress,
            stops=signals.requested,
        )
    lines = [*(unit.line(dry_run=dry_run) for unit in report.units), report.line()]
    return Result(json=report.to_json(), is_indented=False, lines=lines)


@contextlib.contextmanager
def _shown(queue_id: str, *, is_quiet: bool) -> Iterator[Callable[[CompactionProgress], None] | None]:
    """Show log lines and, on a terminal, a bar during a compaction."""
    console = Console(stderr=True)
    with log_to():
        if is_quiet or not console.is_terminal:
            yield None
            return
        with ProgressBar(console, f"compact {queue_id}") as bar:
            yield lambda progress: bar.show(done=progress.done, left=progress.total - progress.done)


@command("fall-back")
def fall_back(
    queue_id: QueueId,
    file: Annotated[str, typer.Argument(metavar="FILE", help="the lost file, as the error names it")],
    store: Store,
    who: Who = None,
) -> Result:
    """Return to the inputs of a compaction whose output is lost; their files are kept until the vacuum."""
    report = store.dead_letters.fall_back(queue_id, file, who=who)
    return Result(json=asdict(report), is_indented=False, lines=[report.line()])


@command()
def vacuum(
    store: Store,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only report which files would be deleted, and when")
    ] = False,
    grace: Annotated[
        float, typer.Option(min=0, help="hours for which a file is kept after a run finds that nothing refers to it")
    ] = GRACE_SECONDS / HOUR,
    keep_hidden: Annotated[
        float, typer.Option(min=0, help="hours for which the inputs of a compaction are kept, to fall back on")
    ] = 24,
) -> Result:
    """Delete files of bulk entries that nothing refers to, except those of transactions that may still commit."""
    _ = store.identity
    report = delete_files(
        store.database, hidden_seconds=keep_hidden * HOUR, patience=Patience(files=grace * HOUR), dry_run=dry_run
    )
    waiting = [f"{one.file} stays for {math.ceil(one.seconds / 60)} minutes" for one in report.waiting]
    summary = (
        f"{report.files} files {'would be' if dry_run else 'were'} deleted"
        + (f", {len(report.waiting)} are in their grace time" if report.waiting else "")
        + (", more are left" if report.more else "")
    )
    return Result(
        json={
            "dry_run": dry_run,
            "files": list(report.deleted),
            "waiting": [asdict(one) for one in report.waiting],
            "more": report.more,
        },
        is_indented=False,
        lines=[*report.deleted, *(waiting if dry_run else ()), summary],
    )


@command()
def maintain(
    store: Store,
    once: Annotated[bool, typer.Option("--once", help="stop at the limit, even if more is left")] = False,
    limit: Annotated[int, typer.Option(min=1, help="maximum number of rows of each kind in one round")] = 100_000,
    keep_outcomes: Annotated[float, typer.Option(help="hours to keep the outcomes of commits")] = 24,
    keep_idempotency_keys: Annotated[float, typer.Option(help="days to keep idempotency keys")] = 30,
    keep_reports: Annotated[float, typer.Option(help="days to keep reports of drains and comparisons")] = 30,
) -> Iterator[MaintenanceReport]:
    """Delete data that is no longer needed. Others may use the store, and the command may be interrupted."""
    _ = store.identity
    with StopSignals() as signals:
        more = True
        while more:
            report = clean_up(
                store.database,
                limit=limit,
                keep_outcomes=keep_outcomes * HOUR,
                keep_idempotency_keys=keep_idempotency_keys * DAY,
                keep_reports=keep_reports * DAY,
            )
            yield report
            more = report.more and not once and not signals.requested()


@command()
def metrics(store: Store) -> Result:
    """Print metrics as OpenMetrics text."""
    _ = store.identity
    found = read_metrics(store.database)
    return Result(json=[asdict(metric) for metric in found], lines=render(found).splitlines())
