"""Counts visits and drains them in the Airflow worker, without Spark, into a table of a SQL database.

You need: the connections ``export_queue_default`` and ``reports_default``. The queue is not the one of
``recount_and_publish``, because a queue drains into one sink.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag, task

from export_queue.operators import ExportQueueConfigureOperator, ExportQueueDrainOperator


def new_visits() -> dict[str, int]:
    """Replace this by your source of visits: a page and the number of new visits."""
    return {"home": 3, "search": 1}


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def local_drain():
    set_up = ExportQueueConfigureOperator(
        task_id="set_up", queue_id="visits", tables={"visits": {"row": "str", "value": "int"}}
    )

    # [START local_drain]
    @task.export_transaction
    def count(*, tx):
        table, queue = tx.table("visits"), tx.queue("visits")
        for page, n in new_visits().items():
            total = table.get(page, "n", 0) + n
            table.set(page, "n", total)
            queue.add(page, {"visits": total})

    drain = ExportQueueDrainOperator(
        task_id="drain",
        queue_id="visits",
        sink_conn_id="reports_default",
        sink_options={"columns": {"page": "text", "visits": "integer"}},
        exporter="export_queue.dags_examples.exporters:as_row",
    )
    set_up >> count() >> drain
    # [END local_drain]


local_drain()
