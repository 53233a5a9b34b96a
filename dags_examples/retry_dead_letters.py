"""Sends entries again that a drain had set aside, once their cause is mended.

You need: the connections ``export_queue_default`` and ``reports_default``, and a queue ``visits`` that is drained into
``reports_default``, as ``local_drain`` does. Trigger the DAG; with ``error`` it retries only letters with this class of
error. If entries are refused once more, the task ``drain`` fails and says why.
"""

from datetime import UTC, datetime

from airflow.sdk import dag

from export_queue.operators import ExportQueueDrainOperator, ExportQueueRetryDeadLettersOperator


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), params={"error": None})
def retry_dead_letters():
    # [START retry_dead_letters]
    retry = ExportQueueRetryDeadLettersOperator(
        task_id="retry", queue_id="visits", error_class="{{ params.error or '' }}"
    )
    drain = ExportQueueDrainOperator(
        task_id="drain",
        queue_id="visits",
        sink_conn_id="reports_default",
        sink_options={"columns": {"page": "text", "visits": "integer"}},
        exporter="export_queue.dags_examples.exporters:as_row",
    )
    retry >> drain
    # [END retry_dead_letters]


retry_dead_letters()
