"""The asset that stands for an export queue, in schedules and outlets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow.sdk import Asset

if TYPE_CHECKING:
    from urllib.parse import SplitResult

SCHEME = "export-queue"
_PATH = re.compile(r"/[^/]+(/[^/]+)?")


def queue_asset(queue_id: str, *, export_queue_conn_id: str = "export_queue_default") -> Asset:
    """Return the asset of a queue. Tasks that add to the queue have it as an outlet; DAGs that drain it depend on it.

    :param queue_id: the queue, or one of its subscriptions: ``airports/search``.
    :param export_queue_conn_id: connection of the queue's store; a queue of another store is another asset.
    :raises ValueError: the id is not valid.
    """
    if not _PATH.fullmatch(f"/{queue_id}"):
        raise ValueError(
            f"expected the id of a queue, or of a subscription as in 'airports/search', found {queue_id!r}"
        )
    return Asset(f"{SCHEME}://{export_queue_conn_id}/{queue_id}")


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Check the URI of a queue's asset: ``export-queue://connection/queue``, optionally with ``/subscription``."""
    if not uri.netloc or not _PATH.fullmatch(uri.path):
        raise ValueError(f"expected {SCHEME}://connection/queue or …/queue/subscription, found {uri.geturl()}")
    return uri
