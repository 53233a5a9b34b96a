"""The operator that merges small segments of a queue on Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowTaskTerminated

from export_queue.core.errors import SparkJobFailed
from export_queue.hooks import Described, ExportQueueHook, environment, open_store
from export_queue.hooks.rendered import Reader
from export_queue.hooks.tasks import task_name
from export_queue.operators.compact_task import CompactTask
from export_queue.operators.revoking import take_locks_away
from export_queue.operators.spark_submission import SparkSubmission
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context

    from export_queue.core.client import Store
    from export_queue.core.locks import Owner
    from export_queue.core.segments import Candidates
    from export_queue.core.spark import CompactJob
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
    ui_color = "#e7dcf3"

    _is_killed = False
    _store: Described[StoreSpec] | None = None
    _owner: Owner | None = None

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

    def on_kill(self) -> None:
        """Kill the submission and take its locks away, so that a driver that outlives it changes nothing.

        What was published stays so, and nothing else has changed.
        """
        self._is_killed = True
        self._take_locks_away()  # at once: to kill a job on a cluster may take longer than there is time
        if self._hook is not None:
            try:
                super().on_kill()
            finally:
                self._take_locks_away()  # those that the driver has asked for meanwhile

    def _take_locks_away(self) -> None:
        if self._store is not None and self._owner is not None:
            take_locks_away(self._store, self._owner, log=self.log)

    def _compact(
        self, context: Context, store: Store, described: Described[StoreSpec], owner: Owner, wanted: Candidates
    ) -> dict[str, Any]:
        from export_queue.core.segments import check_base
        from export_queue.core.spark import compact_job

        check_base(store.database.segments)  # here, where no executor waits for the answer
        passwords = described.variables if self.store_secret is None else {}
        spec = dataclasses.replace(described.spec, secret=self.store_secret or described.spec.secret)
        variables, submitter = self._prepare_spark(spec, has_passwords=bool(passwords))
        job = compact_job(
            store=spec,
            queue_id=self.queue_id,
            owner=owner,
            wanted=wanted,
            start_timeout=self.start_timeout,
            submitter=submitter,
        )
        self._take_job(job)
        with environment({**variables, **passwords}):
            self._submit(context, store, job)
        state = store.idempotency(job.report_key)
        if not state.committed:
            raise SparkJobFailed("the Spark driver ended without a report; what it has published stays so")
        store.close_idempotency_key(job.report_key, has_ended=True)  # nobody else asks for it
        report: dict[str, Any] = state.result
        return report

    def _submit(self, context: Context, store: Store, job: CompactJob) -> None:
        from export_queue.core.spark import kept_problem

        if self._is_killed:
            raise AirflowTaskTerminated(f"task {self.task_id} was told to stop")
        self._hook = None
        try:
            super().execute(context)
        except Exception:
            # The driver may have done all before whatever failed; else it knows better than its exit code.
            if not store.idempotency(job.report_key).committed:
                if (problem := kept_problem(store, job.problem_key)) is not None:
                    raise problem from None
                raise
