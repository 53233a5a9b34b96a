"""``export-queue verify``: what a sink holds against what it should hold, and its repair."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated

import typer
from rich.console import Console

from export_queue.core.arguments import number_or_part
from export_queue.core.cli.console import FAILED, Result
from export_queue.core.cli.naming import search_current_folder
from export_queue.core.cli.options import AsJson, QueueId, SinkName, SinkOptions, SinkText, StoreOptions, command
from export_queue.core.cli.stopping import sigterm_interrupts
from export_queue.core.progress_bar import ProgressBar
from export_queue.core.verify import VerifyProgress, VerifyRequest, verify_as_requested

_STEPS = {"source": "the source", "sink": "the sink", "check": "checked again"}


@command()
def verify(
    queue_id: QueueId,
    sink: SinkText,
    store: StoreOptions,
    sink_options: SinkOptions,
    source: Annotated[
        str,
        typer.Option(
            help="state, table:NAME of a table of the store, or MODULE:NAME of a function that yields keys and values "
            "or of a source"
        ),
    ] = "state",
    records: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="instead of a source: a function that yields the records which the sink should have",
        ),
    ] = None,
    exporter: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="exporter of the drains; by default the stored one")
    ] = None,
    sink_name: SinkName = None,
    collection: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="read this collection, too: the exporter may have written to it"),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="write the records that differ again, and compare once more")
    ] = False,
    max_deletes: Annotated[
        str,
        typer.Option(help="with --repair: largest part of the records that may be deleted, 0.0 to 1.0, or a number"),
    ] = "0.2",
    lock_timeout: Annotated[
        float, typer.Option(min=0, help="with --repair: seconds to wait for drains; then compactions lose their locks")
    ] = 600,
    as_json: AsJson = False,
) -> Iterator[Result]:
    """Compare the records of a sink with the content of a queue. Producers and drains may continue.

    Without --repair no record is written. Status 1 means that there are differences, or that a repair has left some.
    Entries that are pending, younger than the comparison or dead letters are no differences.
    """
    search_current_folder()
    with sink_options.describe(sink, name=sink_name) as described, store.open() as opened:
        request = VerifyRequest(
            queue_id=queue_id,
            sink_name=described.name,
            source=source,
            records=records,
            exporter=exporter,
            collections=collection or (),
            repair=repair,
            max_deletes=number_or_part(max_deletes, what="--max-deletes"),
            lock_timeout=lock_timeout,
        )
        with sigterm_interrupts(), _shown_progress(f"{queue_id} ↔ {described.name}") as on_progress:
            report = verify_as_requested(opened, described, request, on_progress=on_progress)
    yield Result(json=report.to_dict(), lines=report.lines())
    if report.differences:
        raise typer.Exit(FAILED)


@contextlib.contextmanager
def _shown_progress(title: str) -> Iterator[Callable[[VerifyProgress], None] | None]:
    """Show on a terminal which step is under way, and how many records it has read."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with ProgressBar(console, title, total=0) as bar:

        def on_progress(progress: VerifyProgress) -> None:
            bar.show(done=progress.records, remark=_STEPS[progress.step])

        yield on_progress
