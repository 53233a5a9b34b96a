"""Runs pytest in forks of a process that has imported the libraries: importing takes longer than most tests.

It imports nothing of the tree, which is another one each time. It reads requests, a JSON line each, and answers each
with the exit code of pytest. Its owner kills it to end a run that takes too long.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from typing import Any

LIBRARIES = (
    "_hypothesis_pytestplugin",
    "_pytest.assertion.rewrite",
    "_pytest.junitxml",
    "hypothesis",
    "hypothesis.stateful",
    "http.client",
    "msgspec",
    "orjson",
    "psycopg",
    "pdb",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.fs",
    "pyarrow.parquet",
    "pymysql",
    "pytest",
    "pytest_timeout",
    "redis",
    "sqlalchemy",
    "sqlalchemy.dialects.mysql",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "sqlite3",
    "urllib.request",
    "xxhash",
)
"""Those that an environment lacks are left out."""


def serve() -> None:
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            run(json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(request: dict[str, Any]) -> None:
    """Run pytest as a new process would, and end this process."""
    code = 1
    try:
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["variables"])
        sys.path[:0] = request["paths"]
        with open(request["output"], "w") as output, open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        import pytest

        code = int(pytest.main(request["words"]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
