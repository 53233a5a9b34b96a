"""The options by which commands name a sink."""

from __future__ import annotations

from typing import Annotated

import typer

from export_queue.core.cli.passwords import refuse_passwords

NAMES = "URL, SINK.json, module:factory, env:NAME or the id of an Airflow connection"
SinkText = Annotated[
    str,
    typer.Option("--sink", envvar="EXPORT_QUEUE_SINK", callback=refuse_passwords, help=f"the sink: {NAMES}"),
]
SinkOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--sink-option", metavar="NAME=VALUE", help="an option that the name of the sink does not give; JSON, or text"
    ),
]
SinkSecrets = Annotated[
    list[str] | None,
    typer.Option(
        "--sink-secret", metavar="NAME=REFERENCE", help="a secret, by reference: env:NAME, file:/PATH, module:function"
    ),
]
SinkName = Annotated[
    str | None, typer.Option("--sink-name", help="what the queue is bound to; by default told by the sink itself")
]
