"""One DAG changes totals and adds the changes to a queue; the other drains the queue into Redis on Spark.

You need: the connections ``export_queue_default``, ``redis_default`` and ``spark_default``.
"""

from datetime import UTC, datetime

from airflow.sdk import dag, task

from export_queue import queue_asset
from export_queue.operators import ExportQueueConfigureOperator, ExportQueueSparkDrainOperator

START = datetime(2026, 1, 1, tzinfo=UTC)


def new_orders():
    """Your source of orders: a customer and the number of new orders."""
    return [("anna", 2), ("ben", 1), ("carla", 5)]


@dag(schedule="@hourly", start_date=START, catchup=False)
def recount():
    set_up = ExportQueueConfigureOperator(  # creates the store, the queue and the table, once
        task_id="set_up", queue_id="orders", tables={"totals": {"row": "str", "value": "int"}}
    )

    # [START recount_and_publish]
    @task.export_transaction(outlets=[queue_asset("orders")])  # takes effect once, even if it is retried
    def totals(*, tx):
        table, queue = tx.table("totals"), tx.queue("orders")
        for customer, n in new_orders():
            total = table.get(customer, "n", 0) + n
            table.set(customer, "n", total)
            queue.add(customer, {"total": total})

    set_up >> totals()
    # [END recount_and_publish]


@dag(schedule=queue_asset("orders"), start_date=START, max_active_runs=1)
def publish():
    # [START recount_and_publish_drain]
    ExportQueueSparkDrainOperator(
        task_id="drain", queue_id="orders", sink_conn_id="redis_default", sink_options={"key": "customer:$id"}
    )
    # [END recount_and_publish_drain]


recount()
publish()
