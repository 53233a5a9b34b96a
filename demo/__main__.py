"""The program behind ``./run demo``."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import webbrowser
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.support.servers import RedisServer

from demo import settings
from demo.progress import Display
from demo.report import write_report
from demo.tasks import stop_background

RUN_SECONDS = 3600


def main() -> int:
    """Run the demo.

    :returns: 0 if every store equals the committed data, else 1.
    """
    parser = argparse.ArgumentParser(
        prog="./run demo", description="Export a year of flights, and prove every store right."
    )
    parser.add_argument("--ui", action="store_true", help="leave Airflow running on 127.0.0.1 to look at, until Ctrl-C")
    wants_ui = parser.parse_args().ui
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    folder = Path(".demo").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with RedisServer() as redis:
        os.environ.update(environment(folder, redis))
        print(f"==> a Redis server runs on {redis.host}:{redis.port}; all files of this run are in {folder.name}/")
        try:
            if not run_dag(folder):
                return 1
            right = show_verdicts(folder)
            page = write_report(folder).as_uri()
            print(f"==> the stores, the damage and the kills on one page: {page}", flush=True)
            if wants_ui:
                from demo.ui import serve

                if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
                    webbrowser.open(page)
                serve(folder)
        except KeyboardInterrupt:
            print("\n==> stopped")
            return 130
        finally:
            stop_background()
    return 0 if right else 1


def environment(folder: Path, redis: RedisServer) -> dict[str, str]:
    """Return the variables for Airflow, its tasks and Spark."""
    root = Path(__file__).parents[1]
    connections = {
        "export_queue_default": {"conn_type": "export_queue", "host": f"sqlite:///{folder / 'store.db'}"},
        "redis_default": {"conn_type": "redis", "host": redis.host, "port": redis.port, "password": redis.password},
        "copies": {"conn_type": "sqlite", "host": str(folder / "copies.db")},
        "spark_default": {"conn_type": "spark", "host": "local[2]"},
    }
    spark_home = os.environ.get("EXPORT_QUEUE_SPARK_HOME", str(root / ".venv-spark"))
    return {
        **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in connections.items()},
        "AIRFLOW_VAR_DEMO_FOLDER": str(folder),
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parent),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(64),
        "AIRFLOW__EXPORT_QUEUE__SPARK_HOME": spark_home,
        "EXPORT_QUEUE_SPARK_HOME": spark_home,
        "EXPORT_QUEUE_DEMO_REDIS_PASSWORD": redis.password or "",
        # The demo is no part of the package: tasks, Spark's driver and its executors find it by this path.
        "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])]),
        settings.FOLDER: str(folder),
    }


def run_dag(folder: Path) -> bool:
    """Run the DAG in a process of its own, and show how far it is."""
    log = folder / "airflow.log"
    print(f"==> the DAG `flights` runs; its log is {folder.name}/{log.name}", flush=True)
    with log.open("wb") as output, Display(folder / "progress") as display:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "demo.run_dag"],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            end = time.monotonic() + RUN_SECONDS
            while child.poll() is None and time.monotonic() < end:
                time.sleep(0.3)
                display.update()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
    if child.wait() != 0:
        print("".join(log.read_text(errors="replace").splitlines(keepends=True)[-40:]), file=sys.stderr)
        print(f"error: the DAG failed; the end of its log is above, all of it in {log}", file=sys.stderr)
        return False
    return True


def show_verdicts(folder: Path) -> bool:
    """Print the table; returns whether every store that the export queue feeds is right."""
    verdicts = json.loads((folder / "verdicts.json").read_bytes())
    table = Table(
        "store", "exported by", "records", "missing", "extra", "different", title="against a plain recount of the input"
    )
    for verdict in verdicts:
        numbers = [f"{verdict[name]:,}" for name in ("records", "missing", "extra", "different")]
        table.add_row(verdict["store"], verdict["exported_by"], *numbers)
    Console(width=max(100, Console().width)).print(table)
    wrong = {
        how: sum(v["missing"] + v["extra"] + v["different"] for v in verdicts if v["exported_by"] == how)
        for how in {v["exported_by"] for v in verdicts}
    }
    print(f"==> wrong records: export queue {wrong['export queue']:,}, broken observer {wrong['broken observer']:,}")
    return wrong["export queue"] == 0


if __name__ == "__main__":
    sys.exit(main())
