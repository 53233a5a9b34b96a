"""``export-queue``: look at a store and set it up."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from random import Random
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

from export_queue.core.cli.loading import load_function
from export_queue.core.cli.stopping import StopSignals
from export_queue.core.client import Store
from export_queue.core.errors import ExportQueueError
from export_queue.core.locks import holders
from export_queue.core.observers import Processed, work
from export_queue.core.references import resolve_secret

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Look at a store of export queues and set it up.")

Url = Annotated[
    str, typer.Option("--store", envvar="EXPORT_QUEUE_STORE", help="sqlite:///path or postgresql://user@host/db")
]
Password = Annotated[
    str | None,
    typer.Option(
        "--password", help="where the password is: env:NAME, file:PATH or module:function; never the password"
    ),
]
Schema = Annotated[str, typer.Option("--schema", help="PostgreSQL schema that holds the store")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
ROUND = 1000
"""Observers that are called between two looks at what is new."""

log = logging.getLogger("export_queue.observers")


def main() -> None:
    """Run the command line; an error of this library ends it with one message and status 1."""
    try:
        app()
    except ExportQueueError as error:
        sys.exit(f"{type(error).__name__}: {error}")


@contextmanager
def _open(url: str, password: str | None, schema: str) -> Iterator[Store]:
    secret = None if password is None else resolve_secret(password)
    with Store.open(url, password=secret, schema=schema) as store:
        yield store


@app.command()
def init(store: Url, password: Password = None, schema: Schema = "export_queue") -> None:
    """Create the store, or complete it; safe to repeat."""
    with _open(store, password, schema) as opened:
        opened.create()
        print(f"store {opened.id} is ready in {opened.url_safe} (schema version {opened.identity.schema_version})")


@app.command()
def status(store: Url, password: Password = None, schema: Schema = "export_queue", as_json: AsJson = False) -> None:
    """Show every queue: what waits, how long, what is dead, where it drains."""
    rows = []
    with _open(store, password, schema) as opened:
        for queue in opened.queues():
            units = opened.backlog(queue.id)
            oldest = min((unit.oldest_seq for unit in units), default=None)
            rows.append(
                {
                    "queue": queue.id,
                    "sink": queue.sink,
                    "entries": sum(unit.entries for unit in units),
                    "bytes": sum(unit.bytes for unit in units),
                    "ranges": [unit.range.to_json() for unit in units],
                    "oldest": None if oldest is None else _time(oldest // 1_000_000),
                    "dead": opened.count_dead(queue.id),
                }
            )
    _show(rows, as_json, hide=("ranges",))


@app.command()
def locks(store: Url, password: Password = None, schema: Schema = "export_queue", as_json: AsJson = False) -> None:
    """Show who works on which range of which queue."""
    rows = []
    with _open(store, password, schema) as opened:
        for queue in opened.queues():
            with opened.database.read() as work:
                found = holders(work, queue, queue.units())
            rows += [
                {
                    "queue": queue.id,
                    "range": holder.range.to_json(),
                    "task": holder.owner.task,
                    "fence": str(holder.fence),
                    "until": _time(holder.lease_ms),
                }
                for holder in found
            ]
    _show(rows, as_json)


@app.command()
def idempotency(
    name: Annotated[str, typer.Argument(help="the unit of work; of a task: dag/run/task or dag/run/task/map index")],
    store: Url,
    password: Password = None,
    schema: Schema = "export_queue",
    close: Annotated[bool, typer.Option("--close", help="let the same unit of work take effect anew")] = False,
    as_json: AsJson = False,
) -> None:
    """Show whether a unit of work has taken effect, and with which result."""
    with _open(store, password, schema) as opened:
        if close and not opened.close_idempotency_key(name):
            sys.exit(f"idempotency key {name!r} has not taken effect, so there is nothing to close")
        state = opened.idempotency(name)
    _show([{"idempotency_key": name, **asdict(state)}], as_json)


@app.command()
def observe(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="is given the store and registers observers")
    ],
    store: Url,
    password: Password = None,
    schema: Schema = "export_queue",
    poll: Annotated[float, typer.Option(min=0.01, help="seconds between two looks when nothing is due")] = 1.0,
    timeout: Annotated[float, typer.Option(help="seconds that one observer's transaction may take")] = 30.0,
) -> None:
    """Call observers until SIGTERM or Ctrl-C comes; the transaction at hand is ended first.

    The module is looked for in the current folder too. Several such processes share the work.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with _open(store, password, schema) as opened, StopSignals() as signals:
        load_function(target)(opened)
        log.info("observing %s; SIGTERM ends this", opened.url_safe)

        def one_round() -> Processed:
            return opened.process_notifications(limit=ROUND, timeout=timeout, stop=signals.requested)

        total = work(one_round, stopped=signals.requested, wait=signals.wait, poll=poll, random=Random())
    log.info("stopped: %d done, %d conflicted, %d failed", total.done, total.conflicted, total.failed)


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def _show(rows: Sequence[dict[str, Any]], as_json: bool, hide: Sequence[str] = ()) -> None:
    if as_json:
        print(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    if not rows:
        print("nothing to show")
        return
    names = [name for name in rows[0] if name not in hide]
    table = Table(*names)
    for row in rows:
        table.add_row(*("" if row[name] is None else str(row[name]) for name in names))
    Console().print(table)
