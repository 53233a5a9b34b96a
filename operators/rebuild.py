"""The operator that takes a step of a rebuild, in the Airflow worker."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.arguments import mapping, names, text
from export_queue.core.errors import InvalidArgument
from export_queue.hooks import ExportQueueHook, environment, resolve_sink
from export_queue.hooks.rendered import Reader, name_or
from export_queue.lineage import Lineage, LineageTask, queue_data, sink_data
from export_queue.links import QueuePageLink
from export_queue.operators.drain_task import DrainTask
from export_queue.operators.stopping import StoppableTask
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context

    from export_queue.core.client import Store
    from export_queue.core.sinks import SinkSpec
    from export_queue.core.verify import Rebuild

_SHARED = ("queue_id", "sink_conn_id", "sink_options", "sink", "exporter", "export_queue_conn_id")
"""Arguments of a drain that a rebuild has too."""


class ExportQueueRebuildOperator(LineageTask, StoppableTask):
    """Take a step of a rebuild: replace the target of a subscription without downtime, in the Airflow worker.

    A repeated task continues a step that was killed, and changes nothing after one that has taken effect.

    :param step: ``start``: add the subscription that fills the new target, with its first load. ``switch``: verify the
        new target, deliver what is pending, and let the pointers lead to it; with differences the task fails without a
        retry. ``back``: let them lead to the old target. ``finish``: remove the old subscription. ``cancel``: remove
        the new one. (templated)
    :param queue_id: the subscription whose target is replaced. (templated)
    :param pointer: of ``start``: the name that readers use, from ``$collection``: an alias, a view, or a key with a
        template of keys; by default ``${collection}_now``. (templated)
    :param new_options: of ``start``: options of the sink for the new target; the others are the old ones. (templated)
    :param exporter: of ``start``: import path of the new exporter; None for the old one. (templated)
    :param new_name: of ``start``: name of the new subscription; by default that of the old one with the next number.
        (templated)
    :param source: of ``start``: where the full content of the queue comes from, as for
        :class:`~export_queue.operators.verify.ExportQueueVerifyOperator`. (templated)
    :param collections: of ``start``: the collections that have a pointer; by default the one that has the queue's name.
        (templated)
    :param force: of ``switch``: do not verify, and ignore dead letters.
    :param lock_timeout: of ``switch`` and ``back``: seconds to wait for drains.
    :param sink_conn_id: of ``start``, ``switch`` and ``back``: connection of the sink, as for
        :class:`~export_queue.operators.drain.ExportQueueDrainOperator`. (templated)
    :param sink_options: options that the connection does not have; the stored ones need not be repeated. (templated)
    :param sink: instead of ``sink_conn_id``: the description of a sink. (templated)
    :param export_queue_conn_id: connection of the store. (templated)
    """

    readers: ClassVar[Mapping[str, Reader]] = {name: DrainTask.readers[name] for name in _SHARED} | {
        "step": DrainTask.readers["queue_id"],
        "pointer": text,
        "new_options": mapping,
        "new_name": text,
        "source": name_or("state"),
        "collections": names,
    }
    template_fields: Collection[str] = tuple(readers)
    operator_extra_links = (QueuePageLink(),)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "sink_options": "json",
        "sink": "json",
        "new_options": "json",
        "collections": "json",
    }
    ui_color = "#e8eaf6"

    def __init__(
        self,
        *,
        step: str,
        queue_id: str,
        pointer: str | None = None,
        new_options: Mapping[str, Any] | str | None = None,
        exporter: str | None = None,
        new_name: str | None = None,
        source: str = "state",
        collections: Sequence[str] | str | None = None,
        force: bool = False,
        lock_timeout: float = 600.0,
        sink_conn_id: str | None = None,
        sink_options: Mapping[str, Any] | str | None = None,
        sink: SinkSpec | Mapping[str, Any] | str | None = None,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.step = step
        self.queue_id = queue_id
        self.pointer = pointer
        self.new_options = new_options
        self.exporter = exporter
        self.new_name = new_name
        self.source = source
        self.collections = collections
        self.force = force
        self.lock_timeout = lock_timeout
        self.sink_conn_id = sink_conn_id
        self.sink_options = sink_options
        self.sink = sink
        self.export_queue_conn_id = export_queue_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Take the step.

        :returns: the rebuild, as plain values.
        """
        from export_queue.core.verify import STEPS

        with terminal_errors_fail_at_once():
            self.read_arguments()
            if self.step not in STEPS:
                raise InvalidArgument(f"step: expected {', '.join(STEPS)}, found {self.step!r}")
            with ExportQueueHook(self.export_queue_conn_id).get_store() as store, self.interruptible():
                found = self._take(store)
        self.log.info("%s", found.line())
        self.report = found.to_dict()
        return self.report

    def _take(self, store: Store) -> Rebuild:
        from export_queue.core.verify import POINTER

        if self.step == "finish":
            return store.rebuilds.finish(self.queue_id)
        if self.step == "cancel":
            return store.rebuilds.cancel(self.queue_id)
        described = resolve_sink(sink_conn_id=self.sink_conn_id, sink_options=self.sink_options, sink=self.sink)
        with environment(described.variables):
            if self.step == "switch":
                timeout = self.lock_timeout
                return store.rebuilds.switch(self.queue_id, described.spec, force=self.force, lock_timeout=timeout)
            if self.step == "back":
                return store.rebuilds.back(self.queue_id, described.spec, lock_timeout=self.lock_timeout)
            return store.rebuilds.start(
                self.queue_id,
                described.spec,
                pointer=self.pointer or POINTER,
                new_options=mapping(self.new_options, what="new_options") or {},
                exporter=self.exporter,
                name=self.new_name,
                source=self.source,
                collections=names(self.collections, what="collections") or (),
            )

    def lineage(self) -> Lineage:
        """A switch delivers what is pending to the new target, which its report names; other steps move nothing."""
        if self.step != "switch":
            return Lineage()
        conn_id, outputs = self.export_queue_conn_id, []
        if self.report:
            sink = resolve_sink(sink_conn_id=self.sink_conn_id, sink_options=self.sink_options, sink=self.sink).spec
            outputs = sink_data(conn_id, self.report["new"], sink.bound_to(self.report["binding"]), self.exporter)
        return Lineage(inputs=[queue_data(conn_id, self.queue_id)], outputs=outputs)
