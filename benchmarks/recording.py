"""A Redis sink that notes when each record was there, in whatever process it is open."""

from __future__ import annotations

import os
import time
from pathlib import Path

import orjson

from export_queue import ApplyResult, Operations, RedisSink


class RecordingSink:
    """Copies into Redis and notes keys and times in a file of this process.

    :param folder: where the files are.
    :param host: Redis' address.
    :param port: its port.
    :param password: its password.
    """

    def __init__(self, folder: str, host: str, port: int, password: str) -> None:
        self._sink = RedisSink(host=host, port=port, password=password)
        self._folder = Path(folder)
        self.capabilities = self._sink.capabilities
        self.admit, self.sweep, self.close = self._sink.admit, self._sink.sweep, self._sink.close

    def apply(self, operations: Operations) -> ApplyResult:
        """Apply, then note."""
        result = self._sink.apply(operations)
        now = time.monotonic()  # one clock for all processes of a machine
        with (self._folder / f"{os.getpid()}").open("a") as file:
            file.writelines(f"{_text(key)} {now}\n" for key in operations.ids)
        return result


def _text(key: str | bytes) -> str:
    return key if isinstance(key, str) else orjson.loads(key) if key[:1] == b'"' else key.decode()


def recorded(folder: Path) -> dict[str, float]:
    """Read the times of all processes, by key."""
    lines = [line.split() for path in folder.iterdir() for line in path.read_text().splitlines()]
    return {key: float(seconds) for key, seconds in lines}
