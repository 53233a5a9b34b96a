"""The process that submitted a job, identified even if its number is reused."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_ENDED = ("Z", "X")


@dataclass(frozen=True, slots=True)
class Submitter:
    """A process on this machine; the driver ends when it ends.

    :param pid: its number, which the kernel may reuse later.
    :param started: when it started, in kernel ticks since the machine's start.
    :param namespace: where the number is valid. A driver in another container does not check the process.
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
        """Whether this process can see it."""
        return _namespace() == self.namespace

    @property
    def is_alive(self) -> bool:
        """Whether the process runs; a zombie does not."""
        facts = _facts(self.pid)
        return facts is not None and facts[0] not in _ENDED and facts[1] == self.started


def _facts(pid: int) -> tuple[str, int] | None:
    try:
        # the name before them may contain brackets
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
