"""Each night Spark merges the small files that the loads of the day have left in ``orders``.

Beforehand: the connections ``export_queue_default`` and ``spark_default``, and on PostgreSQL a place for segments.
Adds, loads and drains go on meanwhile. The first task only says in its log what there is to merge. The other one
submits nothing where nothing is worth it; a failed attempt is tried again, and takes over what it had locked.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import dag

from export_queue.operators import ExportQueueSparkCompactOperator


@dag(schedule="0 3 * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def compact_on_spark():
    foretell = ExportQueueSparkCompactOperator(task_id="foretell", queue_id="orders", dry_run=True)
    compact = ExportQueueSparkCompactOperator(
        task_id="compact", queue_id="orders", retries=2, retry_delay=timedelta(minutes=1)
    )
    foretell >> compact


compact_on_spark()
