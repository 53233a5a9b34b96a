"""Work of a task that takes effect once, however often the task is retried."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from export_queue.hooks.described import Described
from export_queue.hooks.export_queue import open_store
from export_queue.hooks.tasks import recorded_state

if TYPE_CHECKING:
    from export_queue.core.store import StoreSpec

log = logging.getLogger("export_queue.task")


@dataclass(frozen=True, slots=True)
class UnitOfWork:
    """The work of one task that has committed under its idempotency key, which is the task's name.

    :param generation: generation of the key.
    """

    store: Described[StoreSpec]
    idempotency_key: str
    generation: int

    def accept_success(self, task_instance: Any) -> None:
        """Make the next run of the task new work, if Airflow has accepted its success.

        :param task_instance: the task instance that reported success.
        """
        state = recorded_state(task_instance)
        if state != "success":
            log.warning("Airflow records the state %r; clearing this task will count as a retry", state)
            return
        with open_store(self.store) as store:
            store.close_idempotency_key(self.idempotency_key, generation=self.generation, has_ended=True)


class TaskOnce:
    """A task whose work takes effect once. The plugin's listener calls :meth:`accept_success`."""

    _idempotency_key = ""
    _done: UnitOfWork | None = None
    """The work, once it has committed."""

    def accept_success(self, task_instance: Any) -> None:
        """Make the next run of this task new work, if Airflow has accepted its success.

        :param task_instance: the task instance that reported success.
        """
        if self._done is not None:
            self._done.accept_success(task_instance)
