"""Exporters for tests, which Spark's workers import."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import export_queue.core
from export_queue import Delete, Entry, Put


def with_origin(entry: Entry) -> Iterator[Put]:
    """Export the value, and where the library was imported from."""
    if entry.value == "poison":
        raise ValueError("refused by the exporter")
    yield Put(entry.queue, entry.key, {"value": entry.value, "library": export_queue.core.__file__})


def by_parity(entry: Entry) -> Iterator[Put | Delete]:
    """Export odd and even keys to collections of their own."""
    if entry.key == "bad":
        raise ValueError("refused by the exporter")
    collection = "odd" if int(entry.key[1:]) % 2 else "even"
    yield Delete(collection, entry.key) if entry.value is None else Put(collection, entry.key, entry.value)


def with_connections(entry: Entry) -> Iterator[Put]:
    """Export the number of this process's connections to the port that the entry has."""
    yield Put(entry.queue, entry.key, {"connections": connections_to(os.getpid(), entry.value)})


def connections_to(pid: int, port: int) -> int:
    """Count a process's connections to a TCP port of this machine."""
    established = "01"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == established}
    found = 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found += str(descriptor.readlink()).removeprefix("socket:[").rstrip("]") in inodes
    return found


class Pairs:
    """A codec of pairs of words."""

    def encode(self, pair: tuple[str, str]) -> bytes:
        """Join the words."""
        return "/".join(pair).encode()

    def decode(self, raw: bytes) -> tuple[str, ...]:
        """Part the words."""
        return tuple(raw.decode().split("/"))


pairs = Pairs()


def reversed_pair(entry: Entry) -> Iterator[Put]:
    """Export the words of a key the other way round."""
    yield Put(entry.queue, "/".join(reversed(entry.key)), {"value": entry.value + 1})
