"""``export-queue idempotency``: units of work that take effect once."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

from export_queue.core.cli.console import say, show
from export_queue.core.cli.options import AsJson, StoreOptions, Who, command
from export_queue.core.transactions import IdempotencyState


@command()
def idempotency(
    name: Annotated[
        str, typer.Argument(metavar="KEY", help="the unit of work; of a task: dag/run/task or dag/run/task/map index")
    ],
    store: StoreOptions,
    close: Annotated[bool, typer.Option("--close", help="let the same unit of work take effect anew")] = False,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Show whether a unit of work has taken effect, and with which result.

    The status shows a mark of a key that was closed, until the complete command closes the mark.
    """
    with store.open() as opened:
        was_closed = close and opened.close_idempotency_key(name, who=who)
        state = opened.idempotency(name)
    row = _row(name, state)
    if close and not was_closed:
        reason = "is closed already" if row["committed"] else "has not taken effect, so there is nothing to close"
        sys.exit(f"idempotency key {name!r} {reason}")
    show([row], as_json=as_json)
    if not as_json:
        say(_told(row))


def _row(name: str, state: IdempotencyState) -> dict[str, Any]:
    """Show the last commit under a key, whether or not its generation was closed since."""
    is_closed = not state.committed and state.generation > 1
    return {
        "idempotency_key": name,
        "committed": state.committed or is_closed,
        "closed": is_closed,
        "generation": state.generation - 1 if is_closed else state.generation,
        "result": state.previous if is_closed else state.result,
    }


def _told(row: dict[str, Any]) -> str:
    if not row["committed"]:
        return (
            "No commit under this key is on record: the work has not taken effect, or clean-up has deleted the record."
        )
    if row["closed"]:
        return "The work has taken effect, and the key was closed: the next run is new work."
    return (
        "The work has taken effect: a retry returns the stored result. To let it take effect anew: "
        f"export-queue idempotency {shlex.quote(row['idempotency_key'])} --close"
    )
