"""``export-queue rebuild``: replace the target of a subscription without downtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from export_queue.core.cli.console import Result, app
from export_queue.core.cli.naming import options_of, search_current_folder
from export_queue.core.cli.options import SinkName, SinkOptions, SinkText, StoreOptions, Who, command
from export_queue.core.cli.stopping import sigterm_interrupts
from export_queue.core.client import Store
from export_queue.core.errors import UnknownQueue
from export_queue.core.verify import POINTER, Rebuild

rebuild = typer.Typer(no_args_is_help=True, help="Replace the target of a subscription without downtime.")
app.add_typer(rebuild, name="rebuild")

Reader = Annotated[str, typer.Argument(metavar="QUEUE/NAME", help="the subscription whose target is replaced")]
Wait = Annotated[float, typer.Option(min=0, help="seconds to wait for drains")]


@dataclass(frozen=True, kw_only=True)
class NewTarget:
    """The options that describe the new target."""

    pointer: Annotated[
        str,
        typer.Option(help="name that readers use, from $collection: an alias, a view, or a key with a key template"),
    ] = POINTER
    new_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="an option of the sink for the new target; the others are the old ones"
        ),
    ] = None
    exporter: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="the new exporter; by default the old one")
    ] = None
    name: Annotated[str | None, typer.Option(help="name of the new subscription; by default with the next number")] = (
        None
    )
    source: Annotated[
        str, typer.Option(help="state, or MODULE:NAME of a function that yields keys and values, or of a source")
    ] = "state"
    collection: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="a collection that has a pointer; by default that of the queue's name"),
    ] = None


@command(of=rebuild)
def start(
    reader: Reader,
    sink: SinkText,
    new: NewTarget,
    store: StoreOptions,
    sink_options: SinkOptions,
    sink_name: SinkName = None,
    who: Who = None,
) -> Result:
    """Add the subscription that fills the new target, with its first load. Then drain it."""
    search_current_folder()
    with sink_options.describe(sink, name=sink_name) as described, store.open() as opened, sigterm_interrupts():
        found = opened.rebuilds.start(
            reader,
            described,
            pointer=new.pointer,
            new_options=options_of(new.new_option or ()),
            exporter=new.exporter,
            name=new.name,
            source=new.source,
            collections=new.collection or (),
            who=who,
        )
    return _shown(found)


@command(of=rebuild)
def status(
    store: Store,
    reader: Annotated[
        str | None, typer.Argument(metavar="QUEUE/NAME", help="the subscription whose target is replaced")
    ] = None,
) -> Result:
    """Show the last rebuild of a subscription, by default of all, and what is pending for both targets."""
    found = store.rebuilds.list() if reader is None else [store.rebuilds.status(reader)]
    rows = [
        one.to_dict() | {"entries": _pending(store, one.reader), "new_entries": _pending(store, one.new_reader)}
        for one in found
    ]
    hidden = ("binding", "source", "who", "begun")
    return Result(json=rows, table=[row | {"pointers": ", ".join(row["pointers"])} for row in rows], hide=hidden)


def _pending(store: Store, reader: str) -> int | None:
    """Count the pending entries of a reader; None if it was removed."""
    try:
        return sum(unit.entries for unit in store.backlog(reader))
    except UnknownQueue:
        return None


@command(of=rebuild)
def switch(
    reader: Reader,
    sink: SinkText,
    store: StoreOptions,
    sink_options: SinkOptions,
    sink_name: SinkName = None,
    force: Annotated[bool, typer.Option("--force", help="do not verify, and ignore dead letters")] = False,
    wait: Wait = 600,
) -> Result:
    """Verify the new target, deliver what is pending, and let the pointers lead to it."""
    search_current_folder()
    with sink_options.describe(sink, name=sink_name) as described, store.open() as opened, sigterm_interrupts():
        return _shown(opened.rebuilds.switch(reader, described, force=force, lock_timeout=wait))


@command(of=rebuild)
def back(
    reader: Reader,
    sink: SinkText,
    store: StoreOptions,
    sink_options: SinkOptions,
    sink_name: SinkName = None,
    wait: Wait = 600,
) -> Result:
    """Deliver what is pending to the old target, and let the pointers lead to it again."""
    search_current_folder()
    with sink_options.describe(sink, name=sink_name) as described, store.open() as opened, sigterm_interrupts():
        return _shown(opened.rebuilds.back(reader, described, lock_timeout=wait))


@command(of=rebuild)
def finish(reader: Reader, store: Store, who: Who = None) -> Result:
    """Remove the old subscription. Its target stays, and no longer follows."""
    return _shown(store.rebuilds.finish(reader, who=who))


@command(of=rebuild)
def cancel(reader: Reader, store: Store, who: Who = None) -> Result:
    """Remove the new subscription before the switch. Its target stays, and no longer follows."""
    return _shown(store.rebuilds.cancel(reader, who=who))


def _shown(found: Rebuild) -> Result:
    plain: dict[str, Any] = found.to_dict()
    return Result(json=plain, lines=[found.line()])
