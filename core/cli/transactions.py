"""``export-queue transactions``: which transactions are in progress, and ending one whose program is gone."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from export_queue.core.cli.console import Result, app, utc_time
from export_queue.core.cli.options import command
from export_queue.core.client import Store
from export_queue.core.errors import InvalidArgument

transactions = typer.Typer(
    no_args_is_help=True, help="Transactions in progress: see who holds up others, and abort what is left behind."
)
app.add_typer(transactions, name="transactions")


@command("list", of=transactions)
def list_transactions(store: Store) -> Result:
    """List the transactions in progress, oldest first. Mirrors, settled readers and clean-up wait for them."""
    rows: list[dict[str, Any]] = [
        {
            "transaction": str(one.id),
            "kind": one.kind,
            "since": utc_time(one.started_ms),
            "until": None if one.deadline_ms is None else utc_time(one.deadline_ms),
            "client": one.client,
            "session": one.session,
            "queues": None if one.queues is None else list(one.queues),
            "first_load": one.loads,
            "mirrors": one.mirrors,
            "replays": one.replays,
        }
        for one in store.transactions_in_progress()
    ]
    rare = ("session", "queues", "first_load", "mirrors", "replays")
    return Result(
        json=rows,
        table=[row | {"queues": ", ".join(row["queues"] or ())} for row in rows],
        hide=[name for name in rare if not any(row[name] for row in rows)],
    )


@command("abort", of=transactions)
def abort(
    transaction: Annotated[int, typer.Argument(metavar="TRANSACTION", help="its id, from the list")], store: Store
) -> Result:
    """Abort a long transaction, such as a Spark load whose driver is gone. Nothing of it is exported."""
    if all(one.id != transaction for one in store.transactions_in_progress()):
        raise InvalidArgument(
            f"transaction {transaction}: no such transaction is in progress",
            hint="it may have ended; see export-queue transactions list",
        )
    store.abort(transaction)
    return Result(json={"transaction": str(transaction)}, lines=[f"transaction {transaction} is aborted"])
