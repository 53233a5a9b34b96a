"""Sends the records whose keys begin with a prefix to the sinks again, for example after the exporter has changed.

You need: the connections ``export_queue_default`` and ``reports_default``, and a queue ``products`` with a state, which
is drained into ``reports_default``. Trigger the DAG with the prefix. Records that producers change meanwhile keep their
newer values. If records still differ afterwards, the last task writes them again and tells how many.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import dag

from export_queue.operators import ExportQueueDrainOperator, ExportQueueReplayOperator, ExportQueueVerifyOperator

INTO_THE_SINK: dict[str, Any] = {"queue_id": "products", "sink_conn_id": "reports_default"}


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), max_active_runs=1, params={"prefix": "1"})
def replay_a_part():
    # [START replay_a_part]
    replay = ExportQueueReplayOperator(task_id="replay", queue_id="products", prefix="{{ params.prefix }}")
    drain = ExportQueueDrainOperator(task_id="drain", **INTO_THE_SINK)
    verify = ExportQueueVerifyOperator(task_id="verify", repair=True, **INTO_THE_SINK)
    replay >> drain >> verify
    # [END replay_a_part]


replay_a_part()
