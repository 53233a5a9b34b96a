"""Writes rows of your own tables and entries of a queue in one SQL transaction: a transactional outbox.

You need: the connection ``shop_default`` of the database with your tables, a connection ``export_queue_default`` of a
store in the same database, and ``reports_default``. Your service does the same with ``store.transaction(connection=…)``
where it saves an order; the DAG then has the drain only.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag, task

from export_queue.hooks import ExportQueueHook, SqlSinkHook
from export_queue.operators import ExportQueueConfigureOperator, ExportQueueDrainOperator


def new_orders() -> list[dict[str, object]]:
    """Replace this by your source of orders."""
    return [{"number": 1, "customer": "anna", "cents": 250}, {"number": 2, "customer": "ben", "cents": 990}]


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def business_tables():
    set_up = ExportQueueConfigureOperator(task_id="set_up", queue_id="orders")

    # [START business_tables]
    @task
    def take_orders() -> int:
        from sqlalchemy import text

        engine = SqlSinkHook("shop_default").get_conn()
        insert = text("insert into orders (number, customer, cents) values (:number, :customer, :cents)")
        known = text("select count(*) from orders where number = :number")
        taken = 0
        with ExportQueueHook().get_store() as store, engine.begin() as connection:
            for order in new_orders():
                if connection.execute(known, order).scalar_one():
                    continue  # a retry of the task
                connection.execute(insert, order)
                with store.transaction(connection=connection) as tx:
                    tx.queue("orders").add(str(order["number"]), order)
                taken += 1
        return taken

    drain = ExportQueueDrainOperator(task_id="drain", queue_id="orders", sink_conn_id="reports_default")
    set_up >> take_orders() >> drain
    # [END business_tables]


business_tables()
