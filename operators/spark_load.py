"""The operator that adds a Spark DataFrame to a queue."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.arguments import mapping, required_text, text
from export_queue.core.errors import SparkJobFailed
from export_queue.hooks import Described, ExportQueueHook, open_store
from export_queue.hooks.once import TaskOnce, UnitOfWork
from export_queue.hooks.rendered import Reader, name_or
from export_queue.hooks.tasks import task_name
from export_queue.operators.spark_submission import SparkSubmission
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context

    from export_queue.core.client import Store
    from export_queue.core.store import StoreSpec


class ExportQueueSparkLoadOperator(TaskOnce, SparkSubmission):
    """Add the rows of a DataFrame to a queue in one transaction, exactly once even if the task is retried.

    The transaction uses the task's name as its idempotency key. If an earlier try has committed, nothing is submitted
    and the stored report is returned. If a driver outlives its task and commits later, the retry finds the commit.
    After Airflow has accepted the task's success, clearing the task makes it run again.

    :param frame: the function that returns the DataFrame. It is called with the Spark session. Give an import path
        ``module:function`` that Spark's Python can import, or ``/path/script.py:function``. (templated)
    :param frame_arguments: further arguments of the function, by name; values of JSON. (templated)
    :param queue_id: the queue of all rows. (templated)
    :param queue_column: instead of ``queue_id``: the column that names the queue of each row. (templated)
    :param key: column with keys. (templated)
    :param value: column with values; null deletes the record. (templated)
    :param latest_by: column that decides between rows with the same key: the highest value counts. (templated)
    :param transaction_timeout: seconds after which the load can no longer commit; 24 hours.
    :param export_queue_conn_id: connection of the store. (templated)
    :param kwargs: arguments of :class:`~export_queue.operators.spark_submission.SparkSubmission`, for where and how
        Spark starts, and of ``SparkSubmitOperator``.
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        **SparkSubmission.readers,
        "frame": required_text,
        "frame_arguments": mapping,
        "queue_id": text,
        "queue_column": text,
        "key": name_or("key"),
        "value": name_or("value"),
        "latest_by": text,
        "export_queue_conn_id": name_or(ExportQueueHook.default_conn_name),
    }
    template_fields: Collection[str] = tuple(readers)
    ui_color = "#fdf3d0"

    def __init__(
        self,
        *,
        frame: str,
        frame_arguments: Mapping[str, Any] | str | None = None,
        queue_id: str | None = None,
        queue_column: str | None = None,
        key: str = "key",
        value: str = "value",
        latest_by: str | None = None,
        transaction_timeout: float | None = None,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
        name: str = "export-queue-load",
        durable: bool = False,
        **kwargs: Any,
    ) -> None:
        # durable=True would resume an earlier submission; the idempotency key already prevents a second load
        super().__init__(name=name, durable=durable, **kwargs)
        self.frame = frame
        self.frame_arguments: Any = frame_arguments
        self.queue_id = queue_id
        self.queue_column = queue_column
        self.key = key
        self.value = value
        self.latest_by = latest_by
        self.transaction_timeout = transaction_timeout
        self.export_queue_conn_id = export_queue_conn_id

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit the load and wait for its commit.

        :returns: the report, as plain values.
        """
        self._idempotency_key = task_name(context)
        with terminal_errors_fail_at_once():
            self.read_arguments()
            return self._load(context)

    def _load(self, context: Context) -> dict[str, Any]:
        described = ExportQueueHook(self.export_queue_conn_id).describe()
        with open_store(described) as store:
            state = store.idempotency(self._idempotency_key)
            if state.committed:
                self.log.warning(
                    "Load %r committed in an earlier try, so nothing was submitted; returning the stored report. "
                    "To run it anew, run `export-queue idempotency %s --close` and clear the task.",
                    self._idempotency_key,
                    shlex.quote(self._idempotency_key),
                )
            else:
                self._submit_load(context, store, described)
                state = store.idempotency(self._idempotency_key)
            if not state.committed:
                raise SparkJobFailed("the Spark driver ended without an error, but its transaction has not committed")
        self._done = UnitOfWork(described, self._idempotency_key, state.generation)
        report: dict[str, Any] = state.result
        self.log.info("%d entries added by transaction %s", report["entries"], report["transaction"])
        return report

    def _submit_load(self, context: Context, store: Store, described: Described[StoreSpec]) -> None:
        from export_queue.core.spark import LoadArguments, check_load, describe_load

        spec, variables, submitter = self._prepare_spark(described)
        options = {
            "queue": self.queue_id,
            "queue_column": self.queue_column,
            "key": self.key,
            "value": self.value,
            "latest_by": self.latest_by,
            "idempotency_key": self._idempotency_key,
            "timeout": self.transaction_timeout,
        }
        arguments = LoadArguments(
            store=spec,
            frame=self.frame,
            frame_arguments=self.frame_arguments or {},
            options=options,
            problem_key=f"{self._idempotency_key}#{uuid.uuid4().hex}",
            start_timeout=self.start_timeout,
            submitter=submitter,
        )
        check_load(store.database, arguments, is_driver_here=submitter is not None)
        self._submit(
            context,
            store,
            describe_load(arguments),
            variables,
            result=lambda: store.idempotency(self._idempotency_key).committed,
            problem_key=arguments.problem_key,
        )
