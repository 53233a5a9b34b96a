"""One Spark session in a process of its own, which is given orders; what it answers, and what its processes used."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

ROOT = Path(__file__).parents[2]
ANSWER = "ANSWER "
"""What its lines begin with; Spark may print others."""


class SessionFailed(Exception):
    """A session has ended, or an order that should have gone well did not."""


class Session:
    """A session of Spark that lives as long as its ``with`` block.

    :param spark: its version, for messages.
    :param python: the Python that has it.
    :param jars: what its class path has beside it.
    :param variables: of its environment, passwords among them, which are in no command line.
    """

    def __init__(self, spark: str, python: Path, jars: list[Path], variables: Mapping[str, str]) -> None:
        self.spark = spark
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        kept = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        kept |= {"PYTHONPATH": path, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
        self._environment = kept | dict(variables)
        self._command = [str(python), "-m", "benchmarks.peers.in_session", ",".join(map(str, jars))]

    def __enter__(self) -> Self:
        self._log: IO[bytes] = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # it ends with its orders
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(60)
        self._log.close()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Give an order and wait for its answer.

        :param do: name of a method of :class:`benchmarks.peers.in_session.Orders`.
        :param arguments: JSON values.
        :raises SessionFailed: the order failed, or the session has ended.
        """
        answer = self.attempt(do, **arguments)
        if "error" in answer:
            raise SessionFailed(f"Spark {self.spark}: {do} failed: {answer['error']}\n{self._tail()}")
        return answer

    def attempt(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Give an order that may fail; its answer has an ``error`` then.

        :raises SessionFailed: the session has ended.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, as reading shows
        for line in process.stdout:
            if line.startswith(ANSWER):
                answer: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
                return answer
        raise SessionFailed(f"Spark {self.spark} has ended:\n{self._tail()}")

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]
