"""The operator that merges small segments of a queue in the Airflow worker."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowTaskTerminated

from export_queue.core.arguments import whole_number
from export_queue.hooks import ExportQueueHook
from export_queue.hooks.tasks import task_name
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context


class ExportQueueCompactOperator(BaseOperator):
    """Merge small segments and settled rows of a queue, while others add, load and drain.

    It takes what nobody works on, never waits, and gives way to drains: units that it had to leave are merged by the
    next run. Success does not say that anything was merged; the report does.

    :param queue_id: the queue, or a subscription. (templated)
    :param dry_run: only say what would be merged.
    :param small_bytes: a segment with fewer bytes of keys and values is small; others stay as they are. (templated)
    :param least: so many small segments of a unit, its rows counting as one, are worth it. (templated)
    :param age_seconds: younger segments are left alone. (templated)
    :param export_queue_conn_id: connection of the store. (templated)
    """

    template_fields: Collection[str] = ("queue_id", "small_bytes", "least", "age_seconds", "export_queue_conn_id")
    ui_color = "#efe8f7"
    _is_killed = False
    _works_in: int | None = None
    """The thread that merges."""

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
        self.small_bytes = small_bytes
        self.least = least
        self.age_seconds = age_seconds
        self.export_queue_conn_id = export_queue_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Merge.

        :returns: the report without its units, as plain values.
        """
        from export_queue.core.locks import Owner
        from export_queue.core.segments import Candidates, compact

        with terminal_errors_fail_at_once():
            wanted = Candidates(
                small_bytes=whole_number(self.small_bytes, what="small_bytes"),
                least=whole_number(self.least, what="least"),
                age_seconds=whole_number(self.age_seconds, what="age_seconds"),
            )
            with ExportQueueHook(self.export_queue_conn_id).get_store() as store:
                self._works_in = threading.get_ident()
                try:
                    report = compact(
                        store.database,
                        self.queue_id,
                        wanted=wanted,
                        owner=Owner(task_name(context), uuid.uuid4().hex),
                        dry_run=self.only_say,
                        stops=lambda: self._is_killed,
                    )
                finally:
                    self._works_in = None
        for unit in report.units:
            self.log.info("%s", unit.line(dry_run=self.only_say))
        self.log.info("%s", report.line())
        found = report.to_json()
        return {**found, "units": len(report.units)}

    def on_kill(self) -> None:
        """Stop, and give the locks back; what was published stays so, and nothing else has changed.

        Airflow calls this from a signal handler, in the thread that merges.
        """
        self._is_killed = True
        if self._works_in == threading.get_ident():
            raise AirflowTaskTerminated(f"task {self.task_id} was told to stop")
