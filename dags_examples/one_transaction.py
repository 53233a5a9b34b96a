"""One transaction across a DAG: three tasks write, and all of it takes effect together, or nothing.

You need: the connection ``export_queue_default``.
"""

from datetime import UTC, datetime

from airflow.sdk import dag, task

from export_queue import export_transaction
from export_queue.operators import ExportQueueConfigureOperator

START = datetime(2026, 1, 1, tzinfo=UTC)


@dag(schedule="@daily", start_date=START, catchup=False)
def one_transaction():
    set_up = ExportQueueConfigureOperator(
        task_id="set_up", queue_id="sales", tables={"sales": {"row": "str", "value": "int"}}
    )

    # [START one_transaction]
    with export_transaction("nightly", queues=["sales"]) as tx:  # only mirrors of this queue wait for its end

        @task.export_transaction(transaction=tx.handle)
        def count(region, *, tx):
            total = tx.table("sales").get(region, "total", 0) + len(region)  # your source of sales
            tx.table("sales").set(region, "total", total)
            tx.queue("sales").add(region, {"total": total})

        @task.export_transaction(transaction=tx.handle)
        def sum_up(*, tx):
            total = sum(value for _, _, value in tx.table("sales").scan())  # sees what count has written
            tx.queue("sales").add("all", {"total": total})
            return total

        count.expand(region=["north", "south", "west"]) >> sum_up()

    set_up >> tx
    # [END one_transaction]


one_transaction()
