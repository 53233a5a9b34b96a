"""Keeps a table equal to a Spark DataFrame, deletes included, and proves it.

You need: the connections ``export_queue_default``, ``reports_default`` (a SQL database) and ``spark_default``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import dag

from export_queue.operators import (
    ExportQueueConfigureOperator,
    ExportQueueDrainOperator,
    ExportQueueSparkLoadOperator,
    ExportQueueVerifyOperator,
)

FRAMES = Path(__file__).with_name("frames.py")


@dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params={"customers": 50},
)
def mirror_a_dataframe():
    # [START mirror_a_dataframe]
    set_up = ExportQueueConfigureOperator(task_id="set_up", queue_id="live_totals", state=True)
    mirror = ExportQueueSparkLoadOperator(  # retry or clear it whenever you like
        task_id="mirror",
        queue_id="live_totals",
        frame=f"{FRAMES}:totals",
        frame_arguments={"customers": "{{ params.customers }}"},
        mode="mirror",
    )
    drain = ExportQueueDrainOperator(task_id="drain", queue_id="live_totals", sink_conn_id="reports_default", retries=2)
    verify = ExportQueueVerifyOperator(task_id="verify", queue_id="live_totals", sink_conn_id="reports_default")
    set_up >> mirror >> drain >> verify
    # [END mirror_a_dataframe]


mirror_a_dataframe()
