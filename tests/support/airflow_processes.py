"""Airflow's own processes on this machine: API server, scheduler with its local executor, DAG processor, triggerer.

Everything listens on a free port of 127.0.0.1. It is stopped when the ``with`` block ends.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.servers import HOST, free_port
from tests.support.waiting import wait_until

START_SECONDS = 180
RUN_SECONDS = 300.0
"""Seconds without any change of a run's tasks after which a test fails."""
ANSWER_SECONDS = 120.0
"""Seconds that an answer may take while the machine is busy."""
LOG_END = 6000
"""Characters of a log that a failure shows."""
ENDED = {"success", "failed"}


class AirflowProcesses:
    """Four processes of Airflow.

    :param folder: for their logs.
    :param environment: their environment, with Airflow's settings and connections; its database exists.
    :param python: whose ``airflow`` they are, by default this process's.
    :param users: the role of each user's name, the first one an admin. Without any, everybody is an admin.
    """

    # Not `airflow standalone`: its log servers listen on every address. `-s` leaves them out.
    programs = (("api-server", "-w", "1"), ("scheduler", "-s"), ("dag-processor",), ("triggerer", "-s"))

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        python: Path = Path(sys.executable),
        users: Mapping[str, str] | None = None,
    ) -> None:
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        self.folder = folder
        self._airflow = python.with_name("airflow")
        self._environment = {
            **environment,
            "AIRFLOW__API__HOST": HOST,
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            # a busy machine answers late: tasks must not fail for that
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": str(ANSWER_SECONDS),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": str(not users),
        }
        self.passwords = {name: secrets.token_urlsafe() for name in users or ()}
        if users:
            kept = folder / "passwords.json"
            kept.write_text(json.dumps(self.passwords))
            self._environment["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"] = str(kept)
            self._environment["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] = ",".join(map(":".join, users.items()))
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._token = ""

    def __enter__(self) -> Self:
        try:
            for name, *_ in self.programs:
                self.start(name)
            self._wait_until_it_answers()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def start(self, name: str) -> None:
        """Start one of the programs."""
        (words,) = [words for words in self.programs if words[0] == name]
        with self._log_of(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                [self._airflow, *words],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """Kill one of the programs, with the processes that it has started."""
        killed = self._running.pop(name)
        assert killed.poll() is None, f"{name} had ended before it was killed"
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait(15)

    def restart(self, name: str) -> None:
        """Start a killed program again, and wait until Airflow answers."""
        self.start(name)
        self._wait_until_it_answers()

    @property
    def is_running(self) -> bool:
        """Whether all processes are there."""
        return all(process.poll() is None for process in self._running.values())

    def ask(self, path: str, *, method: str = "GET", body: Any = None) -> Any:
        """Call Airflow's public API, and return the answer.

        :param path: below ``/api/v2``.
        """
        if not self._token:
            self._token = self.token()
        request = urllib.request.Request(
            f"{self.url}/api/v2{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return json.load(answer)

    def token(self, user: str | None = None) -> str:
        """Sign a user in, by default the first one, and return the token that requests carry."""
        request = urllib.request.Request(f"{self.url}/auth/token", headers={"Content-Type": "application/json"})
        if self.passwords:
            name = user or next(iter(self.passwords))
            request.data = json.dumps({"username": name, "password": self.passwords[name]}).encode()
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return str(json.load(answer)["access_token"])

    def unpause(self, dag_id: str) -> None:
        """Let a DAG run once the DAG processor has found it."""
        wait_until(
            lambda: self._has(dag_id), f"the DAG processor has not found {dag_id}", seconds=RUN_SECONDS, pause=0.5
        )
        self.ask(f"/dags/{dag_id}", method="PATCH", body={"is_paused": False})

    def trigger(self, dag_id: str, *, partition_key: str | None = None, **conf: Any) -> str:
        """Start a run of a DAG once the DAG processor has found it, and return the id of the run."""
        self.unpause(dag_id)
        body = {"logical_date": None, "conf": conf, "partition_key": partition_key}
        return str(self.ask(f"/dags/{dag_id}/dagRuns", method="POST", body=body)["dag_run_id"])

    def first_run(self, dag_id: str) -> str:
        """Wait until something has started a run of a DAG, and return its id."""

        def runs() -> list[str]:
            return [str(run["dag_run_id"]) for run in self.ask(f"/dags/{dag_id}/dagRuns?order_by=id")["dag_runs"]]

        wait_until(lambda: bool(runs()), f"nothing starts {dag_id}", seconds=RUN_SECONDS, pause=0.5)
        return runs()[0]

    def states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Return the state of each task of a run; of a mapped one under ``task[index]``."""
        found = self.ask(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {
            one["task_id"] if one["map_index"] < 0 else f"{one['task_id']}[{one['map_index']}]": str(one["state"])
            for one in found
        }

    def wait_for(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Wait until a run has ended, and return the states of its tasks.

        :raises AssertionError: it has failed, or nothing changes; with the logs of what failed, and of the triggerer.
        """

        def state() -> str:
            return str(self.ask(f"/dags/{dag_id}/dagRuns/{run_id}")["state"])

        wait_until(
            lambda: state() in ENDED,
            f"the run of {dag_id} does not end",
            seconds=RUN_SECONDS,
            pause=0.5,
            progress=lambda: self.states(dag_id, run_id),
        )
        states = self.states(dag_id, run_id)
        assert state() == "success", f"{states}\n{self._logs_of(dag_id, run_id, states)}"
        return states

    def result(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """Return what a task returned."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        found = self.ask(path)["value"]
        return json.loads(found) if isinstance(found, str) else found

    def _has(self, dag_id: str) -> bool:
        try:
            return bool(self.ask(f"/dags/{dag_id}"))
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return False

    def _logs_of(self, dag_id: str, run_id: str, states: Mapping[str, str]) -> str:
        """Return the ends of the logs that say why tasks failed."""
        run = Path(self._environment["AIRFLOW_HOME"], "logs", f"dag_id={dag_id}", f"run_id={run_id}")
        failed = sorted(task.partition("[")[0] for task, state in states.items() if state == "failed")
        files = [file for task in failed for file in sorted(run.glob(f"task_id={task}/**/*.log"))]
        ends = [*files, *map(self._log_of, ("triggerer", "scheduler"))]
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-LOG_END:]}" for file in ends)

    def _log_of(self, program: str) -> Path:
        return self.folder / f"airflow-{program}.log"

    def _wait_until_it_answers(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.is_running:
            try:
                with urllib.request.urlopen(f"{self.url}/api/v2/monitor/health", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        raise TimeoutError(f"Airflow does not answer at {self.url}; see the logs in {self.folder}")

    def _stop(self) -> None:
        for process in self._running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._running.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(15)
