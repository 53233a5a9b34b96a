"""Runs the DAG once, task by task, in this process, against a metadata database of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from demo.progress import report


def main() -> int:
    """Create the database, file the DAG and run it.

    :returns: 0 if the run succeeded.
    """
    report("airflow starts", done=0, total=1)
    from airflow.utils.db import initdb

    initdb()
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    DagBundlesManager().sync_bundles_to_db()
    bag = DagBag(dag_folder=Path(__file__).with_name("flights.py"), bundle_path=None, bundle_name="dags-folder")
    if bag.import_errors:
        print(bag.import_errors)
        return 1
    dag = bag.dags["flights"]
    for task in dag.tasks:
        task.on_execute_callback = [_begins]
        task.on_success_callback = [_succeeded]
        task.on_failure_callback = task.on_retry_callback = [_failed]
    sync_bag_to_db(bag, "dags-folder", None)
    report("airflow starts", done=1, total=1)
    run = dag.test()
    return 0 if str(run.state) == "success" else 1


def _begins(context: Any) -> None:
    report(_name(context), done=0, total=1)


def _succeeded(context: Any) -> None:
    report(_name(context), done=1, total=1)


def _failed(context: Any) -> None:
    report(_name(context), done=0, total=1, note="failed")


def _name(context: Any) -> str:
    task = context["ti"]
    return task.task_id if task.map_index < 0 else f"{task.task_id} {task.map_index + 1}"


if __name__ == "__main__":
    # The output of the tasks is a log, which must not stay in a buffer.
    os.environ["PYTHONUNBUFFERED"] = "1"
    sys.exit(main())
