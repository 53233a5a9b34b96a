"""Delivers each entry to a table and to a cache as one: it leaves the queue only once both have it.

You need: the connections ``export_queue_default``, ``reports_default`` of a SQL database, and ``redis_default``. A
program that reads a price from either of them after the task has succeeded finds the same. If one of the two does not
answer, the entries stay in the queue for both; if the copies may go on without each other, give the queue two
subscriptions instead, as in ``airports``. The table comes first because it is stricter: what it refuses does not reach
the cache.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag, task

from export_queue.operators import ExportQueueConfigureOperator, ExportQueueDrainOperator


def new_prices() -> dict[str, int | None]:
    """Replace this by your source of prices: an article and its price in cents; None if it is no longer sold."""
    return {"apple": 50, "pear": 70, "plum": None}


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def two_copies_as_one():
    set_up = ExportQueueConfigureOperator(task_id="set_up", queue_id="prices")

    @task.export_transaction
    def publish(*, tx):
        for article, cents in new_prices().items():
            tx.queue("prices").add(article, None if cents is None else {"cents": cents})

    # [START two_copies_as_one]
    drain = ExportQueueDrainOperator(
        task_id="drain",
        queue_id="prices",
        sink={
            "kind": "composite",
            "options": {
                "parts": [
                    {"conn_id": "reports_default", "options": {"columns": {"cents": "integer"}}},
                    {"conn_id": "redis_default", "options": {"key": "price:$id"}},
                ]
            },
        },
    )
    # [END two_copies_as_one]
    set_up >> publish() >> drain


two_copies_as_one()
