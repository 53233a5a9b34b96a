"""The command line's frame: the program, the options that commands share, opening a store and showing rows."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from export_queue.core.cli.naming import open_named_store
from export_queue.core.cli.passwords import refuse_passwords
from export_queue.core.client import Store
from export_queue.core.errors import ExportQueueError, InvalidArgument

DISTRIBUTION = "airflow-provider-export-queue"
FAILED, WRONG_USE, TRY_AGAIN = 1, 2, 75
"""Exit statuses after an error: whether a repetition may help. 75 is EX_TEMPFAIL of sysexits.h."""

IDENTIFYING = frozenset({"queue", "subscription", "sink", "seq", "drain_id"})
"""Columns that a narrow terminal does not break."""

app = typer.Typer(no_args_is_help=True, help="Set a store of export queues up, look at it, and drain its queues.")

Url = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="EXPORT_QUEUE_STORE",
        callback=refuse_passwords,
        help="sqlite:///path, postgresql://user@host/db, env:NAME of such a URL, or the id of an Airflow connection",
    ),
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
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"export-queue {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def _program(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Set a store of export queues up, look at it, and drain its queues."""


def main() -> None:
    """Run the command line; an error of this library ends it with one message, and with status 1 or 75."""
    try:
        _refuse_halves(sys.argv)
        try:
            app()
        finally:
            sys.stdout.flush()  # here, where a full disk can still be told
    except ExportQueueError as error:
        lines = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]).split("\n")
        print("\n".join(map(printable, lines)), file=sys.stderr)
        sys.exit(TRY_AGAIN if error.transient else FAILED)
    except OSError as error:
        sys.stdout = io.StringIO()  # what it still holds cannot be written at the end either
        print(f"{type(error).__name__}: {error.strerror or error}", file=sys.stderr)
        sys.exit(FAILED)


def _refuse_halves(arguments: Sequence[str]) -> None:
    for place, text in enumerate(arguments):
        try:
            text.encode()
        except UnicodeEncodeError:
            print(f"argument {place}: expected UTF-8, found other bytes", file=sys.stderr)
            sys.exit(WRONG_USE)


def open_store(url: str, password: str | None, schema: str, *, behind_pooler: bool) -> Store:
    """Open the store that a command's options name; leaving a ``with`` block closes it.

    :param password: a reference to the password.
    """
    return open_named_store(url, password=password, schema=schema, behind_pooler=behind_pooler)


def show(rows: Sequence[Mapping[str, Any]], *, as_json: bool, hide: Sequence[str] = ()) -> None:
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
    cells = {name: [Text(printable(row[name])) for row in rows] for name in names}
    table = Table()
    for name in names:
        whole = max(cell.cell_len for cell in cells[name]) if name in IDENTIFYING else None
        table.add_column(name, no_wrap=whole is not None, min_width=whole)
    for line in zip(*cells.values(), strict=True):
        table.add_row(*line)
    console = Console()
    # Nothing is cut, and no word broken: other commands take what stands in a cell.
    needed = console.measure(table, options=console.options.update(max_width=1 << 20))
    if not console.is_terminal:
        console.width = max(console.width, needed.maximum)
    elif needed.minimum > console.width:
        console.width = needed.minimum
    console.print(table)


def printable(value: object) -> str:
    """Show a value as text, its control characters as escapes: a terminal would obey them."""
    if value is None:
        return ""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in str(value))


def show_one(row: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one thing: its names and values line by line, or a JSON object."""
    if as_json:
        print(orjson.dumps(row, option=orjson.OPT_INDENT_2).decode())
        return
    width = max(map(len, row))
    for name, value in row.items():
        print(f"{name:<{width}}  {printable(value)}".rstrip())


def utc_time(milliseconds: int) -> str:
    """Show milliseconds since the epoch as a time of day, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def seq_time(seq: int) -> str:
    """Show the time that an id carries."""
    return utc_time(seq // 1_000_000)


def text_of_bytes(raw: bytes | None) -> str | None:
    """Show bytes as text, with escapes for what is none."""
    return None if raw is None else raw.decode("utf-8", "backslashreplace")


def bytes_of_hex(digits: str) -> bytes:
    """Read hexadecimal digits of the command line.

    :raises InvalidArgument: they are none.
    """
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise InvalidArgument(f"expected hexadecimal digits, found {digits!r}") from None
