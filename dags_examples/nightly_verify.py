"""Publishes the price list, drains it into a table of a SQL database, and compares that table with the list.

You need: the connections ``export_queue_default`` and ``reports_default``. With differences, the task ``verify`` fails
and lists them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import dag, task

from export_queue.operators import (
    ExportQueueConfigureOperator,
    ExportQueueDrainOperator,
    ExportQueueVerifyOperator,
)


def prices() -> Iterator[tuple[str, dict[str, Any]]]:
    """Replace this by a query of your price list: every key with its value, in one consistent read."""
    yield "apple", {"price": 3}
    yield "pear", {"price": 4}


@dag(schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def nightly_verify():
    set_up = ExportQueueConfigureOperator(task_id="set_up", queue_id="prices")

    @task.export_transaction
    def publish(*, tx):
        for key, value in prices():
            tx.queue("prices").add(key, value)

    drain = ExportQueueDrainOperator(task_id="drain", queue_id="prices", sink_conn_id="reports_default")
    # [START nightly_verify]
    verify = ExportQueueVerifyOperator(
        task_id="verify",
        queue_id="prices",
        sink_conn_id="reports_default",
        source="export_queue.dags_examples.nightly_verify:prices",
    )
    set_up >> publish() >> drain >> verify
    # [END nightly_verify]


nightly_verify()
