"""Adding the rows of a DataFrame without one transaction around them: each task commits many small transactions.

Entries are visible at once. A task that Spark repeats adds its rows again, as newer entries of the same keys.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
from pyspark import TaskContext

from export_queue.core.drain import Problem
from export_queue.core.errors import ExportQueueError
from export_queue.core.queue import Queue, hash_of
from export_queue.core.retry import Retry
from export_queue.core.spark.action import collect_outcomes
from export_queue.core.spark.carried_secrets import CarriedSecrets, references
from export_queue.core.spark.connecting import secrets_for
from export_queue.core.spark.encoding import key_bytes, row_location, value_bytes
from export_queue.core.spark.frames import entry_columns, parts_by_queue
from export_queue.core.spark.load_report import LoadReport
from export_queue.core.spark.targets import Target, Targets
from export_queue.core.store import Database, StoreSpec, entry_key
from export_queue.core.transactions import OpenTransaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_ROWS = 1000
"""Most entries of one transaction."""
JOB_GROUP = "export-queue-plain-adds"
_CONFLICTS = Retry()

log = logging.getLogger("export_queue.load")


def add_plainly(df: DataFrame, store: StoreSpec, target: Target, targets: Targets) -> LoadReport:
    """Add the rows of a frame, each batch in its own transaction.

    :param store: the store, which each task opens.
    :raises SparkJobFailed: a task failed in all its attempts; entries that were added stay.
    :raises EntryError: a row is refused; entries that were added stay.
    """
    begun = time.monotonic()
    secrets = secrets_for(df.sparkSession.sparkContext, ["export_queue.core.spark.plain_adds"], references(store))
    found = collect_outcomes(
        entry_columns(df, target),
        _task(store, secrets, targets, target.queue),
        group=JOB_GROUP,
        title=f"plain adds to {target.queue or 'several queues'}",
    )
    added: dict[str, list[int]] = {}
    for outcome in map(orjson.loads, found):
        if outcome["problem"] is not None:
            raise Problem(**outcome["problem"]).to_error()
        for queue_id, counts in outcome["added"].items():
            added[queue_id] = [a + b for a, b in zip(added.get(queue_id, [0, 0]), counts, strict=True)]
    report = LoadReport(
        transaction=None,
        entries=sum(entries for entries, _ in added.values()),
        bytes=sum(size for _, size in added.values()),
        files=0,
        queues={queue_id: entries for queue_id, (entries, _) in added.items()},
        seconds=round(time.monotonic() - begun, 3),
    )
    log.info("%s", report.line())
    return report


Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _task(store: StoreSpec, secrets: CarriedSecrets, targets: Targets, single: str | None) -> Task:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        secrets.unpack()
        added: dict[str, list[int]] = {}
        problem: Problem | None = None
        seen = 0
        try:
            with contextlib.closing(store.open()) as database:
                for queue_id, part in parts_by_queue(batches, single):
                    queue = targets[queue_id]
                    counts = added.setdefault(queue.id, [0, 0])
                    for batch in part:
                        for start in range(0, batch.num_rows, BATCH_ROWS):
                            _add(database, queue, batch.slice(start, BATCH_ROWS), counts, _rows_from(seen + start))
                        seen += batch.num_rows
        except ExportQueueError as error:
            if error.transient:
                raise
            problem = Problem.of(error)
        outcome = {"added": added, "problem": None if problem is None else asdict(problem)}
        yield pa.RecordBatch.from_pydict({"outcome": [orjson.dumps(outcome).decode()]})

    return task


def _rows_from(first: int) -> Callable[[int], str]:
    partition = TaskContext.get().partitionId()  # type: ignore[union-attr]
    return lambda row: row_location(partition, first + row)


def _add(
    database: Database, queue: Queue, batch: pa.RecordBatch, counts: list[int], where: Callable[[int], str]
) -> None:
    """Add some rows in one transaction, and repeated keys in further transactions, in their order."""
    keys = key_bytes(batch.column("key"), queue, where)
    rows = list(zip(keys.to_pylist(), value_bytes(batch.column("value"), keys, queue).to_pylist(), strict=True))
    while rows:
        chosen = dict(reversed(rows))  # the first row of each key
        rest = _without_first(rows)

        def attempt(chosen: dict[bytes, bytes | None] = chosen) -> None:
            opened = OpenTransaction(database)
            with opened.abort_on_error():
                opened.add_entries(
                    {(queue.number, hash_of(key), key): value for key, value in chosen.items()},
                    conflict_keys=[entry_key(queue.number, key) for key in chosen] if queue.exclusive else (),
                )
                opened.commit()

        _CONFLICTS.call(attempt)
        counts[0] += len(chosen)
        counts[1] += sum(len(key) + len(value or b"") for key, value in chosen.items())
        rows = rest


def _without_first(rows: list[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
    seen: set[bytes] = set()
    return [row for row in rows if row[0] in seen or seen.add(row[0])]  # type: ignore[func-returns-value]
