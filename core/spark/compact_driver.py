"""The driver of a compaction: it plans, locks and publishes, has Spark's tasks merge, and stores the report."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

from export_queue.core.client import Store
from export_queue.core.errors import AlreadyCommitted
from export_queue.core.segments import CompactionReport, compact
from export_queue.core.spark.compact_job import CompactArguments
from export_queue.core.spark.compact_merger import SparkMerger
from export_queue.core.spark.connecting import connect
from export_queue.core.spark.engine import check_driver
from export_queue.core.spark.problems import problem_kept
from export_queue.core.spark.program import run_program
from export_queue.core.spark.watchdog import stop_when_orphaned

log = logging.getLogger("export_queue.segments")


def main(arguments: Sequence[str]) -> None:
    """Run the compaction and end the process.

    :param arguments: one text, of :meth:`CompactArguments.to_json`.
    """
    run_program("compaction", arguments, _run, log=log)


def _run(text: str) -> None:
    parsed = CompactArguments.from_json(text)
    stop_when_orphaned(parsed.submitter)
    with problem_kept(parsed.store, parsed.problem_key):
        report = compact_on_spark(parsed)
    for unit in report.units:
        log.info("%s", unit.line(dry_run=False))
    log.info("%s", report.line())


def compact_on_spark(arguments: CompactArguments) -> CompactionReport:
    """Compact on the Spark that this program was submitted to.

    :param arguments: arguments of the driver; each call is another attempt of the same task.
    """
    modules = ["export_queue.core.spark.compact_tasks", "pyarrow"]
    if not arguments.store.is_sqlite:
        modules.append("psycopg")
    check_driver(modules)
    with contextlib.closing(Store(arguments.store.open())) as store:
        context, secrets = connect(
            f"export queue: compact {arguments.queue_id}",
            store=arguments.store,
            modules=modules,
            seconds=arguments.start_timeout,
        )
        report = compact(
            store.database,
            arguments.queue_id,
            wanted=arguments.wanted,
            owner=arguments.owner.submitted(),
            merger=SparkMerger(context, arguments.store, secrets),
        )
        # An earlier run of this program has told what it did: then it has ended well, and this one had little to do.
        with contextlib.suppress(AlreadyCommitted):
            store.run(lambda tx: report.summary(), idempotency_key=arguments.report_key)
    context.stop()  # after an error the end of the process does it
    return report
