"""The driver of a verify: its tasks read both sides, it judges what differs, repairs, and stores the report."""

from __future__ import annotations

import contextlib
from typing import cast

from export_queue.core.client import Store
from export_queue.core.drain import filled_in
from export_queue.core.errors import AlreadyCommitted
from export_queue.core.sinks import SinkSpec
from export_queue.core.spark.connecting import connect, modules_of
from export_queue.core.spark.verify_job import VerifyArguments
from export_queue.core.spark.verify_sides import SparkSides
from export_queue.core.verify import verify_as_requested


def run(arguments: VerifyArguments) -> list[str]:
    """Verify; see :attr:`JobArguments.driver`."""
    request = arguments.request()
    with contextlib.closing(Store(arguments.store.open())) as store:
        filled, exporter = filled_in(store.database, request.queue_id, arguments.sink, request.exporter)
        sink = cast(SinkSpec, filled)
        context, secrets = connect(
            f"export queue: verify {request.queue_id}",
            store=arguments.store,
            sink=sink,
            modules=["export_queue.core.spark.verify_tasks", *modules_of(sink, exporter)],
            seconds=arguments.start_timeout,
        )
        sides = SparkSides(context, arguments.store, sink, secrets)
        report = verify_as_requested(store, sink, request, compare=sides)
        result = {"report": report.to_dict(), "lines": report.lines()}
        # an earlier run of this program may have stored its report
        with contextlib.suppress(AlreadyCommitted):
            store.run(lambda tx: result, idempotency_key=arguments.report_key)
    context.stop()  # after an error, the end of the process stops it
    return report.lines()
