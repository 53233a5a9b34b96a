"""Keeps an inverted index: which customers live in a city, without a search through all customers.

You need: the connections ``export_queue_default`` and ``reports_default``. Each entry says where a customer lived and
where the customer lives now, as the transaction has read and written it. The exporter deletes the one record and writes
the other. An older entry never changes a record that a newer one has changed, so no customer is listed twice.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag, task

from export_queue.operators import ExportQueueConfigureOperator, ExportQueueDrainOperator


def new_addresses() -> dict[str, str | None]:
    """Replace this by your source of addresses: a customer and the city; None if the customer is gone."""
    return {"anna": "Oslo", "ben": "Bergen", "carla": "Oslo"}


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def index_by_city():
    set_up = ExportQueueConfigureOperator(
        task_id="set_up", queue_id="moves", tables={"homes": {"row": "str", "value": "str"}}
    )

    # [START index_by_city]
    @task.export_transaction
    def move(*, tx):
        table, queue = tx.table("homes"), tx.queue("moves")
        for customer, city in new_addresses().items():
            former = table.get(customer, "city")
            if former != city:
                if city is None:
                    table.delete(customer, "city")
                else:
                    table.set(customer, "city", city)
                queue.add(customer, {"former": former, "city": city})

    drain = ExportQueueDrainOperator(
        task_id="drain",
        queue_id="moves",
        sink_conn_id="reports_default",
        exporter="export_queue.dags_examples.exporters:by_city",
    )
    set_up >> move() >> drain
    # [END index_by_city]


index_by_city()
