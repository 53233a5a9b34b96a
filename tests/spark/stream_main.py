"""A driver that runs the program of ``docs/streaming.md`` for several streams at once.

It writes a line for each call of the page's function, so that whoever kills it can choose the moment: ``begin`` or
``end``, the number of the stream, and the id of the batch.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "streaming.md"
Export = Callable[[Any, int], None]
REPORTING = threading.Lock()


def blocks() -> list[str]:
    """The page's Python blocks that need no Airflow."""
    found = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [block for block in found if "airflow" not in block]


def start(folder: Path, *, watched: Callable[[Export], Export] = lambda export: export, files: int = 1) -> Any:
    """Run the page with the files of one folder, up to the start of its query.

    :param watched: takes the page's function and returns the one that the query calls.
    :param files: number of files in a batch.
    :returns: the page's names; ``query`` is running.
    """
    functions, start, _ = (block.replace("/var/lib/", f"{folder}/") for block in blocks())
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(functions, "docs/streaming.md", "exec"), names)
    names["export"] = watched(names["export"])
    wait = "query.awaitTermination()\n"
    assert (start.count('"maxFilesPerTrigger", 100'), start.count(wait)) == (1, 1)
    start = start.replace('"maxFilesPerTrigger", 100', f'"maxFilesPerTrigger", {files}').replace(wait, "")
    exec(compile(start, "docs/streaming.md", "exec"), names)
    return names


def report(*words: object) -> None:
    """Write a line as a whole: streams report at the same time, and ``print`` writes the end of a line apart."""
    with REPORTING:
        print(*words, flush=True)


def reporting(stream: int, stops_after: int | None) -> Callable[[Export], Export]:
    """Report each call of a stream's function; one of a batch may never return after its commit."""

    def watched(export: Export) -> Export:
        def call(batch: Any, batch_id: int) -> None:
            report("begin", stream, batch_id)
            export(batch, batch_id)
            report("end", stream, batch_id)
            if batch_id == stops_after:
                threading.Event().wait(300)

        return call

    return watched


def main(conf: dict[str, str], folders: list[str], stops_after: int | None) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    report("java", spark.sparkContext._gateway.proc.pid)
    streams = [
        start(Path(folder), watched=reporting(number, stops_after))["query"] for number, folder in enumerate(folders)
    ]
    for query in streams:
        query.awaitTermination()
    report("done")


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
