"""``export-queue sweep`` and ``readmit``: tombstones in sinks, and sinks that have lost data."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated

import orjson
import typer

from export_queue.core.cli.console import AsJson, BehindPooler, Password, Schema, Url, app, open_store
from export_queue.core.cli.loading import search_current_folder
from export_queue.core.drain import readmit as take_anyway
from export_queue.core.errors import InvalidArgument, SinkConfigurationError
from export_queue.core.sinks import SinkSpec


@app.command()
def sweep(
    sinks: Annotated[
        list[Path],
        typer.Argument(metavar="SINK.json…", help="files with descriptions of sinks: kind, options, secrets"),
    ],
    store: Url,
    password: Password = None,
    schema: Schema = "export_queue",
    behind_pooler: BehindPooler = False,
    as_json: AsJson = False,
) -> None:
    """Let sinks forget deletes that no delivery can meet any more; safe beside drains, and to interrupt.

    A sink keeps a tombstone for each deleted record. The command removes the tombstones below everything that the store
    may still send; an operation with so low a sequence is stale in the sink from then on. The store must be the only
    one that feeds the sink.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("export_queue").setLevel(logging.INFO)  # not the root: clients log each request
    described = [load_sink(path) for path in sinks]
    with open_store(store, password, schema, behind_pooler=behind_pooler) as opened:
        for sink in described:
            report = opened.sweep_sink(sink)
            print(orjson.dumps(report.to_json()).decode() if as_json else report.line(), flush=True)


@app.command()
def readmit(
    queue_id: Annotated[str, typer.Argument(metavar="QUEUE")],
    sink: Annotated[
        Path, typer.Argument(metavar="SINK.json", help="file with the description of a sink: kind, options, secrets")
    ],
    store: Url,
    password: Password = None,
    schema: Schema = "export_queue",
    behind_pooler: BehindPooler = False,
) -> None:
    """Go on with a sink that has lost data, which drains refuse; it is taken as it is.

    The command brings nothing back: add the records that the sink lacks to the queue anew. Tables and indices of the
    sink's description that are gone are created again.
    """
    described = load_sink(sink)
    with open_store(store, password, schema, behind_pooler=behind_pooler) as opened:
        take_anyway(opened, queue_id, described)
    print(f"{described.name} is admitted as it is; queue {queue_id} may be drained into it")


def load_sink(path: Path) -> SinkSpec:
    """Read the description of a sink from a file: JSON with ``kind``, and perhaps ``options``, ``secrets``, ``name``.

    :raises InvalidArgument: the file cannot be read, or holds no JSON; its content is not shown.
    :raises SinkConfigurationError: the JSON describes no sink.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}") from None
    except ValueError:
        raise InvalidArgument(f"{path}: expected JSON, the description of a sink") from None
    search_current_folder()
    try:
        return SinkSpec.from_dict(found)
    except SinkConfigurationError as error:
        raise SinkConfigurationError(f"{path}: {error.message}", hint=error.hint) from None
