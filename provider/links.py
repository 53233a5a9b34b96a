"""Extra links of tasks, which Airflow's UI shows as buttons: to the page of a queue, and to Spark's UI.

Airflow evaluates a link in the worker and stores the address as XCom. The API server needs no class of these.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.sdk import BaseOperatorLink, conf

from export_queue.core.errors import InvalidArgument

PREFIX = "/export-queue"
"""Path of the page below the address of the API server."""


def page_connections() -> list[str]:
    """Return the ids of the connections whose stores have a page, as the configuration names them."""
    named = (conf.get("export_queue", "ui_conn_ids", fallback="") or "").split(",")
    return list(dict.fromkeys(filter(None, map(str.strip, named))))


def page_root() -> str:
    """Return the path of the page, which the browser reads below the address that it shows."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/") + PREFIX


def address(root: str, *path: str, **query: Any) -> str:
    """Return the address of a page: its path below ``root``, and the values of the query that are not None."""
    given = {name: value for name, value in query.items() if value is not None}
    found = "/".join([root, *(quote(part, safe="") for part in path)])
    return f"{found}?{urlencode(given)}" if given else found


class QueuePageLink(BaseOperatorLink):
    """The page of the task's queue or, if the task has none, of its store."""

    name = "Export Queue page"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address; empty if the configuration names no page for the task's connection."""
        return _page_of(operator, "reader")


class DeadLettersLink(BaseOperatorLink):
    """The dead letters of the task's queue."""

    name = "Dead letters"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address; empty if the configuration names no page for the task's connection."""
        return _page_of(operator, "letters")


class SparkUiLink(BaseOperatorLink):
    """Spark's UI of the task's last submission, as the submission told its address."""

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address; empty if it is not known."""
        return operator.spark_ui or ""


def _page_of(operator: Any, page: str) -> str:
    try:
        conn_id, queue_id = (_rendered(operator, name) for name in ("export_queue_conn_id", "queue_id"))
    except InvalidArgument:  # the task itself reports it
        return ""
    if conn_id not in page_connections():
        return ""
    return address(page_root(), "connections", conn_id, *([page] if queue_id else []), reader=queue_id or None)


def _rendered(operator: Any, name: str) -> Any:
    return operator.readers[name](getattr(operator, name), what=name) if name in operator.readers else None
