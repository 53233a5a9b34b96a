"""The provider's plugin: a listener for the success of tasks, and the page in the UI."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

from export_queue.links import PREFIX, page_connections, page_root

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


class Page:
    """The page as an ASGI application. Every process loads this plugin, so its modules are imported by a request.

    :param conn_ids: the connections whose stores are shown.
    """

    def __init__(self, conn_ids: Sequence[str]) -> None:
        self.conn_ids = tuple(conn_ids)
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if self._app is None:
            from export_queue.page import create_app

            self._app = create_app(self.conn_ids)
        await self._app(scope, receive, send)


class ExportQueuePlugin(AirflowPlugin):
    """Loaded through the entry point ``airflow.plugins``; plugins of provider information are loaded too late."""

    name = "export_queue"
    listeners = [SuccessListener()]  # noqa: RUF012 - so the base class declares it

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Add the page and its entry in the menu if the configuration names connections."""
        conn_ids = page_connections()
        page = {"name": "Export Queue", "app": Page(conn_ids), "url_prefix": PREFIX}
        entry = {
            "name": "Export Queue",
            "href": f"{page_root()}/",
            "icon": f"{page_root()}/logo.svg",
            "url_route": "export-queue",
            "category": "browse",
        }
        cls.fastapi_apps = [page] if conn_ids else []
        cls.external_views = [entry] if conn_ids else []
