"""Drains in the Airflow worker, without Spark, into tables of a SQL database, with an exporter of its own."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag

from export_queue.operators import ExportQueueDrainOperator


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def local_drain():
    ExportQueueDrainOperator(
        task_id="drain",
        queue_id="orders",
        sink_conn_id="reports_default",
        sink_options={"columns": {"customer": "text", "total": "integer"}},
        exporter="export_queue.dags_examples.exporters:as_row",
    )


local_drain()
