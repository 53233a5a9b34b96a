"""The common part of the operators that drain a queue: their arguments, and the request made from these."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.arguments import (
    parse_ranges,
    required_text,
    seconds,
    text,
    whole_number,
)
from export_queue.hooks import Described, ExportQueueHook, resolve_sink
from export_queue.hooks.rendered import SINK, Reader, name_or, optional
from export_queue.lineage import Lineage, LineageTask, queue_data, sink_data
from export_queue.links import DeadLettersLink, QueuePageLink
from export_queue.operators.stopping import StoppableTask

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink

    from export_queue.core.client import Store
    from export_queue.core.drain import DrainReport, DrainRequest
    from export_queue.core.sinks import SinkSpec


def _dead_letters(value: Any, *, what: str) -> Any:
    from export_queue.core.drain import dead_letters_allowed  # a DAG is parsed without it

    return dead_letters_allowed(value, what=what)


class DrainTask(LineageTask, StoppableTask):
    """A task that drains a queue into a sink.

    Success means that every entry of the ranges that was committed before the drain started is in the sink. If the
    queue has dead letters, the task delivers everything else, and then fails without a retry, unless ``dead_letters``
    allows them.

    The options ``exporter``, ``ranges``, ``if_locked``, ``lock_timeout``, ``time_limit``, ``on_error`` and ``max_dead``
    are those of :class:`~export_queue.core.drain.DrainRequest`; None selects the default. All but ``lock_timeout`` are
    templated.

    :param queue_id: the queue. (templated)
    :param sink_conn_id: connection of the sink, whose type selects the kind of sink: ``redis``, ``elasticsearch``,
        ``opensearch``, ``postgres``, ``mysql`` or ``sqlite``. (templated)
    :param sink_options: options that the connection does not have, such as ``{"key": "customer:$id"}``. The first
        drain stores those that decide which record is written. Later drains use the stored ones for options that they
        omit, and are refused with other values. (templated)
    :param sink: instead of ``sink_conn_id``: the description of a sink, or the import path ``module:factory`` of your
        own sink. (templated)
    :param dead_letters: ``fail`` if the queue has dead letters at the end, from this drain or from earlier ones;
        ``allow`` them; or the largest number that is allowed. With ``ranges``, only letters there count. (templated)
    :param export_queue_conn_id: connection of the store. (templated)
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        "queue_id": required_text,
        **SINK,
        "exporter": text,
        "ranges": parse_ranges,
        "if_locked": text,
        "time_limit": optional(seconds),
        "on_error": text,
        "max_dead": optional(whole_number),
        "dead_letters": _dead_letters,
        "export_queue_conn_id": name_or(ExportQueueHook.default_conn_name),
    }
    template_fields: Collection[str] = tuple(readers)
    operator_extra_links: Collection[BaseOperatorLink] = (QueuePageLink(), DeadLettersLink())
    template_fields_renderers: ClassVar[dict[str, str]] = {"sink_options": "json", "sink": "json", "ranges": "json"}

    def __init__(
        self,
        *,
        queue_id: str,
        sink_conn_id: str | None = None,
        sink_options: Mapping[str, Any] | str | None = None,
        sink: SinkSpec | Mapping[str, Any] | str | None = None,
        exporter: str | None = None,
        ranges: Any = None,
        if_locked: str | None = None,
        lock_timeout: float | None = None,
        time_limit: float | str | None = None,
        on_error: str | None = None,
        max_dead: int | str | None = None,
        dead_letters: int | str = "fail",
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
        self.time_limit = time_limit
        self.on_error = on_error
        self.max_dead = max_dead
        self.dead_letters: Any = dead_letters
        self.export_queue_conn_id = export_queue_conn_id

    def describe_sink(self) -> Described[SinkSpec]:
        """Describe the sink that the rendered arguments name."""
        return resolve_sink(sink_conn_id=self.sink_conn_id, sink_options=self.sink_options, sink=self.sink)

    def lineage(self) -> Lineage:
        """From the queue to the sink."""
        conn_id, queue_id, sink = self.export_queue_conn_id, self.queue_id, self.describe_sink().spec
        return Lineage(
            inputs=[queue_data(conn_id, queue_id, self.report.get("read"))],
            outputs=sink_data(conn_id, queue_id, sink, self.exporter, self.report.get("written")),
        )

    def conclude(self, store: Store, report: DrainReport) -> None:
        """Keep the report, count the drain in Airflow's metrics, and fail if there are more dead letters than allowed.

        :param report: the report of the drain, which succeeded.
        :raises DeadLettersLeft: there are more.
        """
        from export_queue.core.drain import refuse_dead_letters
        from export_queue.operators.metering import count_drain

        self.report = report.to_dict()
        count_drain(report)
        refuse_dead_letters(store, report, self.dead_letters, of_ranges=self.ranges is not None)

    def request(self, task: str, *, sink_name: str) -> DrainRequest:
        """Create the request of one attempt from the rendered arguments.

        :param task: name of the task; a later attempt takes over the leases of an earlier one.
        :param sink_name: name of the sink that the queue is bound to.
        :raises InvalidArgument: an argument is not allowed.
        """
        from export_queue.core.drain import TASK_OPTIONS, DrainRequest
        from export_queue.core.locks import Owner

        attempt = uuid.uuid4().hex
        options = {name: getattr(self, name) for name in TASK_OPTIONS}
        options |= {"owner": Owner(task, attempt), "drain_id": f"{task}#{attempt}"}
        return DrainRequest.of(self.queue_id, sink_name, options)
