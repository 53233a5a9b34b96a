"""The common part of the operators that compare a sink with its queue: their arguments, and what differences mean."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowFailException

from export_queue.core.arguments import given, names, number_or_part, text
from export_queue.hooks import Described, ExportQueueHook, resolve_sink
from export_queue.hooks.rendered import Reader, name_or, optional
from export_queue.lineage import Lineage, LineageTask, queue_data, sink_data
from export_queue.links import DeadLettersLink, QueuePageLink
from export_queue.operators.drain_task import DrainTask
from export_queue.operators.metering import tell_differences
from export_queue.operators.stopping import StoppableTask

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink

    from export_queue.core.sinks import SinkSpec

_SHARED = ("queue_id", "sink_conn_id", "sink_options", "sink", "exporter", "export_queue_conn_id")
"""Arguments of a drain that a comparison has too."""


class VerifyTask(LineageTask, StoppableTask):
    """A task that compares the records of a sink with the content of a queue.

    Success means that there are no differences. Entries that are pending, younger than the comparison or dead letters
    are none. With differences the task fails without a retry; its error has their number and up to ten samples of each
    kind. With ``repair`` it succeeds if nothing differs afterwards.

    :param queue_id: the queue, or the subscription that drains into the sink. (templated)
    :param source: ``state``, the queue's own state; or the import path ``module:name`` of a function that yields the
        keys and values that the queue's consumers should have, or of a :class:`~export_queue.Source`. (templated)
    :param records: instead of ``source``: the import path ``module:name`` of a function that yields the records which
        the sink should have, as :class:`~export_queue.Put`. (templated)
    :param sink_conn_id: connection of the sink, as for
        :class:`~export_queue.operators.drain.ExportQueueDrainOperator`. (templated)
    :param sink_options: options that the connection does not have; the stored ones need not be repeated. (templated)
    :param sink: instead of ``sink_conn_id``: the description of a sink, or the import path ``module:factory`` of your
        own sink. (templated)
    :param exporter: the exporter of the drains; None for the stored one. (templated)
    :param collections: collections that are read besides those of the expected records, since your exporter may have
        written to them. (templated)
    :param repair: whether to write the records that differ again, and to compare once more.
    :param max_deletes: the largest part of the compared records that a repair may delete, from 0.0 to 1.0, or a whole
        number of records. If more are extra, none is deleted. (templated)
    :param lock_timeout: seconds that a repair waits for drains; after that compactions lose their locks, and the task
        fails if others hold any.
    :param export_queue_conn_id: connection of the store. (templated)
    """

    readers: ClassVar[Mapping[str, Reader]] = {name: DrainTask.readers[name] for name in _SHARED} | {
        "source": name_or("state"),
        "records": text,
        "max_deletes": optional(number_or_part, default=0.2),
        "collections": names,
    }
    template_fields: Collection[str] = tuple(readers)
    operator_extra_links: Collection[BaseOperatorLink] = (QueuePageLink(), DeadLettersLink())
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "sink_options": "json",
        "sink": "json",
        "collections": "json",
    }
    ui_color = "#dff0d8"

    def __init__(
        self,
        *,
        queue_id: str,
        source: str = "state",
        records: str | None = None,
        sink_conn_id: str | None = None,
        sink_options: Mapping[str, Any] | str | None = None,
        sink: SinkSpec | Mapping[str, Any] | str | None = None,
        exporter: str | None = None,
        collections: Sequence[str] | str | None = None,
        repair: bool = False,
        max_deletes: float | str = 0.2,
        lock_timeout: float = 600.0,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_id = queue_id
        self.source = source
        self.records = records
        self.sink_conn_id = sink_conn_id
        self.sink_options = sink_options
        self.sink = sink
        self.exporter = exporter
        self.collections = collections
        self.repair = repair
        self.max_deletes: Any = max_deletes
        self.lock_timeout = lock_timeout
        self.export_queue_conn_id = export_queue_conn_id

    def describe_sink(self) -> Described[SinkSpec]:
        """Describe the sink that the rendered arguments name."""
        return resolve_sink(sink_conn_id=self.sink_conn_id, sink_options=self.sink_options, sink=self.sink)

    def lineage(self) -> Lineage:
        """The queue and the sink are read; a repair writes to the sink."""
        conn_id, queue_id, sink = self.export_queue_conn_id, self.queue_id, self.describe_sink().spec
        compared = sink_data(conn_id, queue_id, sink, self.exporter, self.report.get("scanned"))
        repaired = [replace(one, rows=self.report.get("repaired")) for one in compared] if self.repair else []
        return Lineage(inputs=[queue_data(conn_id, queue_id), *compared], outputs=repaired)

    def options(self) -> dict[str, Any]:
        """Return the options of the request, from the rendered arguments."""
        return {
            "source": self.source,
            "records": given(self.records),
            "exporter": self.exporter,
            "collections": names(self.collections, what="collections") or [],
            "repair": self.repair,
            "max_deletes": self.max_deletes,
            "lock_timeout": self.lock_timeout,
        }

    def told(self, report: dict[str, Any], lines: Sequence[str]) -> dict[str, Any]:
        """Return a report, after its line was logged.

        :param report: the report, as plain values.
        :param lines: the same as text.
        :raises AirflowFailException: there are differences.
        """
        self.report = report
        tell_differences(self.queue_id, report["differences"])
        if report["differences"]:
            raise AirflowFailException("\n".join(lines))
        self.log.info("%s", lines[0])
        return report
