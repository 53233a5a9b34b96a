"""The operator that makes a queue equal to the result of a query, or to a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.arguments import columns, given, number_or_part, required_columns, required_text, text
from export_queue.core.errors import InvalidArgument
from export_queue.hooks import ExportQueueHook
from export_queue.hooks.rendered import Reader, name_or, optional, untouched
from export_queue.lineage import Lineage, LineageTask, file_data, mirrored, query_data, queue_data
from export_queue.links import QueuePageLink
from export_queue.operators.metering import count
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context


class ExportQueueMirrorOperator(LineageTask):
    """Make the state of a queue equal to the result of a query, or to a file.

    The task compares the data with what the queue remembers, and adds exactly the difference in one transaction:
    records that are new or changed, and a delete for each record that is gone. Unchanged records cost nothing
    downstream. A drain then brings the difference to the sinks. A retried or cleared task mirrors again; if nothing has
    changed since, it adds nothing. The queue needs ``state=True``.

    Pass either ``sql`` with ``sql_conn_id``, or ``file``.

    :param queue_id: the queue. (templated)
    :param sql: one query. (templated)
    :param sql_conn_id: connection of the query's database: ``postgres``, ``mysql``, ``sqlite``, or any other type whose
        hook is one for SQL. (templated)
    :param parameters: values of the query's placeholders, as the database's driver takes them. (templated)
    :param file: instead of a query: path or URL of a file ``….parquet``, ``….csv``, ``….ndjson`` or ``….jsonl``, the
        latter three also compressed, ``….csv.gz``, as Airflow's ``ObjectStoragePath`` reads it. (templated)
    :param key: the column that is the key, or a list of several. (templated)
    :param value: the column that is the value, or a list of columns that become a JSON object; by default all.
        (templated)
    :param scope: beginning of the keys that the data has all of; other keys are left alone. (templated)
    :param max_deletes: the largest part of the records that may be deleted, from 0.0 to 1.0, or a whole number of
        records. Beyond it the task fails and adds nothing. (templated)
    :param dry_run: only report the difference.
    :param settle_timeout: seconds to wait for older transactions to end.
    :param timeout: seconds until the commit is refused; by default 24 hours.
    :param export_queue_conn_id: connection of the store. (templated)
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        "queue_id": required_text,
        "sql": text,
        "sql_conn_id": text,
        "parameters": untouched,
        "file": text,
        "key": required_columns,
        "value": columns,
        "scope": text,
        "max_deletes": optional(number_or_part, default=0.2),
        "export_queue_conn_id": name_or(ExportQueueHook.default_conn_name),
    }
    template_fields: Collection[str] = tuple(readers)
    operator_extra_links = (QueuePageLink(),)
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"sql": "sql", "parameters": "json"}
    ui_color = "#e4eefb"

    def __init__(
        self,
        *,
        queue_id: str,
        key: str | Sequence[str],
        sql: str | None = None,
        sql_conn_id: str | None = None,
        parameters: Any = None,
        file: str | None = None,
        value: str | Sequence[str] | None = None,
        scope: str | None = None,
        max_deletes: float | str = 0.2,
        dry_run: bool = False,
        settle_timeout: float = 60.0,
        timeout: float | None = None,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_id = queue_id
        self.key: Any = key
        self.sql = sql
        self.sql_conn_id = sql_conn_id
        self.parameters = parameters
        self.file = file
        self.value: Any = value
        self.scope = scope
        self.max_deletes: Any = max_deletes
        # not ``dry_run``, which is a method of every operator
        self.only_say = dry_run
        self.settle_timeout = settle_timeout
        self.timeout = timeout
        self.export_queue_conn_id = export_queue_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Mirror.

        :returns: the numbers of new, changed, deleted and unchanged records, and some keys of each.
        """
        with terminal_errors_fail_at_once():
            self.read_arguments()
            self._check_source()
            with ExportQueueHook(self.export_queue_conn_id).get_store() as store:
                report = store.mirror(
                    self.queue_id,
                    self._rows,
                    key=_one_or_several(self.key),
                    value=_one_or_several(self.value),
                    scope=self.scope,
                    max_deletes=self.max_deletes,
                    dry_run=self.only_say,
                    settle_timeout=self.settle_timeout,
                    timeout=self.timeout,
                )
        for kind, found in report.samples.items():
            if found:
                self.log.info("%s, for example: %s", kind, ", ".join(map(repr, found)))
        self.log.info("%s", report.line())
        if not report.dry_run:
            numbers = {"new": report.new, "changed": report.changed, "deleted": report.deleted}
            count("mirror", numbers, queue=report.queue)
        self.report = report.to_json()
        return self.report

    def lineage(self) -> Lineage:
        """From the tables of the query, or the file, to the queue; a dry run writes nothing."""
        sql, file = given(self.sql), given(self.file)
        inputs = query_data(self.sql_conn_id or "", sql) if sql is not None else [file_data(file or "")]
        rows = mirrored(self.report) if self.report else None
        outputs = [] if self.only_say else [queue_data(self.export_queue_conn_id, self.queue_id, rows)]
        return Lineage(inputs=inputs, outputs=outputs, sql=sql)

    def _check_source(self) -> None:
        has_query = given(self.sql) is not None
        if has_query == (given(self.file) is not None):
            found = "both" if has_query else "neither"
            raise InvalidArgument(f"expected either sql or file, found {found}")
        if has_query and given(self.sql_conn_id) is None:
            raise InvalidArgument("sql_conn_id: expected the connection of the query's database, found none")

    def _rows(self) -> Iterator[Any]:
        from export_queue.core.sources import rows_of_file, rows_of_query

        if self.file is not None:
            from airflow.sdk import ObjectStoragePath

            path = ObjectStoragePath(self.file)
            yield from rows_of_file(path.name, lambda: path.open("rb"))
            return
        assert self.sql is not None
        engine = _engine(self.sql_conn_id or "")
        try:
            with engine.connect() as connection:
                yield from rows_of_query(connection, self.sql, self.parameters)
        finally:
            engine.dispose()


def _engine(conn_id: str) -> Any:
    """Return a SQLAlchemy engine: of the provider's own hook, which honours or refuses each option, or of Airflow's."""
    from airflow.sdk.bases.hook import BaseHook

    from export_queue.hooks.sql import SqlSinkHook

    connection = BaseHook.get_connection(conn_id)
    if connection.conn_type in SqlSinkHook.conn_types:
        return SqlSinkHook(conn_id).get_conn()
    hook = connection.get_hook()
    if not hasattr(hook, "get_sqlalchemy_engine"):
        raise InvalidArgument(
            f"connection {conn_id!r}: expected a SQL database, found {connection.conn_type}, whose hook is "
            f"{type(hook).__name__}"
        )
    return hook.get_sqlalchemy_engine()


def _one_or_several(columns: Sequence[str] | None) -> str | Sequence[str] | None:
    return columns[0] if columns is not None and len(columns) == 1 else columns
