"""The name of a task, which is the same for all retries and differs by run and map index; and its recorded state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STAGED_TASKS = "airflow_tasks"
"""Table with the results of tasks that have written in a transaction that is not committed yet."""


def task_name(context: Mapping[str, Any], task_id: str | None = None) -> str:
    """Return the name of a context's task: ``dag/run/task``, with ``/map index`` if it is mapped, without the try.

    It is the idempotency key of work that takes effect once, and the owner of leases that a retry takes over.

    :param task_id: names a group instead of the task.
    """
    instance = context["ti"]
    name = f"{instance.dag_id}/{instance.run_id}/{task_id or instance.task_id}"
    index = getattr(instance, "map_index", None)
    return name if index is None or index < 0 else f"{name}/{index}"


def recorded_state(task_instance: Any) -> str | None:
    """Read the state of a task instance that Airflow has recorded.

    Airflow also calls its success listeners if the report of the success was refused, so the recorded state decides.
    """
    index = task_instance.map_index
    mapped = index is not None and index >= 0
    states = task_instance.get_task_states(
        dag_id=task_instance.dag_id,
        run_ids=[task_instance.run_id],
        task_ids=[task_instance.task_id],
        map_index=index if mapped else None,
    )
    key = f"{task_instance.task_id}_{index}" if mapped else task_instance.task_id
    found: str | None = states.get(task_instance.run_id, {}).get(key)
    return found
