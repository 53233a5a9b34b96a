"""The work of the DAG's tasks."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import orjson

from demo import settings
from demo.progress import report
from demo.proof import prove
from export_queue import Store

WRITERS_SECONDS = 1800
DRAIN_SECONDS = 600

log = logging.getLogger(__name__)


def _writers(first_month: int, last_month: int) -> list[str]:
    return [sys.executable, "-P", "-m", "demo.writers", str(first_month), str(last_month)]


def _status_file(first_month: int, last_month: int) -> Path:
    return settings.folder() / f"writers-{first_month}-{last_month}.status"


def run_writers(first_month: int, last_month: int) -> None:
    """Bring some months in and wait for it."""
    subprocess.run(_writers(first_month, last_month), check=True, timeout=WRITERS_SECONDS)


def start_writers(first_month: int, last_month: int) -> None:
    """Bring some months in, in the background; the process leaves its status in a file."""
    status = _status_file(first_month, last_month)
    command = '"$@"; echo $? >"$0.new" && mv "$0.new" "$0"'
    child = subprocess.Popen(
        ["/bin/sh", "-c", command, status, *_writers(first_month, last_month)],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=(settings.folder() / "writers.log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    (settings.folder() / "background.pid").write_text(str(child.pid))


def wait_for_writers(first_month: int, last_month: int) -> None:
    """Wait until the writers in the background are done."""
    status = _status_file(first_month, last_month)
    end = time.monotonic() + WRITERS_SECONDS
    while not status.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"the writers are not done after {WRITERS_SECONDS} s")
        time.sleep(0.5)
    if status.read_text().strip() != "0":
        raise RuntimeError(f"the writers failed:\n{(settings.folder() / 'writers.log').read_text()[-2000:]}")


def stop_background() -> None:
    """Stop the writers that are left in the background, if there are any."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.killpg(int((settings.folder() / "background.pid").read_text()), signal.SIGKILL)


def submit_twice(queue_id: str, options: dict[str, Any]) -> None:
    """Submit the same drain twice at once, as any program may: with ``spark-submit`` and the job's arguments."""
    from export_queue import DrainReport, Owner, StoreSpec, drain_job
    from export_queue.hooks import RedisSinkHook

    sink = RedisSinkHook("redis_default").describe(options)
    home = Path(os.environ["EXPORT_QUEUE_SPARK_HOME"])
    python = str(home / "bin" / "python")
    environment = {
        **os.environ,
        **sink.variables,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("SPARK_HOME", None)
    drain_ids = [f"twice/{uuid.uuid4().hex}" for _ in range(2)]
    drains = []
    for drain_id in drain_ids:
        job = drain_job(
            queue_id=queue_id,
            sink=sink.spec,
            store=StoreSpec(url=settings.store_url()),
            drain_id=drain_id,
            owner=Owner(drain_id),
            master="local[1]",
        )
        command = [str(home / "bin" / "spark-submit"), "--master", "local[1]"]
        for name, value in job.conf.items():
            command += ["--conf", f"{name}={value}"]
        if job.py_files:
            command += ["--py-files", job.py_files]
        drains.append(subprocess.Popen([*command, job.application, *job.arguments], env=environment))
    try:
        for drain in drains:
            if status := drain.wait(DRAIN_SECONDS):
                raise RuntimeError(f"a drain ended with status {status}")
    finally:
        for drain in drains:
            drain.kill()
    with Store.open(settings.store_url()) as store:
        for drain_id in drain_ids:
            log.info("%s", DrainReport.from_dict(store.reports(drain_id=drain_id)[0]).line())


def prove_all() -> list[dict[str, Any]]:
    """Compare all stores, keep the verdicts for the program, and fail on any difference of ours."""
    report("prove", done=0, total=1)
    verdicts = prove()
    (settings.folder() / "verdicts.json").write_bytes(orjson.dumps([verdict.to_dict() for verdict in verdicts]))
    report("prove", done=1, total=1)
    wrong = [verdict for verdict in verdicts if verdict.wrong and verdict.exported_by == "export queue"]
    if wrong:
        raise RuntimeError(f"stores differ from the committed data: {wrong}")
    return [verdict.to_dict() for verdict in verdicts]
