"""Adds a whole DataFrame to a queue in one transaction, and drains it into Redis.

You need: the connections ``export_queue_default``, ``redis_default`` and ``spark_default``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import dag

from export_queue.operators import (
    ExportQueueConfigureOperator,
    ExportQueueSparkDrainOperator,
    ExportQueueSparkLoadOperator,
)

FRAMES = Path(__file__).with_name("frames.py")


@dag(schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def bulk_load():
    # [START bulk_load]
    set_up = ExportQueueConfigureOperator(task_id="set_up", queue_id="totals")
    load = ExportQueueSparkLoadOperator(  # takes effect once, even if it is retried
        task_id="load", queue_id="totals", frame=f"{FRAMES}:totals", frame_arguments={"customers": 50}
    )
    drain = ExportQueueSparkDrainOperator(
        task_id="drain",
        queue_id="totals",
        sink_conn_id="redis_default",
        sink_options={"key": "total:$id"},
        time_limit=3600,  # then the drain ends, and a retry delivers the rest
        retries=2,
    )
    set_up >> load >> drain
    # [END bulk_load]


bulk_load()
