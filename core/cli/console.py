"""The frame of the command line: the program, its exit status, and how it prints results and log lines."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
"""Exit statuses after an error; they say whether to try again. 75 is EX_TEMPFAIL of sysexits.h."""

_NO_ASCII = re.compile(r"[\x7f-\U0010ffff]")
_LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"

DELETE = "(delete)"
IDENTIFYING = frozenset({"queue", "subscription", "sink", "seq", "drain_id"})
"""Columns whose cells are never broken on a narrow terminal."""


class _Program(TyperGroup):
    """The commands. Ctrl-C ends one of them with a single line, which Typer would not do."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            print("stopped", file=sys.stderr)
            raise typer.Exit(status_of(interruption)) from None


app = typer.Typer(
    cls=_Program, no_args_is_help=True, help="Set up a store of export queues, inspect it, and drain its queues."
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
    """Set up a store of export queues, inspect it, and drain its queues."""


def main(arguments: Sequence[str] | None = None, *, name: str | None = None) -> None:
    """Run the command line. An error of this library is printed as one message, with exit status 1 or 75.

    :param arguments: by default those of this process.
    :param name: name of the program in its help; by default that of this process.
    """
    if logging.lastResort is not None:  # it handles warnings when a command shows no log
        logging.lastResort.setFormatter(PrintableLines())
    try:
        _require_utf8(sys.argv if arguments is None else ["", *arguments])
        try:
            app(args=arguments, prog_name=name)
        finally:
            sys.stdout.flush()  # while an error such as a full disk can still be reported
    except ExportQueueError as error:
        lines = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]).split("\n")
        print("\n".join(map(printable, lines)), file=sys.stderr)
        sys.exit(TRY_AGAIN if error.transient else FAILED)
    except OSError as error:
        sys.stdout = io.StringIO()  # discard the buffer, which cannot be written at exit either
        print(f"{type(error).__name__}: {error.strerror or error}", file=sys.stderr)
        sys.exit(FAILED)


def _require_utf8(arguments: Sequence[str]) -> None:
    for index, text in enumerate(arguments):
        try:
            text.encode()
        except UnicodeEncodeError:
            print(f"argument {index}: expected UTF-8, found other bytes", file=sys.stderr)
            sys.exit(WRONG_USE)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a command prints: JSON for programs, or a table and lines for people."""

    json: object
    is_indented: bool = True
    """Whether the JSON is printed in several lines."""
    table: Sequence[Mapping[str, Any]] | None = None
    hide: Sequence[str] = ()
    """Columns that the table leaves out."""
    lines: Sequence[str] = ()
    """Printed below the table."""


def show(result: Any, *, as_json: bool) -> None:
    """Print a result: a :class:`Result`, a list of rows with the same names, one row, or a report."""
    if isinstance(result, list):
        result = Result(json=result, table=result)
    elif isinstance(result, Mapping):
        width = max(map(len, result))
        lines = [f"{name:<{width}}  {printable(value)}".rstrip() for name, value in result.items()]
        result = Result(json=result, lines=lines)
    elif not isinstance(result, Result):
        result = Result(json=result.to_json(), is_indented=False, lines=[result.line()])
    if as_json:
        print_json(result.json, indented=result.is_indented)
        return
    if result.table is not None:
        _show_table(result.table, result.hide)
    for line in result.lines:
        print(printable(line), flush=True)


def _show_table(rows: Sequence[Mapping[str, Any]], hide: Sequence[str]) -> None:
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
    # Print cells whole and words unbroken, because their content is copied into other commands.
    needed = console.measure(table, options=console.options.update(max_width=1 << 20))
    if not console.is_terminal:
        console.width = max(console.width, needed.maximum)
    elif needed.minimum > console.width:
        console.width = needed.minimum
    console.print(table)


def shown_delete(row: Mapping[str, Any]) -> dict[str, Any]:
    """Mark the value of a delete in a row for people; JSON has null there."""
    return {
        name: DELETE if name in ("value", "value_bytes") and value is None else value for name, value in row.items()
    }


def print_json(value: object, *, indented: bool = False) -> None:
    """Print JSON, with control characters beyond ASCII escaped as well."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indented else None).decode()
    print(_NO_ASCII.sub(_escaped, text), flush=True)


def _escaped(found: re.Match[str]) -> str:
    one = found[0]
    return one if one.isprintable() else json.dumps(one)[1:-1].replace("\x7f", "\\u007f")


def show_log(name: str | None = None) -> None:
    """Show log lines on the standard error from now on.

    :param name: the logger whose lines are shown from INFO on; by default the root logger.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableLines(_LOG_FORMAT))
    logging.basicConfig(handlers=[handler])
    logging.getLogger(name).setLevel(logging.INFO)


@contextlib.contextmanager
def log_to(handler: logging.Handler | None = None) -> Iterator[None]:
    """Send the log lines of this library, and no others, to a handler during a block.

    :param handler: by default one for the standard error.
    """
    handler = handler or logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableLines(_LOG_FORMAT))
    log = logging.getLogger("export_queue")
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate


def utc_time(milliseconds: int) -> str:
    """Format milliseconds since the epoch as a UTC time."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def seq_time(seq: int) -> str:
    """Format the time that an id contains."""
    return utc_time(seq // 1_000_000)


def text_of_bytes(raw: bytes | None) -> str | None:
    """Decode bytes as UTF-8, with escapes where they are not."""
    return None if raw is None else raw.decode("utf-8", "backslashreplace")


def bytes_of_hex(digits: str) -> bytes:
    """Parse hexadecimal digits."""
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise InvalidArgument(f"expected hexadecimal digits, found {digits!r}") from None
