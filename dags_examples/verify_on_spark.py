"""Each night Spark compares a large table with the state of its queue, and writes again what differs.

You need: the connections ``export_queue_default``, ``reports_default`` and ``spark_default``, and a queue ``products``
with a state that is drained into ``reports_default``. Adds and drains may continue meanwhile. If something still
differs afterwards, the task fails and lists it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import dag

from export_queue.operators import ExportQueueSparkVerifyOperator


@dag(schedule="0 4 * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def verify_on_spark():
    # [START verify_on_spark]
    ExportQueueSparkVerifyOperator(
        task_id="verify",
        queue_id="products",
        sink_conn_id="reports_default",
        repair=True,
        retries=2,
        retry_delay=timedelta(minutes=1),
    )
    # [END verify_on_spark]


verify_on_spark()
