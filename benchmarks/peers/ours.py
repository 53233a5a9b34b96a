"""What this library does in Spark's driver: bulk loads, drains, and its sinks called without a drain."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from export_queue import (
    Claim,
    ExportQueueError,
    FencedSink,
    Operations,
    Retry,
    Sink,
    SinkSpec,
    Store,
    StoreSpec,
    write_transactional,
)
from export_queue.core.drain import DrainRequest, Engine, run_drain
from export_queue.core.drain.fenced import claim_of
from export_queue.core.locks import Lease
from export_queue.core.queue import Queue
from export_queue.core.sinks import ContinuingSink, opened_sink
from export_queue.core.spark.carried_secrets import CarriedSecrets

IMPATIENT = Retry(attempts=3)
"""For a target that refuses: how long a drain waits for it is not the question."""


def load(frame: DataFrame, store: Mapping[str, Any], queue: str) -> dict[str, Any]:
    """Add records to a queue, which is made where it is missing.

    :returns: the seq of the entries, and the files that they are in.
    """
    spec = StoreSpec(**store)
    assert spec.segments is not None
    with contextlib.closing(Store(spec.open())) as opened:
        opened.create()
        opened.configure_queue(queue, value="bytes")
        rows = frame.selectExpr("key", "encode(value, 'UTF-8') as value")
        report = write_transactional(rows, opened, queue)
    files = sorted(map(str, Path(spec.segments).glob(f"*/{report.transaction}/*.parquet")))
    assert len(files) == report.files
    return {"seq": report.transaction, "files": files}


class ClaimingEngine:
    """An engine of drains, which notes what it claims in a sink."""

    def __init__(self, engine: Engine, claims: list[Claim]) -> None:
        self._engine, self._claims = engine, claims

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def claim(self, queue: Queue, leases: Sequence[Lease]) -> None:
        """Claim as ever."""
        self._engine.claim(queue, leases)
        self._claims.extend(claim_of(queue, lease) for lease in leases)


class Drain:
    """One drain, by the tasks of the session's Spark.

    :param store: the store's description.
    :param queue: the queue.
    :param sink: the sink's description.
    :param dies: whether the process of each task is killed in the midst of the first attempt.
    :param impatient: whether it gives a target up at once.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: Mapping[str, Any],
        queue: str,
        sink: Mapping[str, Any],
        dies: bool = False,
        impatient: bool = False,
    ) -> None:
        self.spark, self.queue = spark, queue
        self.store, self.sink = StoreSpec(**store), SinkSpec.from_dict(sink)
        self.options: dict[str, Any] = {"retry": IMPATIENT} if impatient else {}
        if sink["options"].get("guard") == "fence":
            self.options["on_error"] = "fail"
        if dies:
            # chunks so small that some are in the sink when a task dies
            self.options |= {"exporter": "benchmarks.peers.failing:dying_exporter", "chunk_rows": 100}
        self.claims: list[Claim] = []
        self.answer: dict[str, Any] = {}

    def run(self) -> None:
        """Drain, with a session that runs already; a drain that fails is no failure here."""
        from export_queue.core.spark.engine import SparkEngine  # which imports what Airflow's PySpark lacks

        context = self.spark.sparkContext
        request = DrainRequest.of(self.queue, self.sink.name, self.options)
        self.opened = Store(self.store.open())
        of_spark = SparkEngine(context, self.opened.database, self.store, self.sink, request, None, CarriedSecrets())
        engine = ClaimingEngine(of_spark, self.claims)
        problem = ""
        try:
            run_drain(self.opened, request, contextlib.nullcontext(cast(Engine, engine)))
        except ExportQueueError as error:
            problem = type(error).__name__
        (report,) = self.opened.reports(drain_id=request.drain_id)
        self.answer = {"problem": problem, "acknowledged": report["acknowledged"], "dead": report["dead"]}

    def told(self) -> dict[str, Any]:
        """Return what became of it, what waits, and with a guard ``fence`` its claims."""
        with contextlib.closing(self.opened):
            self.opened.database.wait_until_tidy()  # the next contestant has the server for itself
            waiting = sum(unit.entries for unit in self.opened.backlog(self.queue))
        return self.answer | {"waiting": waiting, "claims": [[claim.unit, claim.fence] for claim in self.claims]}


QUEUE = "direct"


def by_batches(sink: Mapping[str, Any]) -> Callable[[DataFrame], None]:
    """Make what calls a sink for each Arrow batch of a DataFrame, without store, leases and reports."""
    spec = SinkSpec.from_dict(sink)
    claim = Claim(f"{QUEUE}/1/0", 1)
    with opened_sink(spec) as opened:
        opened.admit(queue_id=QUEUE, store_id="peers", fence=1)
        if opened.capabilities.fenced:
            cast(FencedSink, opened).claim([claim])

    def apply(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with opened_sink(spec) as opened:
            sink = claimed(opened, claim)
            written = 0
            for batch in found:
                ids, documents, seqs = (column.to_pylist() for column in batch.columns)
                size, count = sink.capabilities, len(ids)
                operations = Operations([QUEUE] * count, ids, documents, seqs, range(count))
                for part in operations.slices(rows=size.batch_rows, size=size.batch_bytes):
                    written += sink.apply(part).written
            yield pa.RecordBatch.from_pydict({"written": [written]})

    return lambda frame: frame.mapInArrow(apply, "written long").write.format("noop").mode("append").save()


def late(
    frame: DataFrame, queue: str, sink: Mapping[str, Any], seq: int, claims: Sequence[tuple[str, int]]
) -> dict[str, Any]:
    """Deliver records as a task of an older drain that lives on: with their seq, and under that drain's claim.

    :returns: how many were written and how many were stale, or the problem.
    """
    spec = SinkSpec.from_dict(sink)
    claim = Claim(*claims[0]) if claims else None

    def apply(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written, stale, problem = 0, 0, ""
        with opened_sink(spec) as opened:
            if isinstance(opened, ContinuingSink):
                opened.continue_drain(queue)
            sink = claimed(opened, claim)
            for batch in found:
                keys, values = (column.to_pylist() for column in batch.columns)
                count = len(keys)
                ids, documents = [key.encode() for key in keys], [value.encode() for value in values]
                try:
                    result = sink.apply(Operations([queue] * count, ids, documents, [seq] * count, range(count)))
                    written, stale = written + result.written, stale + result.stale
                except ExportQueueError as error:
                    problem = type(error).__name__
        yield pa.RecordBatch.from_pydict({"written": [written], "stale": [stale], "problem": [problem]})

    told = frame.mapInArrow(apply, "written long, stale long, problem string").collect()
    problems = {row.problem for row in told} - {""}
    return {
        "written": sum(row.written for row in told),
        "stale": sum(row.stale for row in told),
        "problem": ", ".join(sorted(problems)),
    }


def claimed(opened: Sink | FencedSink, claim: Claim | None) -> Sink:
    """Return the sink that takes batches: of a fenced one that of the claim."""
    if opened.capabilities.fenced:
        assert claim is not None
        return cast(FencedSink, opened).under(claim)
    return cast(Sink, opened)
