"""Waits for entries, and drains them in groups of ranges, which Airflow shows and retries one by one.

You need: the connections ``export_queue_default``, ``redis_default`` and ``spark_default``, and the queue of
``set_up_orders``.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag

from export_queue.operators import ExportQueueSparkDrainOperator
from export_queue.sensors import ExportQueueSensor


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def mapped_drain():
    # [START mapped_drain]
    waiting = ExportQueueSensor(task_id="wait", queue_id="orders", groups=2, poke_interval=30, deferrable=True)
    ExportQueueSparkDrainOperator.partial(
        task_id="drain",
        queue_id="orders",
        sink_conn_id="redis_default",
        sink_options={"key": "customer:$id"},
        map_index_template="ranges {{ task.ranges }}",
        max_active_tis_per_dagrun=1,
    ).expand(ranges=waiting.output)
    # [END mapped_drain]


mapped_drain()
