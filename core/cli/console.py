"""The command line's frame: the program, the options that commands share, opening a store and showing rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

from export_queue.core.client import Store
from export_queue.core.errors import ExportQueueError
from export_queue.core.references import resolve_secret

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Look at a store of export queues and set it up.")

Url = Annotated[
    str, typer.Option("--store", envvar="EXPORT_QUEUE_STORE", help="sqlite:///path or postgresql://user@host/db")
]
Password = Annotated[
    str | None,
    typer.Option(
        "--password", help="reference to the password: env:NAME, file:PATH or module:function; never the password"
    ),
]
Schema = Annotated[str, typer.Option("--schema", help="PostgreSQL schema that holds the store")]
BehindPooler = Annotated[
    bool,
    typer.Option("--behind-pooler", help="the URL leads to a pooler in transaction mode, such as PgBouncer's"),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]


def main() -> None:
    """Run the command line; an error of this library ends it with one message and status 1."""
    try:
        app()
    except ExportQueueError as error:
        sys.exit(f"{type(error).__name__}: {error}")


def open_store(url: str, password: str | None, schema: str, *, behind_pooler: bool) -> Store:
    """Open the store that a command's options name; leaving a ``with`` block closes it.

    :param password: a reference to the password.
    """
    secret = None if password is None else resolve_secret(password)
    return Store.open(url, password=secret, schema=schema, behind_pooler=behind_pooler)


def show(rows: Sequence[dict[str, Any]], *, as_json: bool, hide: Sequence[str] = ()) -> None:
    """Print rows of equal names.

    :param hide: names that the table leaves out; JSON has them all.
    """
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


def utc_time(milliseconds: int) -> str:
    """Show milliseconds since the epoch as a time of day, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
