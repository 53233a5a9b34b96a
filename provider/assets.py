"""The asset that stands for an export queue, in schedules and outlets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Asset

if TYPE_CHECKING:
    from urllib.parse import SplitResult

SCHEME = "export-queue"


def queue_asset(queue_id: str, *, export_queue_conn_id: str = "export_queue_default") -> Asset:
    """Return the asset of a queue: a task that adds to it has it among its outlets, a DAG that drains it follows it.

    :param queue_id: the queue.
    :param export_queue_conn_id: connection of the queue's store; the same queue of another store is another asset.
    """
    return Asset(f"{SCHEME}://{export_queue_conn_id}/{queue_id}")


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Check the URI of a queue's asset: ``export-queue://connection/queue``."""
    if not uri.netloc or uri.path.count("/") != 1 or uri.path == "/":
        raise ValueError(f"expected {SCHEME}://connection/queue, found {uri.geturl()}")
    return uri
