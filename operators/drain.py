"""The operator that drains a queue in the Airflow worker."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException

from export_queue.hooks import ExportQueueHook, environment, resolve_sink
from export_queue.hooks.tasks import task_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from export_queue.core.sinks import SinkSpec

DRAIN_FIELDS = (
    "queue_id",
    "sink_conn_id",
    "sink_options",
    "sink",
    "exporter",
    "ranges",
    "if_locked",
    "on_error",
    "max_dead",
    "export_queue_conn_id",
)
"""Templated arguments that all drains have."""

READ_OPTIONS = ("exporter", "ranges", "if_locked", "lock_timeout", "on_error", "max_dead")
"""Arguments that go into the drain's request."""

DRAIN_RENDERERS = {"sink_options": "json", "sink": "json", "ranges": "json"}
"""How the user interface shows them."""


class ExportQueueDrainOperator(BaseOperator):
    """Drain a queue into a sink, in the worker itself.

    It suits queues of up to some hundred thousand entries; above that,
    :class:`~export_queue.operators.spark_drain.ExportQueueSparkDrainOperator` does the same on Spark. Success means:
    every entry of the ranges that was committed before the drain started is in the sink or is a dead letter.

    :param queue_id: the queue. (templated)
    :param sink_conn_id: connection of the sink, whose type says what the sink is: ``redis``, ``postgres`` or
        ``sqlite``. (templated)
    :param sink_options: what the connection does not say, such as ``{"key": "customer:{id}"}``. (templated)
    :param sink: instead of ``sink_conn_id``: a sink's description, or the import path ``module:factory`` of one of
        your own. (templated)
    :param exporter: import path ``module:name`` of what turns entries into puts and deletes; by default the key is
        the record's id and the value its document. (templated)
    :param ranges: ranges of buckets, ``[[0, 101], …]``; None for all that have work. (templated)
    :param if_locked: what to do about a range that another drain works on: ``wait`` for it, ``skip`` it, or
        ``fail``. (templated)
    :param lock_timeout: seconds to wait for such ranges.
    :param on_error: what becomes of an entry that the exporter or the sink rejects: ``dead_letter`` sets it aside,
        ``fail`` stops the drain. (templated)
    :param max_dead: the most entries that may be set aside. (templated)
    :param export_queue_conn_id: connection of the store. (templated)
    """

    template_fields: Collection[str] = DRAIN_FIELDS
    template_fields_renderers: ClassVar[dict[str, str]] = DRAIN_RENDERERS
    ui_color = "#d9edf7"

    def __init__(
        self,
        *,
        queue_id: str,
        sink_conn_id: str | None = None,
        sink_options: Mapping[str, Any] | str | None = None,
        sink: SinkSpec | Mapping[str, Any] | str | None = None,
        exporter: str | None = None,
        ranges: Any = None,
        if_locked: str = "wait",
        lock_timeout: float = 600.0,
        on_error: str = "dead_letter",
        max_dead: int | str = 1000,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_id = queue_id
        self.sink_conn_id = sink_conn_id
        self.sink_options = sink_options
        self.sink = sink
        self.exporter = exporter
        self.ranges = ranges
        self.if_locked = if_locked
        self.lock_timeout = lock_timeout
        self.on_error = on_error
        self.max_dead = max_dead
        self.export_queue_conn_id = export_queue_conn_id
        self._killed = False

    def execute(self, context: Context) -> dict[str, Any]:
        """Drain.

        :returns: the report, as plain values.
        """
        from export_queue.core.drain import DrainRequest, drain_as_requested
        from export_queue.core.locks import Owner

        sink = resolve_sink(sink_conn_id=self.sink_conn_id, sink_options=self.sink_options, sink=self.sink)
        task, attempt = task_name(context), uuid.uuid4().hex
        raw = {name: getattr(self, name) for name in READ_OPTIONS}
        options = {**raw, "owner": Owner(task, attempt), "drain_id": f"{task}#{attempt}"}
        request = DrainRequest.read(self.queue_id, sink.spec.name, options)
        with ExportQueueHook(self.export_queue_conn_id).get_store() as store, environment(sink.variables):
            report = drain_as_requested(store, sink.spec, request, on_progress=self._go_on)
        self.log.info("%s", report.line())
        return report.to_dict()

    def on_kill(self) -> None:
        """Stop before the next batch; what was acknowledged stays removed."""
        self._killed = True

    def _go_on(self, *_: Any) -> None:
        if self._killed:
            raise AirflowException(f"task {self.task_id} was told to stop")
