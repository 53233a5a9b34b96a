"""The name of a task: the same over retries, another one for each run and map index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def task_name(context: Mapping[str, Any]) -> str:
    """Name the task of a context: ``dag/run/task``, and ``/map index`` of a mapped one, without the try.

    It is the idempotency key of what takes effect once, and the owner of leases that a retry takes over.
    """
    instance = context["ti"]
    name = f"{instance.dag_id}/{instance.run_id}/{instance.task_id}"
    index = getattr(instance, "map_index", None)
    return name if index is None or index < 0 else f"{name}/{index}"
