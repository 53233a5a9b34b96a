"""Changes prices, and starts the next task when the copy that it reads has the change.

The copy is filled by a follower (``export-queue drain prices --follow``) or by drains of other DAGs; this DAG only
waits. You need: the connection ``export_queue_default``.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag, task

from export_queue.hooks import ExportQueueHook
from export_queue.operators import ExportQueueConfigureOperator
from export_queue.sensors import ExportQueueDrainedSensor


@dag(schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def wait_for_export():
    set_up = ExportQueueConfigureOperator(task_id="set_up", queue_id="prices")

    # [START wait_for_export]
    @task
    def change():
        with ExportQueueHook().get_store() as store, store.transaction() as tx:
            tx.queue("prices").add("apples", {"cents": 250})
        return tx.token  # exists after the commit

    changed = change()
    wait = ExportQueueDrainedSensor(
        task_id="wait", queue_id="prices", token=changed, poke_interval=5, timeout=3600, deferrable=True
    )

    @task
    def report():
        """Read the copy here: it has the change, or a newer one."""

    set_up >> changed >> wait >> report()
    # [END wait_for_export]


wait_for_export()
