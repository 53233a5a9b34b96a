"""``export-queue table``: what tables hold."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import Annotated, Any

import typer

from export_queue.core.cli.console import Result, app, bytes_of_hex
from export_queue.core.cli.options import command
from export_queue.core.cli.values import plain_value, shown_value
from export_queue.core.client import Store
from export_queue.core.errors import CodecError, InvalidArgument
from export_queue.core.tables import TableOptions, cell_types, known_table

table = typer.Typer(no_args_is_help=True, help="Tables: see what a row holds.")
app.add_typer(table, name="table")


@command("get", of=table)
def get(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="name of the table")],
    store: Store,
    row: Annotated[str | None, typer.Argument(metavar="ROW", help="the row: text or a number")] = None,
    column: Annotated[list[str] | None, typer.Option(help="only this column; repeat it for several")] = None,
    row_hex: Annotated[
        str | None, typer.Option(help="a row that is not text, as hexadecimal digits of its stored bytes")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="maximum number of columns to show")] = 100,
) -> Result:
    """Show the columns of one row, as a transaction that begins now sees them."""
    _ = store.id
    options = known_table(store.database, name)
    wanted = _row(options, row, row_hex)
    types = cell_types(options.name, options.row, options.value)
    encoded = types.encode_row(wanted)
    with store.transaction(read_only=True) as tx:
        cells = tx.table(name).scan(start=wanted, columns=column)
        of_row = takewhile(lambda cell: types.encode_row(cell[0]) == encoded, cells)
        found = [
            {"row": plain_value(cell[0]), "column": plain_value(cell[1]), "value": plain_value(cell[2])}
            for cell in islice(of_row, limit)
        ]
    return Result(
        json=found,
        table=[one | {"value": shown_value(one["value"])} for one in found],
        lines=["… perhaps more (--limit)"] if len(found) == limit else (),
    )


def _row(options: TableOptions, text: str | None, digits: str | None) -> Any:
    """Decode a row from the command line with the table's codec."""
    if (text is None) == (digits is None):
        raise typer.BadParameter("which row? give it as text, or by --row-hex")
    try:
        if text is not None and options.row == "int":
            return int(text)
        raw = text.encode() if text is not None else bytes_of_hex(digits or "")
        return cell_types(options.name, options.row, options.value).decode_row(raw)
    except (CodecError, ValueError):
        raise InvalidArgument(
            f"rows of table {options.name!r} have the codec {options.row}, which cannot read {text or digits!r}"
        ) from None
