"""Every hour a sink becomes equal to a query: changes are sent, what is gone is deleted, and the result is verified.

You need: the connections ``export_queue_default``, ``warehouse_default`` (a SQL database) and ``reports_default``. The
mirror compares the query with what the queue remembers, and adds only the difference. If the query returned nothing by
mistake, the task fails and deletes nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import dag

from export_queue.operators import (
    ExportQueueConfigureOperator,
    ExportQueueDrainOperator,
    ExportQueueMirrorOperator,
    ExportQueueVerifyOperator,
)


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def mirror_a_query():
    # [START mirror_a_query]
    set_up = ExportQueueConfigureOperator(task_id="set_up", queue_id="products", state=True, history="7d")
    mirror = ExportQueueMirrorOperator(
        task_id="mirror",
        queue_id="products",
        sql="select id, name, price from products",
        sql_conn_id="warehouse_default",
        key="id",
        retries=2,
        retry_delay=timedelta(minutes=1),
    )
    drain = ExportQueueDrainOperator(task_id="drain", queue_id="products", sink_conn_id="reports_default")
    verify = ExportQueueVerifyOperator(task_id="verify", queue_id="products", sink_conn_id="reports_default")
    set_up >> mirror >> drain >> verify
    # [END mirror_a_query]


mirror_a_query()
