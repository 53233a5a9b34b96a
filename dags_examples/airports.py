"""Airports change in one table, and three serving copies follow. If one of them is down, the others continue.

You need: ``pip install vega_datasets``, the connection ``export_queue_default``, and ``NAME_default`` for each copy.
"""

from csv import DictReader
from datetime import UTC, datetime

from airflow.sdk import dag, task

from export_queue.operators import ExportQueueConfigureOperator, ExportQueueDrainOperator

TABLES, READERS = {"airports": {"row": "str", "value": "json"}}, ["search", "cache", "reports"]


def current_airports():
    from vega_datasets import data  # 3376 airports of the United States

    return {row["iata"]: row for row in DictReader(data.airports.raw().decode().splitlines())}


@dag(schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def airports():
    set_up = ExportQueueConfigureOperator(task_id="set_up", queue_id="airports", subscriptions=READERS, tables=TABLES)

    # [START airports]
    @task.export_transaction
    def update(*, tx):
        table, queue = tx.table("airports"), tx.queue("airports")
        known, current = {iata: airport for iata, _, airport in table.scan()}, current_airports()
        for iata in known.keys() | current.keys():
            if (airport := current.get(iata)) != known.get(iata):  # opened, renamed, moved, closed or reopened
                table.set(iata, "airport", airport) if airport else table.delete(iata, "airport")
                queue.add(iata, airport)  # one entry for each copy; None deletes

    def drain(name):
        return ExportQueueDrainOperator(task_id=name, queue_id=f"airports/{name}", sink_conn_id=f"{name}_default")

    set_up >> update() >> [drain(name) for name in READERS]
    # [END airports]


airports()
