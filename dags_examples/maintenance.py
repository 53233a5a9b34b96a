"""Every Sunday night: deletes what the store no longer needs, and lets a sink forget deleted records.

You need: the connections ``export_queue_default`` and ``reports_default``. Drains delete old data of the store by
themselves, a bounded part each time; this DAG does all of it at a quiet hour. Only it removes the marks that a sink
keeps of deleted records.
"""

from datetime import UTC, datetime

from airflow.sdk import dag

from export_queue.operators import ExportQueueMaintainOperator


@dag(schedule="0 3 * * 0", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def maintenance():
    # [START maintenance]
    ExportQueueMaintainOperator(task_id="clean_up", keep_idempotency_keys="90d", sink_conn_id="reports_default")
    # [END maintenance]


maintenance()
