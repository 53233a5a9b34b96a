"""Publishes each day on its own: runs belong to a day, the partition, and pass it on from asset to asset.

You need: the connections ``export_queue_default`` and ``reports_default``. The first DAG counts the sales of one day.
The event of the queue's asset names the day, so that the second DAG has a run for that day, and so has every DAG that
waits for the asset of the report. To correct a day, start the first DAG again for it: ``airflow backfill create``, or
with the partition key in the form of the UI. The new numbers replace those of the day, even if an older drain is late.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import Asset, CronPartitionTimetable, PartitionedAssetTimetable, dag, task

from export_queue import queue_asset
from export_queue.operators import ExportQueueConfigureOperator, ExportQueueDrainOperator

START = datetime(2026, 1, 1, tzinfo=UTC)
REPORT = Asset("sales_report")


def sales_of(day: str) -> dict[str, int]:
    """Replace this by your count: the articles that were sold on a day, such as 2026-05-17, and how many."""
    return {"apple": 3, "pear": 5}


@dag(
    # the night after a day counts it
    schedule=CronPartitionTimetable("0 1 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"),
    start_date=START,
    catchup=False,
    max_active_runs=1,
)
def count_sales():
    set_up = ExportQueueConfigureOperator(task_id="set_up", queue_id="sales_by_day")

    # [START sales_by_day_count]
    @task.export_transaction(outlets=[queue_asset("sales_by_day")])
    def count(*, tx, dag_run=None):
        day = dag_run.partition_key
        if day is None:
            raise ValueError("start this DAG with a partition key, the day to count, such as 2026-05-17")
        for article, sold in sales_of(day).items():
            tx.queue("sales_by_day").add(f"{day} {article}", {"day": day, "article": article, "sold": sold})

    set_up >> count()
    # [END sales_by_day_count]


# [START sales_by_day_publish]
@dag(
    schedule=PartitionedAssetTimetable(assets=queue_asset("sales_by_day")),
    start_date=START,
    max_active_runs=1,
)
def publish_sales():
    ExportQueueDrainOperator(task_id="drain", queue_id="sales_by_day", sink_conn_id="reports_default", outlets=[REPORT])


# [END sales_by_day_publish]


count_sales()
publish_sales()
