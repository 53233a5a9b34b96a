"""``export-queue idempotency``: units of work that take effect once."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from export_queue.core.cli.console import AsJson, BehindPooler, Password, Schema, Url, app, open_store, show


@app.command()
def idempotency(
    name: Annotated[
        str, typer.Argument(metavar="KEY", help="the unit of work; of a task: dag/run/task or dag/run/task/map index")
    ],
    store: Url,
    password: Password = None,
    schema: Schema = "export_queue",
    behind_pooler: BehindPooler = False,
    close: Annotated[bool, typer.Option("--close", help="let the same unit of work take effect anew")] = False,
    as_json: AsJson = False,
) -> None:
    """Show whether a unit of work has taken effect, and with which result."""
    with open_store(store, password, schema, behind_pooler=behind_pooler) as opened:
        if close and not opened.close_idempotency_key(name):
            sys.exit(f"idempotency key {name!r} has not taken effect, so there is nothing to close")
        state = opened.idempotency(name)
    show([{"idempotency_key": name, **asdict(state)}], as_json=as_json)
