"""The sensor that watches a store's notifications."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from export_queue.core.arguments import given, whole_number
from export_queue.core.errors import InvalidArgument
from export_queue.hooks import ExportQueueHook
from export_queue.hooks.rendered import Reader, name_or, optional
from export_queue.sensors.waiting import WaitForStore
from export_queue.triggers import ExportQueueNotificationTrigger, ExportQueueTrigger


class ExportQueueNotificationSensor(WaitForStore):
    """Wait until notifications of a table's observed column are due, or until a queue has pending entries.

    It consumes nothing. For a column it returns the rows whose notifications are due, oldest first:
    ``{"table": …, "column": …, "rows": ["anna", …], "more": 0, "is_all": true}``. ``more`` counts further rows among
    the oldest 1000 notifications; ``is_all`` says that there are no others. Rows have the table's type: numbers for
    ``int``, otherwise text. ``{"base64": "…"}`` represents a row of ``bytes`` that is not UTF-8, a row that contains
    NUL, and a row that JSON cannot represent or the codec cannot decode. For a queue it returns the ranges that have
    entries, as :class:`~export_queue.sensors.ExportQueueSensor` does.

    :param table: the table; with ``column``. (templated)
    :param column: a column that :meth:`Store.watch` or :meth:`Store.observe` has declared. (templated)
    :param queue_id: the queue; instead of ``table`` and ``column``. (templated)
    :param limit: maximum number of rows to list, 1 to 1000. (templated)
    :param deferrable: wait on the triggerer, without occupying a worker.
    :param export_queue_conn_id: connection of the store. (templated)
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        "table": name_or(""),
        "column": name_or(""),
        "queue_id": name_or(""),
        "limit": optional(whole_number, default=100, least=1),
        "export_queue_conn_id": name_or(ExportQueueHook.default_conn_name),
    }
    template_fields: Collection[str] = tuple(readers)
    ui_color = "#eee4f5"

    def __init__(
        self,
        *,
        table: str | None = None,
        column: str | None = None,
        queue_id: str | None = None,
        limit: int | str = 100,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table: Any = table
        self.column: Any = column
        self.queue_id = queue_id
        self.limit: Any = limit
        if all(isinstance(value, str | None) and "{" not in (value or "") for value in (table, column, queue_id)):
            self._check_choice()  # else it is checked after the templates are rendered

    def _check_choice(self) -> None:
        found = [name for name in ("table", "column", "queue_id") if given(getattr(self, name))]
        if found not in (["table", "column"], ["queue_id"]):
            raise InvalidArgument(
                f"expected table and column, or queue_id alone; found {' and '.join(found) or 'none of them'}"
            )

    def look(self) -> dict[str, Any]:
        """Check once, with one snapshot."""
        self._check_choice()
        with ExportQueueHook(self.export_queue_conn_id).get_store() as store:
            if self.queue_id:
                waiting = store.waiting_ranges(self.queue_id)
                return {"waiting": [unit.to_json() for unit in waiting]} if waiting else {}
            rows = store.waiting_rows(self.table, self.column, limit=self.limit)
        return {"table": self.table, "column": self.column, **rows.to_json()} if rows else {}

    def trigger(self) -> ExportQueueTrigger | ExportQueueNotificationTrigger:
        """Watch the queue or the column."""
        if self.queue_id:
            return ExportQueueTrigger(
                queue_id=self.queue_id,
                poll_interval=self.poke_interval,
                export_queue_conn_id=self.export_queue_conn_id,
            )
        return ExportQueueNotificationTrigger(
            table=self.table,
            column=self.column,
            limit=self.limit,
            poll_interval=self.poke_interval,
            export_queue_conn_id=self.export_queue_conn_id,
        )

    def result(self, seen: dict[str, Any]) -> Any:
        """Return the ranges of a queue, or the rows of a column."""
        if self.queue_id:
            self.log.info("Queue %s: entries are pending in %d units", self.queue_id, len(seen["waiting"]))
            return seen["waiting"]
        counted = f"{len(seen['rows']) + seen['more']} rows{'' if seen['is_all'] else ' or more'}"
        self.log.info("Column %s of table %s: notifications are due for %s", self.column, self.table, counted)
        return seen
