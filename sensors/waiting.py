"""The common part of sensors: they poll a store, in the worker or on the triggerer, and consume nothing."""

from __future__ import annotations

from abc import abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf

from export_queue.core.arguments import seconds
from export_queue.hooks import ExportQueueHook
from export_queue.hooks.rendered import RenderedTask
from export_queue.links import QueuePageLink
from export_queue.triggers import RESUME_SECONDS

if TYPE_CHECKING:
    from airflow.sdk import Context

    from export_queue.triggers import StoreTrigger


class WaitForStore(RenderedTask, BaseSensorOperator):
    """Wait until a store has work, and return it.

    :param deferrable: wait on the triggerer, without occupying a worker; then ``poke_interval`` must be above 0.
    :param export_queue_conn_id: connection of the store. (templated)
    """

    operator_extra_links = (QueuePageLink(),)

    def __init__(
        self,
        *,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if deferrable:
            seconds(self.poke_interval, what="poke_interval")
        self.deferrable = deferrable
        self.export_queue_conn_id = export_queue_conn_id

    @abstractmethod
    def look(self) -> Any:
        """Poll once. Return something false if there is no work, else the payload of the trigger's event."""

    @abstractmethod
    def trigger(self) -> StoreTrigger:
        """Return the trigger that continues to poll."""

    @abstractmethod
    def result(self, seen: Any) -> Any:
        """Make the task's result of an event's payload."""

    def poke(self, context: Context) -> PokeReturnValue:
        """Poll once."""
        self.read_arguments()
        seen = self.look()
        return PokeReturnValue(is_done=bool(seen), xcom_value=self.result(seen) if seen else None)

    def execute(self, context: Context) -> Any:
        """Wait in the worker; or defer, unless there is work already."""
        if not self.deferrable:
            return super().execute(context)
        self.read_arguments()
        if seen := self.look():
            return self.result(seen)
        timeout = timedelta(seconds=self.timeout + RESUME_SECONDS)  # the trigger polls after that time
        return self.defer(trigger=self.trigger(), method_name="execute_complete", timeout=timeout)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue after the trigger's event."""
        self.read_arguments()
        return self.result(event)
