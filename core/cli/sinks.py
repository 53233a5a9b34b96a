"""``export-queue sweep``, ``readmit`` and ``ddl``: tombstones, sinks that have lost data, and what a target lacks."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from export_queue.core.cli.console import print_json, say, show_log, show_one
from export_queue.core.cli.options import (
    SINK_NAMES,
    AsJson,
    Complete,
    QueueId,
    SinkName,
    SinkOptions,
    SinkText,
    StoreOptions,
    Who,
    command,
)
from export_queue.core.cli.passwords import refuse_passwords
from export_queue.core.drain import readmit as take_anyway
from export_queue.core.errors import InvalidArgument
from export_queue.core.queue import remedy
from export_queue.core.sinks import PreparableSink, SinkSpec, first_collection


@command()
def sweep(
    sinks: Annotated[
        list[str], typer.Argument(metavar="SINK…", callback=refuse_passwords, help=f"sinks: {SINK_NAMES}")
    ],
    store: StoreOptions,
    sink_options: SinkOptions,
    as_json: AsJson = False,
) -> None:
    """Let sinks forget deletes that no delivery can meet any more; safe beside drains, and to interrupt.

    A sink keeps a tombstone for each deleted record. The command removes the tombstones below everything that the store
    may still send; an operation with so low a sequence is stale in the sink from then on. The store must be the only
    one that feeds the sink.
    """
    show_log("export_queue")  # not all: clients log each request
    with contextlib.ExitStack() as stack:
        described = [stack.enter_context(sink_options.describe(text)) for text in sinks]
        opened = stack.enter_context(store.open())
        for sink in described:
            report = opened.sweep_sink(sink)
            if as_json:
                print_json(report.to_json())
            else:
                say(report.line())


@command()
def readmit(
    queue_id: QueueId,
    sink: Annotated[str, typer.Argument(metavar="SINK", callback=refuse_passwords, help=f"the sink: {SINK_NAMES}")],
    store: StoreOptions,
    sink_options: SinkOptions,
    sink_name: SinkName = None,
    complete: Complete = False,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a sink that has lost data, which drains refuse; it is taken as it is.

    The command delivers nothing again. The sink counts as incomplete, in drains and in status, until a first load of
    the subscription has delivered everything, or somebody declares it complete. Tables and indices of the sink's
    description that are gone are created again.
    """
    with (
        sink_options.describe(sink, name=sink_name) as described,
        store.open() as opened,
    ):
        found = take_anyway(opened, queue_id, described, complete=complete, who=who)
    lines = [mark.line() for mark in found]
    if as_json:
        show_one({"queue": queue_id, "sink": described.name, "incomplete": lines}, as_json=True)
        return
    say(f"{described.name} is admitted as it is; queue {queue_id} may be drained into it")
    for line in lines:
        say(f"it is incomplete: {line}")
    if lines:
        say(remedy(queue_id))


@command()
def ddl(
    collections: Annotated[
        list[str],
        typer.Argument(metavar="QUEUE|COLLECTION…", help="collections: by default the id of the queue itself"),
    ],
    sink: SinkText,
    sink_options: SinkOptions,
    run: Annotated[bool, typer.Option("--run", help="run the statements, too")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what a sink's target still lacks: tables, columns, indices; with --run, bring it about.

    Nothing is printed where nothing is missing. Running is safe beside drains, and to repeat: a change waits two
    seconds for those that use its table, and tries again.
    """
    rows = []
    with sink_options.describe(sink) as described:
        for part in described.leaves():
            statements = _statements(part, [*map(first_collection, collections)], run=run)
            rows.append({"sink": part.name, "statements": statements, "ran": run and bool(statements)})
    if as_json:
        print_json(rows, indented=True)
    else:
        print("\n".join(str(row["statements"]) for row in rows if row["statements"]), end="")


def _statements(part: SinkSpec, collections: list[str], *, run: bool) -> str:
    opened = part.open()
    try:
        if not isinstance(opened, PreparableSink):
            raise InvalidArgument(
                f"sink {part.name} has nothing to prepare: it creates what it needs, with the first batch"
            )
        return opened.run_ddl(*collections) if run else opened.ddl(*collections)
    finally:
        opened.close()
