"""A program of Spark that does the loads it is told: a line of JSON each, in and out; for kills of all its parts."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import gates
from pyspark.sql import SparkSession

from export_queue import StoreSpec, write_transactional


def load(spark: SparkSession, *, face: str, rows: int, tasks: int, key: str, bad: Any = (), **store: str) -> Any:
    """Add the rows by one of the two interfaces; their tasks read a shuffle, so that stages can be repeated.

    :param bad: keys of further rows.
    """
    keys = [*(f"k{n}" for n in range(rows)), *bad]
    frame = spark.createDataFrame([(key, n) for n, key in enumerate(keys)], "key string, value int")
    if face == "call":
        return write_transactional(frame, StoreSpec(**store), "orders", idempotency_key=key).to_dict()
    write = frame.repartition(tasks, "key").write.format("gated").options(**store, queue="orders", idempotency_key=key)
    write.mode("append").save()
    return None


def main(settings: dict[str, str]) -> None:
    gates.install()
    spark = SparkSession.builder.config(map=settings).getOrCreate()
    spark.dataSource.register(gates.GatedSource)
    tracker = spark.sparkContext.statusTracker()

    def answer(**found: Any) -> None:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()

    def run(asked: dict[str, Any]) -> None:
        try:
            answer(report=load(spark, **asked), error=None)
        except Exception as error:
            answer(report=None, error=f"{type(error).__name__}: {error}")

    answer(application=spark.sparkContext.applicationId, java=spark.sparkContext._gateway.proc.pid)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked == "tasks":  # of the stages that run: how many have ended, and how many there are
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            answer(tasks=[(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage])
        elif asked == "executors":
            nodes = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()  # the driver is one of them
            answer(executors=nodes - 1)
        else:
            threading.Thread(target=run, args=(asked,), daemon=True).start()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
