"""A change of the column ``stock`` in the table ``goods`` starts a task, whoever commits it.

The run waits on the triggerer until a transaction commits such a change, processes the changed rows, and the next run
begins to wait. You need: the connection ``export_queue_default``.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag, task

from export_queue.hooks import ExportQueueHook
from export_queue.operators import ExportQueueObserveOperator
from export_queue.sensors import ExportQueueNotificationSensor

LOW = 10


def order_more(tx, row, column):
    """Note which goods run out, in the transaction that processes the change."""
    stock = tx.table("goods").get(row, column, 0)
    if stock < LOW:
        tx.table("orders").set(row, "wanted", LOW - stock)
    else:
        tx.table("orders").delete(row, "wanted")


def observers(store):
    store.observe("goods", "stock", order_more)


@dag(schedule="@continuous", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def react_to_changes():
    @task
    def declare():
        with ExportQueueHook().get_store() as store:
            store.create()  # creates the store, once
            for table in ("goods", "orders"):
                store.configure_table(table, row="str", value="int")
            store.watch("goods", "stock")  # from now on, each write to the column creates a notification

    # [START react_to_changes]
    changed = ExportQueueNotificationSensor(
        task_id="wait", table="goods", column="stock", poke_interval=10, timeout=7 * 24 * 3600, deferrable=True
    )

    work_off = ExportQueueObserveOperator(task_id="work_off", register=observers)
    declare() >> changed >> work_off
    # [END react_to_changes]


react_to_changes()
