"""The operator that compares a sink with the content of its queue, and repairs it, on Spark."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.errors import SparkJobFailed
from export_queue.hooks import ExportQueueHook, open_store
from export_queue.hooks.rendered import Reader
from export_queue.links import DeadLettersLink, QueuePageLink, SparkUiLink
from export_queue.operators.spark_submission import SparkSubmission, check_references
from export_queue.operators.terminal import terminal_errors_fail_at_once
from export_queue.operators.verify_task import VerifyTask

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context


class ExportQueueSparkVerifyOperator(VerifyTask, SparkSubmission):
    """Compare the records of a sink with the content of a queue on Spark: tasks read and compare, the driver judges.

    For the arguments, and for what success means, see :class:`~export_queue.operators.verify_task.VerifyTask`. Spark's
    Python must be able to import what ``source``, ``records`` and ``exporter`` name.

    :param sink_secrets: references to the sink's secrets where Spark runs, by option:
        ``{"password": "file:/run/secrets/redis"}``.
    :param kwargs: arguments of :class:`~export_queue.operators.spark_submission.SparkSubmission`, for where and how
        Spark starts, and of ``SparkSubmitOperator``.
    """

    readers: ClassVar[Mapping[str, Reader]] = {**SparkSubmission.readers, **VerifyTask.readers}
    template_fields: Collection[str] = tuple(readers)
    operator_extra_links: Collection[BaseOperatorLink] = (QueuePageLink(), DeadLettersLink(), SparkUiLink())
    ui_color = "#d0e8d0"

    def __init__(
        self,
        *,
        sink_secrets: Mapping[str, str] | None = None,
        name: str = "export-queue-verify",
        durable: bool = False,
        **kwargs: Any,
    ) -> None:
        # durable=True would resume an earlier submission, whose report is of an earlier time
        super().__init__(name=name, durable=durable, **kwargs)
        self.sink_secrets = dict(sink_secrets or {})
        check_references(self.sink_secrets)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit the comparison and wait for its report.

        :returns: the report, as plain values.
        """
        with terminal_errors_fail_at_once():
            self.read_arguments()
            result = self._verify(context)
        return self.told(result["report"], result["lines"])

    def _verify(self, context: Context) -> dict[str, Any]:
        from export_queue.core.queue import find_reader
        from export_queue.core.spark import VerifyArguments, describe_verify
        from export_queue.core.verify import check_bound

        sink = self.describe_sink()
        spec = dataclasses.replace(sink.spec, secrets={**sink.spec.secrets, **self.sink_secrets})
        described = ExportQueueHook(self.export_queue_conn_id).describe()
        store_spec, variables, submitter = self._prepare_spark(described, dataclasses.replace(sink, spec=spec))
        key = f"verify/{uuid.uuid4().hex}"
        arguments = VerifyArguments(
            store=store_spec,
            queue_id=self.queue_id,
            sink=spec,
            options=self.options(),
            report_key=key,
            problem_key=f"{key}/problem",
            start_timeout=self.start_timeout,
            submitter=submitter,
        )
        with open_store(described) as store:
            with store.database.read() as work:  # here, where no executor waits for the answer
                check_bound(find_reader(work, self.queue_id), spec.name)
            job, find = describe_verify(arguments), partial(store.idempotency, key)
            self._submit(
                context, store, job, variables, result=lambda: find().committed, problem_key=arguments.problem_key
            )
            if not (state := find()).committed:
                raise SparkJobFailed("the Spark driver ended without a report")
            store.close_idempotency_key(key, has_ended=True)  # nobody else asks for it
        result: dict[str, Any] = state.result
        return result
