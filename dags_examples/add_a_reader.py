"""Gives a queue in use one more reader, which begins with what the queue remembers, and proves that its sink is equal.

You need: the connections ``export_queue_default`` and ``reports_default``, and a queue ``products`` with a state and
a subscription ``search``. Producers and the drains of other readers continue. Run it again as often as you like: the
reader is added once, and its first load made once. For a queue whose state is not complete, pass the parameter
``first_load``: ``table:NAME`` of a table of the store, or the import path ``module:name`` of a function that yields
all keys and values.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag

from export_queue.operators import ExportQueueConfigureOperator, ExportQueueDrainOperator, ExportQueueVerifyOperator


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    params={"first_load": "state"},
)
def add_a_reader():
    # [START add_a_reader]
    add = ExportQueueConfigureOperator(
        task_id="add",
        queue_id="products",
        subscriptions=["reports", "search"],
        state=True,
        first_load="{{ params.first_load }}",
    )
    drain = ExportQueueDrainOperator(task_id="drain", queue_id="products/reports", sink_conn_id="reports_default")
    verify = ExportQueueVerifyOperator(task_id="verify", queue_id="products/reports", sink_conn_id="reports_default")
    add >> drain >> verify
    # [END add_a_reader]


add_a_reader()
