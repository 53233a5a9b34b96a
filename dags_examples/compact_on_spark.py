"""Each night Spark merges the small files that the day's loads left in ``orders``.

You need: the connections ``export_queue_default`` and ``spark_default``, and on PostgreSQL a location for segments.
Adds, loads and drains may continue during the merge. The first task only logs what could be merged. The second task
submits nothing if there is nothing to merge; a retry takes over the locks of the failed attempt.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import dag

from export_queue.operators import ExportQueueSparkCompactOperator


@dag(schedule="0 3 * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def compact_on_spark():
    # [START compact_on_spark]
    foretell = ExportQueueSparkCompactOperator(task_id="foretell", queue_id="orders", dry_run=True)
    compact = ExportQueueSparkCompactOperator(
        task_id="compact", queue_id="orders", retries=2, retry_delay=timedelta(minutes=1)
    )
    foretell >> compact
    # [END compact_on_spark]


compact_on_spark()
