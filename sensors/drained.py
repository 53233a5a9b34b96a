"""The sensor that waits until a reader's sink has what was committed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.arguments import required_text
from export_queue.core.errors import InvalidArgument, NotExported
from export_queue.hooks import Described, ExportQueueHook, environment, resolve_sink
from export_queue.hooks.rendered import SINK, Reader, name_or
from export_queue.sensors.waiting import WaitForStore
from export_queue.triggers import ExportQueueDrainedTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from export_queue.core.sinks import SinkSpec


class ExportQueueDrainedSensor(WaitForStore):
    """Wait until the sink of a reader has acknowledged what a transaction added, or everything committed before now.

    It starts no drain. If a part will not arrive, such as a dead letter, the task fails with the reason. The result is
    ``{"queue": …, "token": …}``.

    :param queue_id: a subscription, such as ``airports/search``, or a queue without subscriptions. (templated)
    :param token: ``tx.token`` of a transaction; None for everything committed before the task began. (templated)
    :param searchable: then refresh the indices of the sink, so that searches in Elasticsearch show it, too.
    :param sink_conn_id: with ``searchable``: connection of the sink, as for
        :class:`~export_queue.operators.drain.ExportQueueDrainOperator`. (templated)
    :param sink_options: options that the connection does not have. (templated)
    :param sink: instead of ``sink_conn_id``: the description of a sink, or the import path ``module:factory`` of your
        own sink. (templated)
    :param deferrable: wait on the triggerer, without occupying a worker.
    :param export_queue_conn_id: connection of the store. (templated)
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        "queue_id": required_text,
        "token": name_or(""),
        **SINK,
        "export_queue_conn_id": name_or(ExportQueueHook.default_conn_name),
    }
    template_fields: Collection[str] = tuple(readers)
    template_fields_renderers: ClassVar[dict[str, str]] = {"sink_options": "json", "sink": "json"}
    ui_color = "#eee4f5"

    def __init__(
        self,
        *,
        queue_id: str,
        token: Any = None,
        searchable: bool = False,
        sink_conn_id: str | None = None,
        sink_options: Mapping[str, Any] | str | None = None,
        sink: SinkSpec | Mapping[str, Any] | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_id = queue_id
        self.token: Any = token
        self.searchable = searchable
        self.sink_conn_id = sink_conn_id
        self.sink_options = sink_options
        self.sink = sink
        self._awaited: str = ""

    def execute(self, context: Context) -> Any:
        """Wait in the worker; or defer, unless there is nothing to wait for."""
        self.read_arguments()
        if not self.token and self.reschedule and not self.deferrable:
            raise InvalidArgument(
                "mode='reschedule' without a token: each poll would wait for what was committed before it",
                hint="pass deferrable=True, or a token",
            )
        if self.searchable:
            self._describe_sink()  # a wrong one is refused before the wait
        return super().execute(context)

    def look(self) -> dict[str, Any]:
        """Look once."""
        with ExportQueueHook(self.export_queue_conn_id).get_store() as store:
            self._awaited = self._awaited or self.token or store.token()
            return {"token": self._awaited} if store.is_exported(self._awaited, self.queue_id) else {}

    def trigger(self) -> ExportQueueDrainedTrigger:
        """Continue to look."""
        return ExportQueueDrainedTrigger(
            queue_id=self.queue_id,
            token=self._awaited,
            poll_interval=self.poke_interval,
            export_queue_conn_id=self.export_queue_conn_id,
        )

    def result(self, seen: dict[str, Any]) -> dict[str, str]:
        """Return queue and token.

        :raises NotExported: a part will not arrive.
        """
        if failure := seen.get("failure"):
            raise NotExported(failure["message"], hint=failure["hint"])
        self.log.info("Queue %s: the sink has acknowledged everything that was waited for", self.queue_id)
        if self.searchable:
            described = self._describe_sink()
            with ExportQueueHook(self.export_queue_conn_id).get_store() as store, environment(described.variables):
                store.wait_exported(seen["token"], self.queue_id, searchable=True, sink=described.spec)
            self.log.info("Queue %s: searches show it", self.queue_id)
        return {"queue": self.queue_id, "token": seen["token"]}

    def _describe_sink(self) -> Described[SinkSpec]:
        return resolve_sink(sink_conn_id=self.sink_conn_id, sink_options=self.sink_options, sink=self.sink)
