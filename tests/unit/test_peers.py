"""What the benchmark of peers writes into its cells follows from what it finds, for targets of known behaviour."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("redis")
pytest.importorskip("elasticsearch")

from benchmarks.peers.events import EVENTS, Deliveries
from benchmarks.peers.greeting import Greeting
from benchmarks.peers.session import SessionFailed

ROWS = 10


class Target:
    """A target in memory, and its writer."""

    passes = True
    room = ROWS

    def __init__(self, tmp_path: Path) -> None:
        self.deaths = tmp_path
        self.records: dict[str, list[int]] = {}

    def found(self) -> dict[str, list[int]]:
        return self.records

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        self.room = 4
        yield
        self.room = ROWS

    def write(self, version: int, deletes: bool) -> str:
        """The loop that overwrites."""
        if deletes:
            self.records = {}
            return ""
        for number in range(ROWS):
            if number >= self.room:
                return "full"
            self.records[str(number)] = [version]
        return ""


class Silent(Target):
    """Says nothing when it is full, and knows no deletes."""

    def write(self, version: int, deletes: bool) -> str:
        if not deletes:
            super().write(version, deletes)
        return ""


class Inserting(Target):
    """Refuses what is there."""

    def write(self, version: int, deletes: bool) -> str:
        return "duplicate key" if self.records else super().write(version, deletes)


class Doubling(Target):
    """Has no ids."""

    def write(self, version: int, deletes: bool) -> str:
        for number in range(ROWS):
            self.records.setdefault(str(number), []).append(version)
        return ""


class Lost(Target):
    """Nothing arrives."""

    def write(self, version: int, deletes: bool) -> str:
        return ""


class OfPeer(Deliveries):
    """Deliveries without servers."""

    def __init__(self, target: Target) -> None:
        self.way: Any = SimpleNamespace(is_drain=False, name="peer")
        self.target: Any = target
        self.rows, self.deaths = ROWS, target.deaths

    def deliver(self, version: int, *, deletes: bool = False, dies: bool = False, anew: bool = True) -> str:
        if dies:
            (self.deaths / "task-0").touch()
            self.target.write(version, deletes)  # the attempt that died
        return str(self.target.write(version, deletes))


@pytest.mark.parametrize(
    ("target", "event", "became"),
    [
        (Target, "late delivery", "older value wins"),
        (Target, "retried task", "all there, none twice"),
        (Target, "delete", "gone; a late delivery brings 10 of 10 back"),
        (Target, "refusal", "job fails, 4 of 10 there; again, with room: job succeeds, all there, none twice"),
        (Silent, "refusal", "job succeeds, 4 of 10 there; again, with room: job succeeds, all there, none twice"),
        (Silent, "delete", "cannot delete: job succeeds, older value stays"),
        (Inserting, "late delivery", "cannot update: job of the newer value fails, older value stays"),
        (Inserting, "retried task", "job fails, all there, none twice"),
        (Doubling, "retried task", "10 of 10 there, 10 more than once"),
    ],
)
def test_a_cell_says_what_became_of_the_records(target: type[Target], event: str, became: str, tmp_path: Path) -> None:
    assert EVENTS[event](OfPeer(target(tmp_path))) == became


@pytest.mark.parametrize("event", ["late delivery", "delete"])
def test_a_way_that_does_not_deliver_has_no_cell(event: str, tmp_path: Path) -> None:
    with pytest.raises(SessionFailed, match="peer does not deliver: nothing is there"):
        EVENTS[event](OfPeer(Lost(tmp_path)))


def test_a_retried_task_without_a_death_has_no_cell(tmp_path: Path) -> None:
    class Immortal(OfPeer):
        def deliver(self, version: int, **how: Any) -> str:
            return ""

    with pytest.raises(AssertionError, match="no task has died"):
        EVENTS["retried task"](Immortal(Target(tmp_path)))


def test_the_greeting_is_answered_and_all_else_handed_through() -> None:
    def echo(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client:
            while data := client.recv(1024):
                client.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=echo, args=(listener,), daemon=True).start()
        with (
            Greeting(listener.getsockname()[1], "8.19.8") as greeting,
            socket.create_connection(("127.0.0.1", greeting.port), timeout=30) as client,
            client.makefile("rb") as answers,
        ):
            client.sendall(b"POST /_bulk HTTP/1.1\r\n")
            assert answers.readline() == b"POST /_bulk HTTP/1.1\r\n"
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            lines = [answers.readline() for _ in range(2)]
            assert lines == [b"HTTP/1.1 200 OK\r\n", b"X-Elastic-Product: Elasticsearch\r\n"]
