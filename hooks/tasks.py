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
    index = mapped_index(instance)
    return name if index is None else f"{name}/{index}"


def mapped_index(task_instance: Any) -> int | None:
    """Return the map index of a task instance; None if it is not mapped."""
    index: int | None = getattr(task_instance, "map_index", None)
    return None if index is None or index < 0 else index


def notes_of(transaction: int) -> str:
    """Return the beginning of the rows with the results of tasks that have written in a transaction.

    The transaction is a part of the row: what an earlier one has committed says nothing about a later one.
    """
    return f"{transaction}/"


def recorded_state(task_instance: Any, task_id: str | None = None) -> str | None:
    """Read the state of a task instance that Airflow has recorded.

    Airflow also calls its success listeners if the report of the success was refused, so the recorded state decides.

    :param task_id: instead, a task of the same run and map index.
    """
    index, task_id = mapped_index(task_instance), task_id or task_instance.task_id
    ask = getattr(task_instance, "get_task_states", None)
    if ask is None:  # what a trigger gets has only the names
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        ask = RuntimeTaskInstance.get_task_states
    states = ask(
        dag_id=task_instance.dag_id,
        run_ids=[task_instance.run_id],
        task_ids=[task_id],
        map_index=index,
    )
    key = task_id if index is None else f"{task_id}_{index}"
    found: str | None = states.get(task_instance.run_id, {}).get(key)
    return found
