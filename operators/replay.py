"""The operator that adds keys and values of a source to a queue once more."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from export_queue.core.arguments import columns, required_text, text
from export_queue.hooks import ExportQueueHook
from export_queue.hooks.rendered import Reader, name_or
from export_queue.lineage import Lineage, LineageTask, queue_data
from export_queue.links import QueuePageLink
from export_queue.operators.terminal import terminal_errors_fail_at_once


class ExportQueueReplayOperator(LineageTask):
    """Add keys and values from a source to a queue once more, as new entries for all its subscriptions.

    No newer value is overwritten, and a retried task replays again. Drains then deliver the entries. Give exactly one
    of ``keys``, ``prefix``, ``key_range`` and ``all_keys``.

    :param queue_id: the queue, not one of its subscriptions. (templated)
    :param keys: one key or a list of keys, for queues whose keys are text. (templated)
    :param prefix: keys that begin so. (templated)
    :param key_range: a pair of keys: from the first one to before the second one. (templated)
    :param all_keys: every key.
    :param source: ``state``, the queue's own state; or the import path ``module:name`` of a function that yields pairs
        of key and value, or of a :class:`~export_queue.Source`. (templated)
    :param settle_timeout: seconds that each transaction waits for older ones to end.
    :param export_queue_conn_id: connection of the store. (templated)
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        "queue_id": required_text,
        "keys": columns,
        "prefix": text,
        "key_range": columns,
        "source": name_or("state"),
        "export_queue_conn_id": name_or(ExportQueueHook.default_conn_name),
    }
    template_fields: Collection[str] = tuple(readers)
    operator_extra_links = (QueuePageLink(),)
    ui_color = "#e4eefb"

    def __init__(
        self,
        *,
        queue_id: str,
        keys: str | Sequence[str] | None = None,
        prefix: str | None = None,
        key_range: Sequence[str] | str | None = None,
        all_keys: bool = False,
        source: str = "state",
        settle_timeout: float = 60.0,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_id = queue_id
        self.keys: Any = keys
        self.prefix = prefix
        self.key_range: Any = key_range
        self.all_keys = all_keys
        self.source = source
        self.settle_timeout = settle_timeout
        self.export_queue_conn_id = export_queue_conn_id

    def execute(self, context: Any) -> dict[str, Any]:
        """Replay.

        :returns: the numbers of entries, deletes and transactions, and the keys that the source does not know.
        """
        with terminal_errors_fail_at_once():
            self.read_arguments()
            with ExportQueueHook(self.export_queue_conn_id).get_store() as store:
                report = store.replay(
                    self.queue_id,
                    keys=self.keys,
                    prefix=self.prefix,
                    key_range=self.key_range,
                    all_keys=self.all_keys,
                    source=self.source,
                    settle_timeout=self.settle_timeout,
                )
        self.log.info("%s", report.line())
        self.report = report.to_json()
        return self.report

    def lineage(self) -> Lineage:
        """From the queue's own state to the queue; what another source reads is not known."""
        added = self.report["replayed"] + self.report["deleted"] if self.report else None
        queue = queue_data(self.export_queue_conn_id, self.queue_id)
        return Lineage(inputs=[queue] if self.source == "state" else [], outputs=[replace(queue, rows=added)])
