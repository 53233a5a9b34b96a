"""The operator that adds a Spark DataFrame to a queue."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.arguments import mapping, number_or_part, required_text, text
from export_queue.core.errors import SparkJobFailed
from export_queue.hooks import Described, ExportQueueHook, open_store
from export_queue.hooks.once import TaskOnce, UnitOfWork
from export_queue.hooks.rendered import Reader, name_or, optional
from export_queue.hooks.tasks import task_name
from export_queue.lineage import Lineage, LineageTask, mirrored, queue_data
from export_queue.links import QueuePageLink, SparkUiLink
from export_queue.operators.metering import count
from export_queue.operators.spark_submission import SparkSubmission
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from export_queue.core.client import Store
    from export_queue.core.store import StoreSpec


class ExportQueueSparkLoadOperator(TaskOnce, LineageTask, SparkSubmission):
    """Add the rows of a DataFrame to a queue in one transaction, or make the queue's state equal to the DataFrame.

    With ``mode="append"`` each row becomes an entry, exactly once even if the task is retried. The transaction uses the
    task's name as its idempotency key. If an earlier try has committed, nothing is submitted and the stored report is
    returned. If a driver outlives its task and commits later, the retry finds the commit. After Airflow has accepted
    the task's success, clearing the task makes it run again.

    With ``mode="mirror"`` exactly the difference to the queue's state is added, deletes included. A retried or cleared
    task mirrors again; if nothing has changed since, it adds nothing. The function is called when all older
    transactions have ended.

    :param frame: the function that returns the DataFrame. It is called with the Spark session. Give an import path
        ``module:function`` that Spark's Python can import, or ``/path/script.py:function``. (templated)
    :param frame_arguments: further arguments of the function, by name; values of JSON. (templated)
    :param queue_id: the queue of all rows. (templated)
    :param queue_column: instead of ``queue_id``: the column that names the queue of each row. (templated)
    :param key: column with keys. (templated)
    :param value: column with values; null deletes the record. (templated)
    :param latest_by: column that decides between rows with the same key: the highest value counts. (templated)
    :param mode: ``append`` or ``mirror``. (templated)
    :param scope: of a mirror: beginning of the keys that the DataFrame has all of. (templated)
    :param max_deletes: of a mirror: the largest part of the records that may be deleted, from 0.0 to 1.0, or a whole
        number of records; 0.2 by default. (templated)
    :param dry_run: of a mirror: only report the difference.
    :param settle_timeout: of a mirror: seconds to wait for older transactions to end; 60 by default.
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
        "mode": name_or("append"),
        "scope": text,
        "max_deletes": optional(number_or_part, default=None),
        "export_queue_conn_id": name_or(ExportQueueHook.default_conn_name),
    }
    template_fields: Collection[str] = tuple(readers)
    operator_extra_links: Collection[BaseOperatorLink] = (QueuePageLink(), SparkUiLink())
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
        mode: str = "append",
        scope: str | None = None,
        max_deletes: float | str | None = None,
        dry_run: bool = False,
        settle_timeout: float | None = None,
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
        self.mode = mode
        self.scope = scope
        self.max_deletes: Any = max_deletes
        # not ``dry_run``, which is a method of every operator
        self.only_say = dry_run
        self.settle_timeout = settle_timeout
        self.transaction_timeout = transaction_timeout
        self.export_queue_conn_id = export_queue_conn_id

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit the load and wait for its commit.

        :returns: the report, as plain values.
        """
        self._idempotency_key = task_name(context)
        with terminal_errors_fail_at_once():
            self.read_arguments()
            return self._mirror(context) if self.mode == "mirror" else self._load(context)

    def lineage(self) -> Lineage:
        """To the queues. What the function of the frame reads, Spark's own listener of OpenLineage tells."""
        if self.only_say:
            return Lineage()
        counts = self.report.get("queues") or {self.queue_id: None}
        if self.report and self.mode == "mirror":
            counts = {self.queue_id: mirrored(self.report)}
        conn_id = self.export_queue_conn_id
        return Lineage(outputs=[queue_data(conn_id, queue, rows) for queue, rows in counts.items() if queue])

    def _mirror(self, context: Context) -> dict[str, Any]:
        # A key of its own for each try: a mirror is repeated, and the key only carries its report.
        report_key = f"{self._idempotency_key}#{uuid.uuid4().hex}"
        described = ExportQueueHook(self.export_queue_conn_id).describe()
        with open_store(described) as store:
            self._submit_load(context, store, described, report_key)
            state = store.idempotency(report_key)
            if not state.committed:
                raise SparkJobFailed("the Spark driver ended without an error and without a report")
        report = self.report = state.result
        for kind, found in report["samples"].items():
            if found:
                self.log.info("%s, for example: %s", kind, ", ".join(map(repr, found)))
        counts = {name: report[name] for name in ("new", "changed", "deleted", "unchanged")}
        if not self.only_say:
            count("mirror", {name: counts[name] for name in ("new", "changed", "deleted")}, queue=report["queue"])
        self.log.info("%s: %s", report["queue"], ", ".join(f"{count} {name}" for name, count in counts.items()))
        return report

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
                self._submit_load(context, store, described, self._idempotency_key)
                state = store.idempotency(self._idempotency_key)
            if not state.committed:
                raise SparkJobFailed("the Spark driver ended without an error, but its transaction has not committed")
        self._done = UnitOfWork(described, self._idempotency_key, state.generation)
        report = self.report = state.result
        self.log.info("%d entries added by transaction %s", report["entries"], report["transaction"])
        count("load", {"entries": report["entries"]}, queue=self.queue_id or "by_column")
        return report

    def _submit_load(self, context: Context, store: Store, described: Described[StoreSpec], report_key: str) -> None:
        from export_queue.core.spark import LoadArguments, check_load, describe_load

        spec, variables, submitter = self._prepare_spark(described)
        options = {
            "queue": self.queue_id,
            "queue_column": self.queue_column,
            "key": self.key,
            "value": self.value,
            "latest_by": self.latest_by,
            "timeout": self.transaction_timeout,
            "mode": self.mode,
            "idempotency_key": report_key if self.mode == "append" else None,
            "scope": self.scope,
            "max_deletes": self.max_deletes,
            "dry_run": self.only_say or None,
            "settle_timeout": self.settle_timeout,
        }
        arguments = LoadArguments(
            store=spec,
            frame=self.frame,
            frame_arguments=self.frame_arguments or {},
            options={name: value for name, value in options.items() if value is not None},
            report_key=None if self.mode == "append" else report_key,
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
            result=lambda: store.idempotency(report_key).committed,
            problem_key=arguments.problem_key,
        )
