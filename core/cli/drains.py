"""``export-queue drain``: draining a queue in this process."""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass
from typing import Annotated, Literal, cast

import typer

from export_queue.core.cli.console import print_json, say
from export_queue.core.cli.loading import search_current_folder
from export_queue.core.cli.options import AsJson, QueueId, SinkName, SinkOptions, SinkText, StoreOptions, command
from export_queue.core.cli.progress import shown_lines, shown_progress
from export_queue.core.cli.stopping import StopSignals, sigterm_interrupts, status_of
from export_queue.core.client import Store
from export_queue.core.drain import DrainOptions, DrainReport, DrainRequest, drain_as_requested, follow
from export_queue.core.errors import ExportQueueError
from export_queue.core.printable import printable
from export_queue.core.sinks import SinkSpec


@dataclass(frozen=True, kw_only=True)
class DrainChoice:
    """The options of a drain, as :class:`DrainOptions` names them."""

    exporter: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="exporter; by default the stored one, or a record an entry"),
    ] = None
    ranges: Annotated[
        list[str] | None, typer.Option("--range", metavar="FIRST:END[:LAYOUT]", help="only these buckets, whole units")
    ] = None
    if_locked: Annotated[
        Literal["wait", "skip", "fail"] | None, typer.Option(help="ranges that others hold: wait, skip or fail; wait")
    ] = None
    lock_timeout: Annotated[float | None, typer.Option(min=0, help="seconds to wait for other drains; 600")] = None
    time_limit: Annotated[
        float | None,
        typer.Option(min=0, help="seconds after which to end, with status 75; with --follow its end, with 0"),
    ] = None
    on_error: Annotated[
        Literal["dead_letter", "fail"] | None, typer.Option(help="refused entries: dead_letter or fail; dead_letter")
    ] = None
    max_dead: Annotated[int | None, typer.Option(min=0, help="most entries that may be set aside; 1000")] = None

    def options(self) -> DrainOptions:
        """Return the options, under a name of the drain's own."""
        ranges = None if self.ranges is None else [_range(text) for text in self.ranges]
        return cast(DrainOptions, {**vars(self), "ranges": ranges, "drain_id": uuid.uuid4().hex})


@command()
def drain(
    queue_id: QueueId,
    sink: SinkText,
    store: StoreOptions,
    sink_options: SinkOptions,
    chosen: DrainChoice,
    sink_name: SinkName = None,
    goes_on: Annotated[
        bool, typer.Option("--follow", help="go on, and bring entries soon after their commit, until SIGTERM or Ctrl-C")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring the committed entries of a queue into a sink, in this process.

    Once it has ended with status 0, every entry that was committed before is in the sink or is a dead letter. Ctrl-C
    and SIGTERM end it cleanly: what the sink has acknowledged stays removed, the rest waits. With --follow they are the
    ordinary end, with status 0, as a time limit is: the chunk at hand is brought first.
    """
    search_current_folder()
    with (
        sink_options.describe(sink, name=sink_name) as described,
        store.open() as opened,
    ):
        options = chosen.options()
        if goes_on:
            _tell(_follow(opened, queue_id, described, options), as_json=as_json)
            return
        request = DrainRequest.of(queue_id, described.name, options)
        try:
            with sigterm_interrupts(), shown_progress(opened, request) as on_progress:
                report = drain_as_requested(opened, described, request, on_progress=on_progress)
        except KeyboardInterrupt as interruption:
            _tell_failure(opened, request, as_json=as_json)
            print("\n".join(["stopped", *map(printable, getattr(interruption, "__notes__", ()))]), file=sys.stderr)
            raise typer.Exit(status_of(interruption)) from None
        except ExportQueueError:
            _tell_failure(opened, request, as_json=as_json)
            raise
    _tell(report, as_json=as_json)


def _tell(report: DrainReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report.to_dict())
    else:
        say(report.line())


def _follow(store: Store, queue_id: str, sink: SinkSpec, options: DrainOptions) -> DrainReport:
    with StopSignals() as signals, shown_lines():
        return follow(store, queue_id, sink, stop=signals.requested, **options)


def _tell_failure(store: Store, request: DrainRequest, *, as_json: bool) -> None:
    """Print the report of a drain that has failed, for programs; people read it with the error."""
    if not as_json:
        return
    try:
        found = store.reports(drain_id=request.drain_id)
    except ExportQueueError:  # the drain's own error is told
        return
    for report in found:
        print_json(report)


def _range(text: str) -> list[int]:
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(map(str.isdecimal, parts)) or int(parts[0]) >= int(parts[1]):
        raise typer.BadParameter(
            f"expected two rising numbers such as 0:101, and perhaps a layout as in 0:101:2, found {text!r}",
            param_hint="--range",
        )
    return list(map(int, parts))
