"""``export-queue sweep``, ``readmit`` and ``ddl``: tombstones, lost data, and what a target lacks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer

from export_queue.core.cli.console import Result, print_json, show_log
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
    refuse_passwords,
)
from export_queue.core.drain import readmit as take_anyway
from export_queue.core.errors import InvalidArgument
from export_queue.core.maintenance import SinkSweep
from export_queue.core.queue import remedy
from export_queue.core.sinks import PreparableSink, SinkSpec, first_collection


@command()
def sweep(
    sinks: Annotated[
        list[str], typer.Argument(metavar="SINK…", callback=refuse_passwords, help=f"sinks: {SINK_NAMES}")
    ],
    store: StoreOptions,
    sink_options: SinkOptions,
) -> Iterator[SinkSweep]:
    """Remove tombstones that sinks no longer need. Drains may run meanwhile, and the command may be interrupted.

    A sink keeps a tombstone for each deleted record. The command removes the tombstones below everything that the store
    may still send; from then on the sink treats an operation with so low a sequence as stale. The store must be the
    only one that feeds the sink.
    """
    show_log("export_queue")  # not all: clients log each request
    with contextlib.ExitStack() as stack:
        described = [stack.enter_context(sink_options.describe(text)) for text in sinks]
        opened = stack.enter_context(store.open())
        for sink in described:
            yield opened.sweep_sink(sink)


@command()
def readmit(
    queue_id: QueueId,
    sink: Annotated[str, typer.Argument(metavar="SINK", callback=refuse_passwords, help=f"the sink: {SINK_NAMES}")],
    store: StoreOptions,
    sink_options: SinkOptions,
    sink_name: SinkName = None,
    complete: Complete = False,
    who: Who = None,
) -> Result:
    """Continue with a sink that has lost data, which drains refuse. The sink is accepted as it is.

    Nothing is delivered again. The sink counts as incomplete, in drains and in the status, until a first load of the
    subscription has delivered everything, or somebody declares the sink complete. Missing tables and indices of the
    sink's description are created again.
    """
    with sink_options.describe(sink, name=sink_name) as described, store.open() as opened:
        lines = [mark.line() for mark in take_anyway(opened, queue_id, described, complete=complete, who=who)]
    without = " without the lost records" if lines else ""
    return Result(
        json={"queue": queue_id, "sink": described.name, "incomplete": lines},
        lines=[
            f"{described.name} is accepted{without}; drains of queue {queue_id} continue",
            *(f"it is incomplete: {line}" for line in lines),
            *([remedy(queue_id)] if lines else []),
        ],
    )


@command()
def ddl(
    collections: Annotated[
        list[str],
        typer.Argument(metavar="QUEUE|COLLECTION…", help="collections; without an exporter, the id of the queue"),
    ],
    sink: SinkText,
    sink_options: SinkOptions,
    run: Annotated[bool, typer.Option("--run", help="also run the statements")] = False,
    as_json: AsJson = False,
) -> None:
    """Print statements for what a sink's target lacks: tables, columns, indices. With --run, also run them.

    Nothing is printed if nothing is missing. Running is safe to repeat, and drains may run meanwhile: a change waits
    two seconds for those that use its table, and is tried again.
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
                f"sink {part.name} has nothing to prepare: it creates what it needs with the first batch"
            )
        return opened.run_ddl(*collections) if run else opened.ddl(*collections)
    finally:
        opened.close()
