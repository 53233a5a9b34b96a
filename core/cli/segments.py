"""``export-queue segments``, ``compact``, ``fall-back`` and ``vacuum``: commands for files of bulk entries."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from export_queue.core.cli.console import print_json, say, show
from export_queue.core.cli.options import AsJson, QueueId, StoreOptions, Who, command
from export_queue.core.cli.progress import shown_lines
from export_queue.core.cli.stopping import StopSignals
from export_queue.core.maintenance import Patience
from export_queue.core.maintenance import vacuum as delete_files
from export_queue.core.progress_bar import ProgressBar
from export_queue.core.queue import find_reader
from export_queue.core.segments import (
    GRACE_SECONDS,
    Candidates,
    CompactionProgress,
    CompactionReport,
    list_segments,
    rewrite,
)
from export_queue.core.segments import compact as merge

HOUR = 3600.0
_DEFAULT = Candidates()


@command()
def segments(
    queue_id: QueueId,
    store: StoreOptions,
    limit: Annotated[int, typer.Option(min=1, help="maximum number of segments in the table; JSON has all")] = 40,
    as_json: AsJson = False,
) -> None:
    """List the segments of a queue or subscription: which are pending, and which others have replaced."""
    with store.open() as opened, opened.database.read() as work:
        queue = find_reader(work, queue_id)
        found = [one for layout in queue.layouts() for one in list_segments(work, queue.laid_out_as(layout))]
    if as_json or not found:
        show([one.to_json() for one in found], as_json=as_json)
        return
    rows = [{**one.to_json(), "range": str(one.range)} for one in found[:limit]]
    show(rows, as_json=False, hide=("file",))
    if len(found) > limit:
        print(f"… and {len(found) - limit} more (--limit)")
    states = ", ".join(f"{count} {state}" for state, count in Counter(one.state for one in found).items())
    print(f"{len(found)} segments: {states}")


@command()
def compact(
    queue_id: QueueId,
    store: StoreOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be merged")] = False,
    small: Annotated[
        float, typer.Option(help="megabytes; a segment with less is small, and others stay as they are")
    ] = _DEFAULT.small_bytes / (1 << 20),
    least: Annotated[
        int, typer.Option(min=2, help="sources that make a unit worth it; all its rows are one")
    ] = _DEFAULT.least,
    age: Annotated[float, typer.Option(min=0, help="seconds; younger segments are left alone")] = 0.0,
    older_layouts: Annotated[
        bool,
        typer.Option(
            "--older-layouts",
            help="instead, move all that waits in buckets that the queue had before; without --small, --least, --age",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Merge small segments and settled rows of a queue or subscription; safe beside everything, and to interrupt."""
    wanted = Candidates(small_bytes=int(small * (1 << 20)), least=least, age_seconds=age)
    with (
        store.open() as opened,
        StopSignals() as signals,
        _shown(queue_id, is_quiet=dry_run) as on_progress,
    ):
        report: CompactionReport = (rewrite if older_layouts else merge)(
            opened.database,
            queue_id,
            wanted=wanted,
            dry_run=dry_run,
            on_progress=on_progress,
            stops=signals.requested,
        )
    if as_json:
        print_json(report.to_json())
        return
    for unit in report.units:
        say(unit.line(dry_run=dry_run))
    say(report.line())


@contextlib.contextmanager
def _shown(queue_id: str, *, is_quiet: bool) -> Iterator[Callable[[CompactionProgress], None] | None]:
    """Show how far a compaction has come: on a terminal by a bar."""
    console = Console(stderr=True)
    with shown_lines():
        if is_quiet or not console.is_terminal:
            yield None
            return
        with ProgressBar(console, f"compact {queue_id}") as bar:
            yield lambda progress: bar.show(done=progress.done, left=progress.total - progress.done)


@command("fall-back")
def fall_back(
    queue_id: QueueId,
    file: Annotated[str, typer.Argument(metavar="FILE", help="the lost file, as the error names it")],
    store: StoreOptions,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Let the inputs of a compaction count again whose output is lost: files are kept for that until the vacuum."""
    with store.open() as opened:
        report = opened.dead_letters.fall_back(queue_id, file, who=who)
    if as_json:
        print_json(asdict(report))
        return
    say(report.line())


@command()
def vacuum(
    store: StoreOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say which files would be deleted, and when")] = False,
    grace: Annotated[
        float, typer.Option(min=0, help="hours for which a file stays after a run has found that nothing refers to it")
    ] = GRACE_SECONDS / HOUR,
    keep_hidden: Annotated[
        float, typer.Option(min=0, help="hours for which the inputs of a compaction are kept, to fall back on")
    ] = 24,
    as_json: AsJson = False,
) -> None:
    """Delete files of bulk entries that nothing refers to; never one of a transaction that may still commit."""
    with store.open() as opened:
        _ = opened.identity
        report = delete_files(
            opened.database, hidden_seconds=keep_hidden * HOUR, patience=Patience(files=grace * HOUR), dry_run=dry_run
        )
    if as_json:
        waiting = [asdict(one) for one in report.waiting]
        print_json({"dry_run": dry_run, "files": list(report.deleted), "waiting": waiting, "more": report.more})
        return
    for file in report.deleted:
        say(file)
    for one in report.waiting if dry_run else ():
        say(f"{one.file} stays for {math.ceil(one.seconds / 60)} minutes")
    say(
        f"{report.files} files {'would be' if dry_run else 'were'} deleted"
        + (f", {len(report.waiting)} are in their grace time" if report.waiting else "")
        + (", more are left" if report.more else "")
    )
