"""The asset that stands for an export queue, in schedules and outlets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import Asset

if TYPE_CHECKING:
    from collections.abc import Mapping
    from urllib.parse import SplitResult

    from airflow.providers.common.compat.openlineage.facet import Dataset

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


def create_asset(
    *, queue_id: str, export_queue_conn_id: str = "export_queue_default", extra: Mapping[str, Any] | None = None
) -> Asset:
    """Return the asset of a queue; Airflow calls it for hooks that report lineage by scheme and names.

    :param extra: what the asset carries.
    """
    uri = queue_asset(queue_id, export_queue_conn_id=export_queue_conn_id).uri
    return Asset(uri, extra=dict(extra or {}))


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> Dataset:
    """Return the OpenLineage dataset of a queue's asset, the same that operators report.

    :param lineage_context: not used.
    """
    from airflow.providers.common.compat.openlineage.facet import Dataset

    from export_queue.lineage import queue_data

    uri = urlsplit(asset.uri)
    found = queue_data(uri.netloc, uri.path.removeprefix("/")).dataset
    return Dataset(namespace=found.namespace, name=found.name)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Check the URI of a queue's asset: ``export-queue://connection/queue``, optionally with ``/subscription``."""
    if not uri.netloc or not _PATH.fullmatch(uri.path):
        raise ValueError(f"expected {SCHEME}://connection/queue or …/queue/subscription, found {uri.geturl()}")
    return uri
