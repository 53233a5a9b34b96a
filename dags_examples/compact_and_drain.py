"""Loads arrive all day in small pieces; each evening they are merged, then drained.

Beforehand: the connections ``export_queue_default`` and ``reports_default``, and on PostgreSQL a place for segments.
Merging needs no pause of the loads: what commits meanwhile is drained with the rest. A drain of thousands of small
files takes many times as long as one of the merged file. Where there is a Spark, ``compact_on_spark`` merges there.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag, task

from export_queue.operators import (
    ExportQueueCompactOperator,
    ExportQueueConfigureOperator,
    ExportQueueDrainOperator,
)

PIECES = 12


@dag(schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def compact_and_drain():
    set_up = ExportQueueConfigureOperator(
        task_id="set_up", queue_id="readings", buckets=16, buckets_per_range=8, value="json"
    )

    @task
    def load():
        """Stand for the loads of a day: each is a transaction with a file of its own."""
        import pyarrow as pa

        from export_queue.hooks import ExportQueueHook

        with ExportQueueHook().get_store() as store:
            for piece in range(PIECES):
                keys = [f"sensor-{i}" for i in range(20)]
                values = [{"reading": piece} for _ in keys]
                with store.transaction(long=True) as tx:
                    tx.queue("readings").add_batch(pa.table({"key": keys, "value": values}))

    compact = ExportQueueCompactOperator(task_id="compact", queue_id="readings")
    drain = ExportQueueDrainOperator(task_id="drain", queue_id="readings", sink_conn_id="reports_default")
    set_up >> load() >> compact >> drain


compact_and_drain()
