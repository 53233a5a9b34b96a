"""A year of flights: transactions change the data and add to queues, Spark drains these into SQLite and Redis.

On the way writers are killed, transactions given up, one drain is killed between the sink's acknowledgement and the
removal, and one runs twice at once. At the end every store is compared with a plain recount of the input.

``./run demo`` runs it and brings what it needs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import dag, task

from demo.settings import INDEX_COLUMNS, QUEUES, STATUS_COLUMNS
from export_queue.operators import ExportQueueConfigureOperator, ExportQueueSparkDrainOperator

EXPORTERS = "demo.exporters"
FAULTS = "demo.faults"
INDEX_IN_REDIS = {"key": "count:$id", "target": "set"}
STATUS_IN_REDIS = {"key": "aircraft:$id"}


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), max_active_runs=1)
def flights():
    configure = ExportQueueConfigureOperator.partial(
        task_id="configure", buckets=32, buckets_per_range=8, tables={"aircraft": {"row": "str", "value": "json"}}
    ).expand(queue_id=list(QUEUES))

    @task
    def first_half():
        """Bring in January to June, with four processes of which some are killed."""
        from demo.tasks import run_writers

        run_writers(1, 6)

    @task
    def second_half_begins():
        """Let the writers go on with July to December while the drains run."""
        from demo.tasks import start_writers

        start_writers(7, 12)

    killed = ExportQueueSparkDrainOperator(
        task_id="drain_that_is_killed",
        queue_id="index.redis",
        exporter=f"{EXPORTERS}:count_index",
        sink={
            "kind": f"{FAULTS}:DyingRedisSink",
            "name": "redis_default",
            "options": {
                "marker": "{{ var.value.demo_folder }}/drain-has-died",
                "host": "127.0.0.1",
                "port": "{{ conn.redis_default.port }}",
                **INDEX_IN_REDIS,
            },
            "secrets": {"password": "env:EXPORT_QUEUE_DEMO_REDIS_PASSWORD"},
        },
        retries=1,
        retry_delay=timedelta(seconds=0),
    )

    @task
    def drain_twice_at_once():
        """Submit two drains of the same ranges at once."""
        from demo.tasks import submit_twice

        submit_twice("status.redis", STATUS_IN_REDIS)

    @task
    def second_half_ends():
        """Wait for the writers."""
        from demo.tasks import wait_for_writers

        wait_for_writers(7, 12)

    drains = [
        ExportQueueSparkDrainOperator(
            task_id="drain_index_sql",
            queue_id="index.sql",
            exporter=f"{EXPORTERS}:count_index",
            sink_conn_id="copies",
            sink_options={"columns": INDEX_COLUMNS},
        ),
        ExportQueueSparkDrainOperator(
            task_id="drain_index_redis",
            queue_id="index.redis",
            exporter=f"{EXPORTERS}:count_index",
            sink_conn_id="redis_default",
            sink_options=INDEX_IN_REDIS,
        ),
        ExportQueueSparkDrainOperator(
            task_id="drain_status_sql",
            queue_id="status.sql",
            sink_conn_id="copies",
            sink_options={"table": "aircraft", "columns": STATUS_COLUMNS},
        ),
        ExportQueueSparkDrainOperator(
            task_id="drain_status_redis",
            queue_id="status.redis",
            sink_conn_id="redis_default",
            sink_options=STATUS_IN_REDIS,
        ),
    ]

    @task
    def prove():
        """Compare every store with a recount of the input."""
        from demo.tasks import prove_all

        return prove_all()

    ended = second_half_ends()
    configure >> first_half() >> second_half_begins() >> killed >> drain_twice_at_once() >> ended >> drains >> prove()


flights()
