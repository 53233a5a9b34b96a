"""``export-queue sweep``, ``readmit`` and ``ddl``: tombstones, sinks that have lost data, and what a target lacks."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from export_queue.core.cli.console import (
    AsJson,
    BehindPooler,
    Password,
    Schema,
    Url,
    app,
    open_store,
    print_json,
    say,
    show_log,
    show_one,
)
from export_queue.core.cli.naming import named_sink
from export_queue.core.cli.passwords import refuse_passwords
from export_queue.core.cli.queues import Complete, Who
from export_queue.core.cli.sink_options import NAMES, SinkName, SinkOptions, SinkSecrets, SinkText
from export_queue.core.drain import readmit as take_anyway
from export_queue.core.errors import InvalidArgument
from export_queue.core.queue import remedy
from export_queue.core.sinks import PreparableSink, SinkSpec


@app.command()
def sweep(
    sinks: Annotated[list[str], typer.Argument(metavar="SINK…", callback=refuse_passwords, help=f"sinks: {NAMES}")],
    store: Url,
    password: Password = None,
    schema: Schema = "export_queue",
    behind_pooler: BehindPooler = False,
    sink_option: SinkOptions = None,
    sink_secret: SinkSecrets = None,
    as_json: AsJson = False,
) -> None:
    """Let sinks forget deletes that no delivery can meet any more; safe beside drains, and to interrupt.

    A sink keeps a tombstone for each deleted record. The command removes the tombstones below everything that the store
    may still send; an operation with so low a sequence is stale in the sink from then on. The store must be the only
    one that feeds the sink.
    """
    show_log("export_queue")  # not all: clients log each request
    with contextlib.ExitStack() as stack:
        described = [
            stack.enter_context(named_sink(text, options=sink_option or (), secrets=sink_secret or ()))
            for text in sinks
        ]
        opened = stack.enter_context(open_store(store, password, schema, behind_pooler=behind_pooler))
        for sink in described:
            report = opened.sweep_sink(sink)
            if as_json:
                print_json(report.to_json())
            else:
                say(report.line())


@app.command()
def readmit(
    queue_id: Annotated[str, typer.Argument(metavar="QUEUE", help="id of the queue")],
    sink: Annotated[str, typer.Argument(metavar="SINK", callback=refuse_passwords, help=f"the sink: {NAMES}")],
    store: Url,
    password: Password = None,
    schema: Schema = "export_queue",
    behind_pooler: BehindPooler = False,
    sink_option: SinkOptions = None,
    sink_secret: SinkSecrets = None,
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
        named_sink(sink, options=sink_option or (), secrets=sink_secret or (), name=sink_name) as described,
        open_store(store, password, schema, behind_pooler=behind_pooler) as opened,
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


@app.command()
def ddl(
    collections: Annotated[
        list[str],
        typer.Argument(metavar="QUEUE|COLLECTION…", help="collections: by default the queue's id"),
    ],
    sink: SinkText,
    sink_option: SinkOptions = None,
    sink_secret: SinkSecrets = None,
    run: Annotated[bool, typer.Option("--run", help="run the statements, too")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what a sink's target still lacks: tables, columns, indices; with --run, bring it about.

    Nothing is printed where nothing is missing. Running is safe beside drains, and to repeat: a change waits two
    seconds for those that use its table, and tries again.
    """
    rows = []
    with named_sink(sink, options=sink_option or (), secrets=sink_secret or ()) as described:
        for part in described.leaves():
            statements = _statements(part, collections, run=run)
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
