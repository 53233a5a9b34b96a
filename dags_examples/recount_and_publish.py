"""One DAG changes totals and adds what readers must learn to a queue, the other one publishes it to Redis on Spark.

Beforehand: the connections ``export_queue_default``, ``redis_default`` and ``spark_default``.
"""

from datetime import UTC, datetime

from airflow.sdk import dag, task

from export_queue import queue_asset
from export_queue.operators import ExportQueueConfigureOperator, ExportQueueSparkDrainOperator

START = datetime(2026, 1, 1, tzinfo=UTC)


def new_orders():
    """Stand for the place that orders come from: a customer, and how many are new."""
    return [("anna", 2), ("ben", 1), ("carla", 5)]


@dag(schedule="@hourly", start_date=START, catchup=False)
def recount():
    set_up = ExportQueueConfigureOperator(  # creates store, queue and table, once
        task_id="set_up", queue_id="orders", tables={"totals": {"row": "str", "value": "int"}}
    )

    @task.export_transaction(outlets=[queue_asset("orders")])  # takes effect once, however often retried
    def totals(*, tx):
        table, queue = tx.table("totals"), tx.queue("orders")
        for customer, n in new_orders():
            total = table.get(customer, "n", 0) + n
            table.set(customer, "n", total)
            queue.add(customer, {"total": total})

    set_up >> totals()


@dag(schedule=queue_asset("orders"), start_date=START, max_active_runs=1)
def publish():
    ExportQueueSparkDrainOperator(
        task_id="drain", queue_id="orders", sink_conn_id="redis_default", sink_options={"key": "customer:$id"}
    )


recount()
publish()
