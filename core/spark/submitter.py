"""The process that submitted a job, identified so that no other process is mistaken for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_ENDED = ("Z", "X")


@dataclass(frozen=True, slots=True)
class Submitter:
    """A process of this machine whose death ends the driver.

    :param pid: its number, which the kernel reuses later.
    :param started: when it started, in kernel ticks since the machine's start.
    :param namespace: where the number is valid; a driver in another container does not check the process.
    """

    pid: int
    started: int
    namespace: str

    @classmethod
    def here(cls) -> Self | None:
        """Describe this process; None without ``/proc``."""
        facts, namespace = _facts(os.getpid()), _namespace()
        return None if facts is None or namespace is None else cls(os.getpid(), facts[1], namespace)

    @property
    def is_in_sight(self) -> bool:
        """Whether this process could see the other one."""
        return _namespace() == self.namespace

    @property
    def is_alive(self) -> bool:
        """Whether the process runs; a zombie does not."""
        facts = _facts(self.pid)
        return facts is not None and facts[0] not in _ENDED and facts[1] == self.started


def _facts(pid: int) -> tuple[str, int] | None:
    """Read a process's state and start."""
    try:
        # The name before them may hold anything, brackets too.
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return words[0], int(words[19])


def _namespace() -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None
