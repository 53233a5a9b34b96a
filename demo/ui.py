"""Airflow with its pages, on this machine only."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests.support.airflow_processes import AirflowProcesses


def serve(folder: Path) -> None:
    """Start Airflow's four processes and wait for Ctrl-C."""
    print("==> Airflow starts", flush=True)
    with AirflowProcesses(folder, os.environ) as airflow:
        print(f"==> look at {airflow.url}/dags/flights and press Ctrl-C to stop everything", flush=True)
        while airflow.is_running:
            time.sleep(0.5)
    print(f"error: a process of Airflow has ended; see the logs in {folder}", file=sys.stderr)
