"""A ``spark-submit`` of tests that need no Spark."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

DETACHED = """#!{python}
import json, os, sys, time
from contextlib import closing
from pathlib import Path
here = Path({folder!r})
with (here / "calls").open("a") as calls:
    calls.write(json.dumps({{"arguments": sys.argv[1:], "pid": os.getpid(), "session": os.getsid(0)}}) + "\\n")
mode = (here / "mode").read_text()
print("the driver says hello", flush=True)
if mode == "broken":
    print("the cluster is on fire"); sys.exit(3)
if mode == "accepted":
    print("\t tracking URL: http://manager:8088/proxy/application_1/"); sys.exit(0)
from export_queue.core.client import Store
from export_queue.core.drain import drain_as_requested
from export_queue.core.spark import DrainArguments
from export_queue.core.spark.life import life_shown
job = DrainArguments.from_json(sys.argv[-1])
assert job.detached and job.submitter is None
request = job.request.another_attempt()
def stop(reason):
    print(reason, flush=True)
    os._exit(143)
with closing(Store(job.store.open())) as store:
    if mode == "drain":
        drain_as_requested(store, job.sink, request)
    if mode == "wait":
        with life_shown(store.database, request.owner, stop=stop, wait=lambda event, seconds: event.wait(0.02)):
            end = time.monotonic() + 600
            while not (here / "go").exists() and time.monotonic() < end:
                time.sleep(0.01)
            drain_as_requested(store, job.sink, request)
"""
"""The driver of a deferred drain. In the mode ``wait`` it begins, and drains once the file ``go`` exists."""


class FakeSpark:
    """A folder with ``bin/spark-submit`` that remembers how it was called.

    :param folder: is made.
    :param program: what ``spark-submit`` does, with ``{python}`` and ``{folder}`` in it.
    :param mode: the first one.
    """

    def __init__(self, folder: Path, program: str, mode: str) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        path = folder / "bin" / "spark-submit"
        path.write_text(program.format(python=sys.executable, folder=str(folder)))
        path.chmod(0o755)
        self.mode(mode)

    def mode(self, mode: str) -> None:
        (self.folder / "mode").write_text(mode)

    def calls(self) -> list[dict[str, Any]]:
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def is_alive(pid: int) -> bool:
    """Whether a process runs."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
