"""The common part of the operators that merge small segments: their arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.arguments import required_text, whole_number
from export_queue.hooks import ExportQueueHook
from export_queue.hooks.rendered import Reader, name_or, optional
from export_queue.lineage import Lineage, LineageTask, queue_data
from export_queue.links import QueuePageLink
from export_queue.operators.stopping import StoppableTask

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink

    from export_queue.core.segments import Candidates, CompactionReport


class CompactTask(LineageTask, StoppableTask):
    """A task that merges small segments and settled rows of a queue, while others add, load and drain.

    It merges what nobody else holds, never waits, and gives way to drains. The next run merges units that it had to
    leave. The task succeeds even if nothing was merged; see its report.

    :param queue_id: the queue, or a subscription. (templated)
    :param dry_run: only report what would be merged.
    :param small_bytes: a segment with fewer bytes of keys and values is small; larger ones are not merged. (templated)
    :param least: minimum number of small segments of a unit, whose rows count as one. (templated)
    :param age_seconds: minimum age of the segments that are merged. (templated)
    :param export_queue_conn_id: connection of the store. (templated)
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        "queue_id": required_text,
        "small_bytes": optional(whole_number, default=8 << 20),
        "least": optional(whole_number, default=8),
        "age_seconds": optional(whole_number, default=0),
        "export_queue_conn_id": name_or(ExportQueueHook.default_conn_name),
    }
    template_fields: Collection[str] = tuple(readers)
    operator_extra_links: Collection[BaseOperatorLink] = (QueuePageLink(),)

    def __init__(
        self,
        *,
        queue_id: str,
        dry_run: bool = False,
        small_bytes: int | str = 8 << 20,
        least: int | str = 8,
        age_seconds: int | str = 0,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_id = queue_id
        # not ``dry_run``, which is a method of every operator
        self.only_say = dry_run
        self.small_bytes: Any = small_bytes
        self.least: Any = least
        self.age_seconds: Any = age_seconds
        self.export_queue_conn_id = export_queue_conn_id

    def wanted(self) -> Candidates:
        """Read the rendered arguments, and return which segments to merge.

        :raises InvalidArgument: an argument is not allowed.
        """
        from export_queue.core.segments import Candidates

        self.read_arguments()
        return Candidates(small_bytes=self.small_bytes, least=self.least, age_seconds=self.age_seconds)

    def told(self, report: CompactionReport) -> dict[str, Any]:
        """Log a report.

        :returns: its figures, as plain values.
        """
        for unit in report.units:
            self.log.info("%s", unit.line(dry_run=report.dry_run))
        self.log.info("%s", report.line())
        self.report = report.summary()
        return self.report

    def lineage(self) -> Lineage:
        """From the queue to the queue."""
        queue = queue_data(self.export_queue_conn_id, self.queue_id)
        if self.only_say:
            return Lineage(inputs=[queue])
        read, written = (replace(queue, rows=self.report.get(name)) for name in ("read", "written"))
        return Lineage(inputs=[read], outputs=[written])
