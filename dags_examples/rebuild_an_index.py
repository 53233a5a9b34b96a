"""Gives the index of a subscription another mapping, while producers, drains and searches continue.

You need: the connections ``export_queue_default`` and ``search_default``, a queue ``products`` with a state and a
subscription ``products/search`` that drains into an index, and an index template for the name ``products-2-*`` that has
the new mapping. Searches use the alias ``products_now``. The first task makes it if it does not exist.

If a search through the new index does not find what it should, the last task leads searches back to the old one.
Otherwise the old subscription is removed. Delete the old index when you like.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import dag, task

from export_queue.operators import ExportQueueDrainOperator, ExportQueueRebuildOperator

SINK = "search_default"
REBUILD: dict[str, Any] = {"queue_id": "products/search", "sink_conn_id": SINK}


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    params={"new_options": {"index": "$collection-2"}},
)
def rebuild_an_index():
    # [START rebuild_an_index]
    start = ExportQueueRebuildOperator(
        task_id="start",
        step="start",
        new_options="{{ params.new_options | tojson }}",
        **REBUILD,
    )
    # The DAG that drains products/search needs a task for products/search-2, too, until this one has finished.
    fill = ExportQueueDrainOperator(task_id="fill", queue_id="{{ ti.xcom_pull('start')['new'] }}", sink_conn_id=SINK)
    switch = ExportQueueRebuildOperator(task_id="switch", step="switch", **REBUILD)

    @task
    def try_searches():
        """Replace this by searches of your application. An error leads them back to the old index."""

    back = ExportQueueRebuildOperator(task_id="back", step="back", trigger_rule="one_failed", **REBUILD)
    finish = ExportQueueRebuildOperator(task_id="finish", step="finish", **REBUILD)
    start >> fill >> switch >> try_searches() >> [back, finish]
    # [END rebuild_an_index]


rebuild_an_index()
