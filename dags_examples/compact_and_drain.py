"""Small loads arrive all day. Each evening their files are merged, then drained.

You need: the connections ``export_queue_default`` and ``reports_default``, and on PostgreSQL a location for segments.
Loads may continue during the merge; what they commit is drained with the rest. Draining thousands of small files takes
many times as long as draining the merged file. To merge on Spark, see ``compact_on_spark``.
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
        """Replace this by your loads: each is a transaction with its own file."""
        import pyarrow as pa

        from export_queue.hooks import ExportQueueHook

        with ExportQueueHook().get_store() as store:
            for piece in range(PIECES):
                keys = [f"sensor-{i}" for i in range(20)]
                values = [{"reading": piece} for _ in keys]
                with store.transaction(long=True) as tx:
                    tx.queue("readings").add_batch(pa.table({"key": keys, "value": values}))

    # [START compact_and_drain]
    compact = ExportQueueCompactOperator(task_id="compact", queue_id="readings")
    drain = ExportQueueDrainOperator(task_id="drain", queue_id="readings", sink_conn_id="reports_default")
    set_up >> load() >> compact >> drain
    # [END compact_and_drain]


compact_and_drain()
