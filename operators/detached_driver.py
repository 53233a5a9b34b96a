"""A ``spark-submit`` that outlives its task: it has a session of its own, and writes its output to a file."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from airflow.sdk import conf


@dataclass(frozen=True, slots=True)
class DriverOutput:
    """A file with the output of ``spark-submit``.

    :param host: the machine that has it.
    :param path: its path there.
    """

    host: str
    path: str

    @classmethod
    def here(cls, name: str) -> Self:
        """Create an empty file in the folder of Airflow's logs, which only this user can read.

        :param name: a name that no other submission has.
        """
        folder = Path(conf.get("logging", "base_log_folder"), "export_queue_drivers").expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.log"
        path.touch(mode=0o600)
        return cls(socket.gethostname(), str(path))

    @property
    def is_here(self) -> bool:
        """Whether this machine has the file."""
        return self.host == socket.gethostname() and Path(self.path).exists()

    def lines(self) -> Iterator[str]:
        """Yield the lines that are in the file now."""
        with Path(self.path).open(errors="replace") as file:
            yield from (line.rstrip() for line in file)

    def remove(self) -> None:
        """Remove the file."""
        Path(self.path).unlink(missing_ok=True)


def start_detached(
    command: Sequence[str], environment: Mapping[str, str], output: DriverOutput
) -> subprocess.Popen[Any]:
    """Start a program that no signal to this process or its group reaches, and that keeps none of its pipes open.

    :param environment: variables besides those of this process.
    """
    with Path(output.path).open("ab") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
