"""The command line's frame: the program, its exit status, and how results are shown."""

from __future__ import annotations

import io
import json
import logging
import re
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
from typer.core import TyperGroup

from export_queue.core.cli.stopping import status_of
from export_queue.core.errors import ExportQueueError, InvalidArgument
from export_queue.core.printable import PrintableLines, printable

DISTRIBUTION = "airflow-provider-export-queue"
FAILED, WRONG_USE, TRY_AGAIN = 1, 2, 75
"""Exit statuses after an error: whether a repetition may help. 75 is EX_TEMPFAIL of sysexits.h."""

_NO_ASCII = re.compile(r"[\x7f-\U0010ffff]")
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"

DELETE = "(delete)"
IDENTIFYING = frozenset({"queue", "subscription", "sink", "seq", "drain_id"})
"""Columns that a narrow terminal does not break."""


class _Program(TyperGroup):
    """The commands; Ctrl-C in one of them is told in one line, which Typer would not do."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            print("stopped", file=sys.stderr)
            raise typer.Exit(status_of(interruption)) from None


app = typer.Typer(
    cls=_Program, no_args_is_help=True, help="Set a store of export queues up, look at it, and drain its queues."
)


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
    if logging.lastResort is not None:  # the handler of warnings where a command shows no log
        logging.lastResort.setFormatter(PrintableLines())
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


def show(rows: Sequence[Mapping[str, Any]], *, as_json: bool, hide: Sequence[str] = ()) -> None:
    """Print rows of equal names.

    :param hide: names that the table leaves out; JSON has them all.
    """
    if as_json:
        print_json(rows, indented=True)
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


def shown_delete(row: Mapping[str, Any]) -> dict[str, Any]:
    """Show people an entry that says that its record is gone; JSON has null there."""
    return {
        name: DELETE if name in ("value", "value_bytes") and value is None else value for name, value in row.items()
    }


def print_json(value: object, *, indented: bool = False) -> None:
    """Print JSON; control characters beyond ASCII are escapes, too, which say the same to every program."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indented else None).decode()
    print(_NO_ASCII.sub(_escaped, text), flush=True)


def _escaped(found: re.Match[str]) -> str:
    one = found[0]
    return one if one.isprintable() else json.dumps(one)[1:-1].replace("\x7f", "\\u007f")


def say(text: str) -> None:
    """Print a line that may hold what others have written."""
    print(printable(text), flush=True)


def show_log(name: str | None = None) -> None:
    """Show log lines on the standard error from now on.

    :param name: of the loggers whose lines are shown from INFO on; by default all.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableLines(LOG_FORMAT))
    logging.basicConfig(handlers=[handler])
    logging.getLogger(name).setLevel(logging.INFO)


def show_one(row: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one thing: its names and values line by line, or a JSON object."""
    if as_json:
        print_json(row, indented=True)
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
