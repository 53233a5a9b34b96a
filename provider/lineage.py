"""Data lineage: which datasets a task reads and writes, for OpenLineage and for Airflow's readers of hook lineage.

Nothing here is imported, and no server is asked, unless Airflow has a reader of lineage.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from export_queue.core.errors import ExportQueueError
from export_queue.hooks import ExportQueueHook, SqlSinkHook, open_store
from export_queue.hooks.rendered import RenderedTask

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Connection

    from export_queue.core.sinks import Dataset, SinkSpec, SqlNames

_PLACEHOLDER = re.compile(r"%\(\w+\)s|%s")
"""Placeholders of database drivers, which OpenLineage's parser of SQL takes for errors."""

_TOLD_NAMES = ("queue", "sink", "drain_id")
"""Names in a report that the events of a task's assets have, besides its numbers."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A dataset that a task reads or writes.

    :param rows: number of rows that it has read or written; None if it is not known.
    """

    dataset: Dataset
    rows: int | None = None

    @property
    def uri(self) -> str:
        """The URI of the asset that stands for the dataset."""
        if self.dataset.namespace == "file":
            return f"file://{quote(self.dataset.name)}"
        return "/".join([self.dataset.namespace, *(quote(part, safe="/") for part in self.dataset.path)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What a task moves, from where to where.

    :param sql: the query that reads the inputs.
    """

    inputs: Sequence[Moved] = ()
    outputs: Sequence[Moved] = ()
    sql: str | None = None


class LineageTask(RenderedTask):
    """A task that says which datasets it moves. OpenLineage's provider calls it in a process next to the task's."""

    export_queue_conn_id: str
    report: dict[str, Any] = {}  # noqa: RUF012 - replaced, never changed
    """What the task returns, once it is known; empty before."""

    def lineage(self) -> Lineage:
        """Return what the task moves, with numbers if its report is known. Its arguments have been read."""
        return Lineage()

    def post_execute(self, context: Any, result: Any = None) -> None:
        """Tell consumers of the assets, and readers of hook lineage if there are any, what was moved."""
        super().post_execute(context, result)
        self._tell_consumers(context)
        try:
            _collect(self)
        except Exception as error:  # lineage is no reason to fail
            self.log.warning("The lineage of the task is not known: %s", error)

    def _tell_consumers(self, context: Any) -> None:
        """Put the report's numbers into the events of the assets that are outlets of the task."""
        from airflow.sdk import Asset

        told = {
            name: value for name, value in self.report.items() if name in _TOLD_NAMES or type(value) in (int, float)
        }
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                event = context["outlet_events"][outlet]
                event.extra = {**told, **event.extra}

    def get_openlineage_facets_on_start(self) -> OperatorLineage:
        """Return the datasets that the task is going to read and write."""
        return _facets(self)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage:
        """Return the datasets that the task has read and written, with the numbers of rows from its report."""
        return _facets(self)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage:
        """Return the datasets that the task may have read and written, with numbers if its report is known."""
        return _facets(self)


def mirrored(report: Mapping[str, Any]) -> int:
    """Return the number of entries that a mirror has added."""
    return sum(report[name] for name in ("new", "changed", "deleted"))


def queue_data(conn_id: str, queue_id: str, rows: int | None = None) -> Moved:
    """Name a queue. A subscription has the data of its queue."""
    from export_queue.core.sinks import Dataset, first_collection

    return Moved(Dataset(f"export-queue://{conn_id}", (first_collection(queue_id),)), rows)


def sink_data(
    conn_id: str, queue_id: str, sink: SinkSpec, exporter: object | None, rows: int | None = None
) -> list[Moved]:
    """Name what a reader's sink writes to, with the options and the exporter that the reader is bound to.

    :param rows: number of rows written; of several sinks as one, that of each is not known.
    """
    from export_queue.core.drain import filled_in
    from export_queue.core.sinks import datasets_of, first_collection

    described = ExportQueueHook(conn_id).describe()
    with contextlib.suppress(ExportQueueError), open_store(described, hurried=True) as store:
        filled, exporter = filled_in(store.database, queue_id, sink, exporter)
        sink = filled if isinstance(filled, type(sink)) else sink
    found = datasets_of(sink, first_collection(queue_id) if exporter is None else None)
    return [Moved(one, rows if len(found) == 1 else None) for one in found]


def file_data(file: str) -> Moved:
    """Name a file by its path, or its URL without a user."""
    from export_queue.core.sinks import Dataset

    url = urlsplit(file)
    if url.scheme in ("", "file"):
        return Moved(Dataset("file", (url.path if url.scheme else file,)))
    return Moved(Dataset(f"{url.scheme}://{url.netloc.rpartition('@')[2]}", (url.path.lstrip("/"),)))


def query_data(conn_id: str, sql: str) -> list[Moved]:
    """Name the tables that a query reads; none if the database or the parser does not know them.

    :param conn_id: connection of the database.
    """
    from airflow.sdk import BaseHook

    try:
        from airflow.providers.openlineage.sqlparser import SQLParser
    except ImportError:  # readers of hook lineage may do without its parser
        return []
    names = _names_of(BaseHook.get_connection(conn_id))
    if names is None:
        return []
    meta = SQLParser(dialect=names.dialect).parse(_PLACEHOLDER.sub("NULL", sql))
    tables = [] if meta is None else meta.in_tables
    return [Moved(names.table(table.database, table.schema, table.name)) for table in tables]


def _names_of(connection: Connection) -> SqlNames | None:
    """Return how the database of a connection names its tables, as Airflow's hook says it for types without a sink."""
    from export_queue.core.sinks import SqlNames, sql_names

    if connection.conn_type in SqlSinkHook.conn_types:
        return sql_names(SqlSinkHook(connection.conn_id).describe().spec.options["url"])
    from airflow.providers.openlineage.sqlparser import SQLParser

    hook = connection.get_hook()
    info = hook.get_openlineage_database_info(connection) if hasattr(hook, "get_openlineage_database_info") else None
    if info is None:
        return None
    before = (info.database or connection.schema, hook.get_openlineage_default_schema())
    dialect = hook.get_openlineage_database_dialect(connection)
    return SqlNames(SQLParser.create_namespace(info), tuple(part for part in before if part), dialect)


def _lineage_of(task: LineageTask) -> Lineage:
    read = copy.copy(task)  # the task itself reads its arguments when it works
    read.read_arguments()
    return read.lineage()


def _facets(task: LineageTask) -> OperatorLineage:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import sql_job
    from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet
    from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet

    def counted(one: Moved, name: str, facet: Any) -> dict[str, Any]:
        return {} if one.rows is None else {name: facet(rowCount=one.rows)}

    lineage = _lineage_of(task)
    inputs = [
        InputDataset(
            namespace=one.dataset.namespace,
            name=one.dataset.name,
            inputFacets=counted(one, "inputStatistics", InputStatisticsInputDatasetFacet),
        )
        for one in lineage.inputs
    ]
    outputs = [
        OutputDataset(
            namespace=one.dataset.namespace,
            name=one.dataset.name,
            outputFacets=counted(one, "outputStatistics", OutputStatisticsOutputDatasetFacet),
        )
        for one in lineage.outputs
    ]
    return OperatorLineage(
        inputs=[*inputs, *_declared(task.inlets, inputs)],
        outputs=[*outputs, *_declared(task.outlets, outputs)],
        job_facets={} if lineage.sql is None else {"sql": sql_job.SQLJobFacet(query=lineage.sql)},
    )


def _declared(assets: Iterable[Any], found: Iterable[Any]) -> list[Any]:
    """Return the datasets of inlets or outlets, which OpenLineage ignores of a task that reports its own.

    :param found: datasets that are reported already.
    """
    from airflow.providers.openlineage.extractors.manager import ExtractorManager

    named = {(one.namespace, one.name) for one in found}
    declared = [one for asset in assets if (one := ExtractorManager.convert_to_ol_dataset(asset)) is not None]
    return [one for one in declared if (one.namespace, one.name) not in named]


def _collect(task: LineageTask) -> None:
    from airflow.sdk import plugins_manager
    from airflow.sdk.lineage import HookLineageReader, get_hook_lineage_collector

    # OpenLineage registers the class itself. It gets more from the task's own methods, and making a collector takes
    # seconds where many providers are installed.
    if all(reader is HookLineageReader for reader in plugins_manager.get_hook_lineage_readers_plugins()):
        return
    collector = get_hook_lineage_collector()
    lineage, hook = _lineage_of(task), ExportQueueHook(task.export_queue_conn_id)
    for add, found in ((collector.add_input_asset, lineage.inputs), (collector.add_output_asset, lineage.outputs)):
        for one in found:
            add(context=hook, uri=one.uri)
