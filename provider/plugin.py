"""The provider's plugin: a listener for the success of tasks."""

from __future__ import annotations

import logging
from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

log = logging.getLogger(__name__)


class SuccessListener:
    """Notifies tasks of this provider that Airflow has accepted their success."""

    @hookimpl
    def on_task_instance_success(self, previous_state: Any, task_instance: Any) -> None:
        """Close the task's generation. Airflow calls this in the worker, and in the API server for decisions of users.

        :param previous_state: not used.
        :param task_instance: the task instance; it has the operator only in the worker that ran it.
        """
        accept = getattr(getattr(task_instance, "task", None), "accept_success", None)
        if accept is None:
            return
        try:
            accept(task_instance)
        except Exception:
            # The task has succeeded; the only consequence is that clearing it will count as a retry.
            log.exception("The generation of task %s could not be closed", task_instance.task_id)


class ExportQueuePlugin(AirflowPlugin):
    """Loaded through the entry point ``airflow.plugins``; plugins of provider information are loaded too late."""

    name = "export_queue"
    listeners = [SuccessListener()]  # noqa: RUF012 - so the base class declares it
