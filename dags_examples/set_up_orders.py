"""Creates the store if it does not exist, and a queue of other examples. Running it again changes nothing.

You need: the connection ``export_queue_default``.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag

from export_queue.operators import ExportQueueConfigureOperator


@dag(schedule="@once", start_date=datetime(2026, 1, 1, tzinfo=UTC))
def set_up_orders():
    # [START set_up_orders]
    ExportQueueConfigureOperator(task_id="orders", queue_id="orders", buckets=1009, buckets_per_range=101)
    # [END set_up_orders]


set_up_orders()
