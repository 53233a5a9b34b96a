"""Airflow with its pages, on this machine only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.support.servers import free_port

START_SECONDS = 180


def serve(folder: Path) -> None:
    """Start Airflow's four processes and wait for Ctrl-C."""
    port = free_port()
    os.environ.update(
        {
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        }
    )
    # Not `airflow standalone`: its log servers listen on every address. `-s` leaves them out.
    programs = (("api-server", "-w", "1"), ("scheduler", "-s"), ("dag-processor",), ("triggerer", "-s"))
    airflow = Path(sys.executable).with_name("airflow")
    print("==> Airflow starts", flush=True)
    running = []
    try:
        for program in programs:
            log = (folder / f"airflow-{program[0]}.log").open("wb")
            running.append(
                subprocess.Popen([airflow, *program], stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            )
        _wait_until_it_answers(f"http://127.0.0.1:{port}/api/v2/monitor/health", running)
        print(f"==> look at http://127.0.0.1:{port}/dags/flights and press Ctrl-C to stop everything", flush=True)
        while all(process.poll() is None for process in running):
            time.sleep(0.5)
        print(f"error: a process of Airflow has ended; see the logs in {folder}", file=sys.stderr)
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in running:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _wait_until_it_answers(url: str, running: list[subprocess.Popen[bytes]]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and all(process.poll() is None for process in running):
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise TimeoutError(f"Airflow does not answer at {url}")
