"""The operator that deletes what a store, and a sink, no longer need."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.arguments import duration
from export_queue.hooks import ExportQueueHook, environment
from export_queue.hooks.rendered import SINK, Reader, name_or, optional
from export_queue.hooks.sinks import resolve_sink
from export_queue.lineage import LineageTask
from export_queue.links import QueuePageLink
from export_queue.operators.metering import tell_store
from export_queue.operators.stopping import StoppableTask
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context

    from export_queue.core.client import Store
    from export_queue.core.maintenance import MaintenanceReport

_PAGE = 10_000
"""Maximum number of rows of each kind between two looks at whether Airflow has told the task to stop."""
_DAY = 24 * 3600


class ExportQueueMaintainOperator(LineageTask, StoppableTask):
    """Delete data of a store that nobody can read any more, until nothing is left to delete.

    Drains do this by themselves, a bounded part each time. Use this operator for a store without drains, to do all of
    it at a quiet hour, or to sweep the tombstones of a sink, which drains never do. Other work may go on meanwhile, and
    the task may be stopped and repeated at any time.

    :param keep_outcomes: how long to keep the outcomes of commits: seconds, or text such as ``7d``; by default a day.
        (templated)
    :param keep_idempotency_keys: how long to keep idempotency keys; by default 30 days. Afterwards the same work would
        take effect again. (templated)
    :param keep_reports: how long to keep reports of drains and comparisons; by default 30 days. (templated)
    :param sink_conn_id: also sweep the tombstones of this sink, which only this store feeds. (templated)
    :param sink_options: options that the connection does not set. (templated)
    :param sink: instead of a connection: a description of the sink, or an import path. (templated)
    :param export_queue_conn_id: connection of the store. (templated)
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        "keep_outcomes": optional(duration, default=_DAY),
        "keep_idempotency_keys": optional(duration, default=30 * _DAY),
        "keep_reports": optional(duration, default=30 * _DAY),
        **SINK,
        "export_queue_conn_id": name_or(ExportQueueHook.default_conn_name),
    }
    template_fields: Collection[str] = tuple(readers)
    operator_extra_links = (QueuePageLink(),)
    ui_color = "#eef2e6"

    def __init__(
        self,
        *,
        keep_outcomes: float | str | None = None,
        keep_idempotency_keys: float | str | None = None,
        keep_reports: float | str | None = None,
        sink_conn_id: str | None = None,
        sink_options: Mapping[str, Any] | str | None = None,
        sink: Any = None,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.keep_outcomes: Any = keep_outcomes
        self.keep_idempotency_keys: Any = keep_idempotency_keys
        self.keep_reports: Any = keep_reports
        self.sink_conn_id = sink_conn_id
        self.sink_options = sink_options
        self.sink = sink
        self.export_queue_conn_id = export_queue_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Clean up, and sweep if a sink is given.

        :returns: the numbers of deleted rows and files by kind; with a sink also ``swept``, the report of the sweep.
        """
        with terminal_errors_fail_at_once():
            self.read_arguments()
            with ExportQueueHook(self.export_queue_conn_id).get_store() as store, self.interruptible():
                told = self._clean_up(store)
                if self.sink_conn_id is not None or self.sink is not None:
                    told["swept"] = self._sweep(store)
                tell_store(store)
        return told

    def _clean_up(self, store: Store) -> dict[str, Any]:
        from export_queue.core.maintenance import maintain

        total: dict[str, Any] = {}
        while True:
            self.check_killed()
            report = maintain(
                store.database,
                limit=_PAGE,
                keep_outcomes=self.keep_outcomes,
                keep_idempotency_keys=self.keep_idempotency_keys,
                keep_reports=self.keep_reports,
            )
            self.log.info("%s", report.line())
            total = _added(total, report)
            if report.busy or not report.more:
                return total

    def _sweep(self, store: Store) -> dict[str, Any]:
        described = resolve_sink(sink_conn_id=self.sink_conn_id, sink_options=self.sink_options, sink=self.sink)
        with environment(described.variables):
            report = store.sweep_sink(described.spec)
        self.log.info("%s", report.line())
        return report.to_json()


def _added(total: Mapping[str, Any], report: MaintenanceReport) -> dict[str, Any]:
    """Add the numbers of a round to those of earlier ones; what is no number is that of the last round."""
    return {
        name: value + total.get(name, 0) if type(value) is int else value for name, value in report.to_json().items()
    }
