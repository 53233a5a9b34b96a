"""The operator that calls observers for changed cells."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.sdk.exceptions import AirflowException

from export_queue.core.arguments import text, whole_number
from export_queue.core.callables import check_runs, returned
from export_queue.core.errors import InvalidArgument
from export_queue.core.references import import_object
from export_queue.hooks import ExportQueueHook
from export_queue.hooks.rendered import Reader, name_or, optional
from export_queue.lineage import LineageTask
from export_queue.links import QueuePageLink
from export_queue.operators.stopping import StoppableTask
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context

    from export_queue.core.client import Store
    from export_queue.core.observers import Processed

_ROUND = 1000
"""Maximum number of observers that one round calls."""


class ExportQueueObserveOperator(LineageTask, StoppableTask):
    """Call observers for all notifications that are due, each in its own transaction, in the Airflow worker.

    Several such tasks share the work. If observers raise errors, the task calls the others and then fails; a retry, or
    a later run, calls the failed ones again.

    :param register: a function that takes the store and registers observers with ``store.observe``; or its import path
        ``module:function``. (templated)
    :param limit: maximum number of observers to call; by default all that are due. (templated)
    :param observer_timeout: seconds that the transaction of one observer may take.
    :param export_queue_conn_id: connection of the store. (templated)
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        "register": text,
        "limit": optional(whole_number, least=1),
        "export_queue_conn_id": name_or(ExportQueueHook.default_conn_name),
    }
    template_fields: Collection[str] = tuple(readers)
    operator_extra_links = (QueuePageLink(),)
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        register: str | Callable[[Store], object],
        limit: int | str | None = None,
        observer_timeout: float = 30.0,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # Airflow would call a function in a templated field.
        self._given = None if isinstance(register, str) else register
        self.register = register if isinstance(register, str) else None
        self.limit: Any = limit
        self.observer_timeout = observer_timeout
        self.export_queue_conn_id = export_queue_conn_id

    def execute(self, context: Context) -> dict[str, int]:
        """Call the observers.

        :returns: the numbers of notifications by outcome, and ``left``, those that are due now.
        """
        with terminal_errors_fail_at_once():
            self.read_arguments()
            register = _function(self.register if self._given is None else self._given)
            with ExportQueueHook(self.export_queue_conn_id).get_store() as store, self.interruptible():
                returned(register(store), "register")
                total = self._call(store)
                failures = store.observer_failures(limit=1) if total.failed else []
        self.log.info("%d done, %d conflicted, %d failed", total.done, total.conflicted, total.failed)
        if total.failed:
            first = f"; the first: {failures[0].error}" if failures else ""
            raise AirflowException(f"{total.failed} observers failed and are called again later{first}")
        return asdict(total)

    def _call(self, store: Store) -> Processed:
        total, most = None, self.limit
        while True:
            self.check_killed()
            found = store.process_notifications(
                limit=_ROUND if most is None else min(_ROUND, most), timeout=self.observer_timeout
            )
            total = found if total is None else total.then(found)
            if most is not None:
                most -= found.done + found.conflicted + found.failed
            if not found.done or not found.left or (most is not None and most <= 0):
                return total


def _function(register: object) -> Callable[[Store], object]:
    """Return the function that registers observers.

    :raises InvalidArgument: it is no function that takes a store.
    """
    found = import_object(register, error=InvalidArgument) if isinstance(register, str) else register
    if not callable(found):
        raise InvalidArgument(f"register: expected a function or its import path, found {type(found).__name__}")
    check_runs(found, "register")
    try:
        inspect.signature(found).bind(None)
    except TypeError as error:
        raise InvalidArgument(f"register: expected a function that takes the store: {error}") from None
    return cast("Callable[[Store], object]", found)
