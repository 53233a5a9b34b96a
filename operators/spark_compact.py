"""The operator that merges small segments of a queue on Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.errors import SparkJobFailed
from export_queue.hooks import Described, ExportQueueHook, open_store
from export_queue.hooks.rendered import Reader
from export_queue.hooks.tasks import task_name
from export_queue.links import QueuePageLink, SparkUiLink
from export_queue.operators.compact_task import CompactTask
from export_queue.operators.spark_submission import SparkSubmission
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from export_queue.core.client import Store
    from export_queue.core.locks import Owner
    from export_queue.core.segments import Candidates
    from export_queue.core.store import StoreSpec


class ExportQueueSparkCompactOperator(CompactTask, SparkSubmission):
    """Merge small segments and settled rows of a queue on Spark: its tasks read and write, the driver publishes.

    The worker checks first: if there is nothing to merge, nothing is submitted. For the arguments, and for what success
    means, see :class:`~export_queue.operators.compact_task.CompactTask`.

    :param kwargs: arguments of :class:`~export_queue.operators.spark_submission.SparkSubmission`, for where and how
        Spark starts, and of ``SparkSubmitOperator``.
    """

    readers: ClassVar[Mapping[str, Reader]] = {**SparkSubmission.readers, **CompactTask.readers}
    template_fields: Collection[str] = tuple(readers)
    operator_extra_links: Collection[BaseOperatorLink] = (QueuePageLink(), SparkUiLink())
    ui_color = "#e7dcf3"

    def __init__(self, *, name: str = "export-queue-compact", durable: bool = False, **kwargs: Any) -> None:
        # durable=True would resume an earlier submission, whose locks this attempt takes over
        super().__init__(name=name, durable=durable, **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit the compaction and wait for its report.

        :returns: the report without its units, as plain values.
        """
        from export_queue.core.locks import Owner
        from export_queue.core.segments import compact

        with terminal_errors_fail_at_once():
            wanted = self.wanted()
            owner = self._owner = Owner(task_name(context))
            self._store = ExportQueueHook(self.export_queue_conn_id).describe()
            with open_store(self._store) as store:
                planned = compact(store.database, self.queue_id, wanted=wanted, owner=owner, dry_run=True)
                if self.only_say or not planned.units:
                    planned.dry_run = self.only_say
                    return self.told(planned)
                return self._compact(context, store, self._store, owner, wanted)

    def _compact(
        self, context: Context, store: Store, described: Described[StoreSpec], owner: Owner, wanted: Candidates
    ) -> dict[str, Any]:
        from export_queue.core.segments import check_base
        from export_queue.core.spark import compact_job

        check_base(store.database.segments)  # here, where no executor waits for the answer
        spec, variables, submitter = self._prepare_spark(described)
        job = compact_job(
            store=spec,
            queue_id=self.queue_id,
            owner=owner,
            wanted=wanted,
            start_timeout=self.start_timeout,
            submitter=submitter,
        )
        find = partial(store.idempotency, job.report_key)
        self._submit(context, store, job, variables, result=lambda: find().committed, problem_key=job.problem_key)
        state = find()
        if not state.committed:
            raise SparkJobFailed("the Spark driver ended without a report; what it has published stays so")
        store.close_idempotency_key(job.report_key, has_ended=True)  # nobody else asks for it
        self.report = state.result
        return self.report
