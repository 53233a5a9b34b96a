"""What clients note in files, line by line, and the history that these make."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson
from tests.support.histories import Append, HistoryTransaction, Operation, Read, ReadList, Write

from export_queue import Store, StoreError

TAIL = 1 << 16

KINDS: dict[str, Callable[..., Operation]] = {"L": ReadList, "A": Append, "R": Read, "W": Write}
LETTERS = {kind: letter for letter, kind in KINDS.items()}
"""How journals name operations."""
ENTRY, NOTE = "E", "N"
"""What a transaction adds beside its operations: an entry, a notification."""
STATUSES: dict[str, Literal["ok", "aborted", "unknown"]] = {
    "committed": "ok",
    "refused": "aborted",
    "unknown": "unknown",
}


@dataclass
class Journal:
    """A file that a client appends to, one whole line at a time."""

    path: Path
    file: int = field(init=False)

    def __post_init__(self) -> None:
        self.file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, **event: object) -> None:
        os.write(self.file, orjson.dumps(event) + b"\n")

    def unanswered(self) -> str | None:
        """Return the last request if it has no answer, and end a line that was cut off."""
        size = os.fstat(self.file).st_size
        tail = os.pread(self.file, TAIL, max(0, size - TAIL))
        if tail and not tail.endswith(b"\n"):
            os.write(self.file, b"\n")
        for line in reversed(tail.split(b"\n")[:-1]):
            with contextlib.suppress(orjson.JSONDecodeError):
                event = orjson.loads(line)
                if "request" in event:
                    return None if "answer" in event else event["request"]
        return None


def ask_for_the_dead(store: Store, journal: Journal) -> None:
    """Learn what became of the last request of a client that did not live to see the answer."""
    limit = time.monotonic() + 120
    request = journal.unanswered()
    while request is not None:
        try:
            outcome = store.outcome(request)
        except StoreError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.01)
        else:
            journal.write(request=request, answer=outcome.status, end=time.monotonic_ns())
            return


@dataclass(frozen=True)
class Told:
    """A transaction as its client has it, and the request whose outcome the store knows."""

    request: str
    transaction: HistoryTransaction
    entries: tuple[bytes, ...]
    """Keys of the entries that it added."""
    notifications: tuple[bytes, ...]
    """Rows of the notifications that it set."""

    @property
    def writes(self) -> bool:
        written = any(isinstance(o, (Append, Write)) for o in self.transaction.operations)
        return written or bool(self.entries or self.notifications)


def read_journals(paths: Sequence[Path], failures: list[str]) -> Iterator[Told]:
    """Read what the clients noted; each file has its transactions in their order.

    :param failures: is given what a client found wrong by itself.
    """
    for path in paths:
        pending: dict[str, Any] | None = None
        with path.open("rb") as lines:
            for line in lines:
                try:
                    event = orjson.loads(line)
                except orjson.JSONDecodeError:
                    continue  # its client was killed in the middle of it
                if "failure" in event:
                    failures.append(event["failure"])
                    continue
                if "begin" in event:
                    assert pending is None, f"{path} goes on without the answer to {pending}"
                    pending = event
                assert pending is not None, f"{path} answers what was not asked: {event}"
                assert pending["request"] == event["request"]
                if "more" in event:
                    pending["operations"] += event["more"]
                if "answer" in event:
                    yield told({**pending, **event})
                    pending = None
        if pending is not None:
            yield told({**pending, "answer": "unknown", "end": None})


def told(event: dict[str, Any]) -> Told:
    operations = [
        KINDS[letter](key, tuple(value) if letter == "L" else value)
        for letter, key, value in event["operations"]
        if letter in KINDS
    ]
    transaction = HistoryTransaction(
        session=str(event["session"]),
        operations=operations,
        status=STATUSES[event["answer"]],
        id=event.get("id"),
        begin=event["begin"],
        end=event["end"],
    )
    entries, notifications = (
        tuple(key.encode() for letter, key, _ in event["operations"] if letter == what) for what in (ENTRY, NOTE)
    )
    return Told(event["request"], transaction, entries, notifications)
