"""``export-queue sweep``: tombstones in sinks."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import orjson
import typer

from export_queue.core.cli.commands import AsJson, Password, Schema, Url, _open, app
from export_queue.core.cli.loading import load_sink


@app.command()
def sweep(
    sinks: Annotated[
        list[Path],
        typer.Argument(metavar="SINK.json…", help="files with descriptions of sinks: kind, options, secrets"),
    ],
    store: Url,
    password: Password = None,
    schema: Schema = "export_queue",
    as_json: AsJson = False,
) -> None:
    """Let sinks forget deletes that no delivery can meet any more; safe beside drains, and to interrupt.

    A sink keeps a tombstone for each deleted record. Those below everything that the store may still send are removed,
    and whatever has so low a sequence is stale in the sink from then on. The store must be the only one that feeds it.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("export_queue").setLevel(logging.INFO)  # clients would tell of each request
    described = [load_sink(path) for path in sinks]
    with _open(store, password, schema) as opened:
        for sink in described:
            report = opened.sweep_sink(sink)
            print(orjson.dumps(report.to_json()).decode() if as_json else report.line(), flush=True)
