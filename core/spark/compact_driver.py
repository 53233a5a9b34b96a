"""The driver of a compaction: it plans, locks and publishes, lets Spark's tasks merge, and stores the report."""

from __future__ import annotations

import contextlib

from export_queue.core.client import Store
from export_queue.core.errors import AlreadyCommitted
from export_queue.core.segments import compact
from export_queue.core.spark.compact_job import CompactArguments
from export_queue.core.spark.compact_merger import SparkMerger
from export_queue.core.spark.connecting import connect


def run(arguments: CompactArguments) -> list[str]:
    """Compact; see :attr:`JobArguments.driver`."""
    with contextlib.closing(Store(arguments.store.open())) as store:
        context, secrets = connect(
            f"export queue: compact {arguments.queue_id}",
            store=arguments.store,
            modules=["export_queue.core.spark.compact_tasks", "pyarrow"],
            seconds=arguments.start_timeout,
        )
        report = compact(
            store.database,
            arguments.queue_id,
            wanted=arguments.wanted,
            owner=arguments.owner.submitted(),
            merger=SparkMerger(context, arguments.store, secrets),
        )
        # an earlier run of this program may have stored its report
        with contextlib.suppress(AlreadyCommitted):
            store.run(lambda tx: report.summary(), idempotency_key=arguments.report_key)
    context.stop()  # after an error, the end of the process stops it
    return [*(unit.line(dry_run=False) for unit in report.units), report.line()]
