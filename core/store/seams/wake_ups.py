"""The seam of wake-ups: hints of commits that a database carries from process to process."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, Self


@dataclass(frozen=True, slots=True)
class Channel:
    """The route of a queue's hints: the name under which they are sent, and two numbers that identify followers."""

    name: str
    locks: tuple[int, int]

    @classmethod
    def of(cls, store_id: str, queue: int) -> Self:
        """Return the channel of a queue, which nothing else in the database uses."""
        digest = hashlib.blake2b(f"{store_id}/{queue}".encode(), digest_size=16).digest()
        first, second = (int.from_bytes(digest[i : i + 4], signed=True) for i in (0, 4))
        return cls(f"export_queue_{digest.hex()}", (first, second))


class Listener(Protocol):
    """Waits for the hints of one queue, and shows those who commit that somebody does."""

    def wait(self, seconds: float) -> bool:
        """Wait until a hint comes or the time is over; False if none can come, since the connection has ended."""

    def close(self) -> None:
        """Stop waiting."""


class WakeUps(Protocol):
    """Sending and receiving hints. A ``raw`` connection is the driver's own."""

    is_supported: bool
    """False once the server has refused: it speaks the protocol without these parts."""

    def send_hints(self, raw: object, channels: Collection[Channel]) -> bool:
        """Send hints to those that follow queues, in a SQL transaction that is not durable; return whether any does."""

    def listen(self, raw: object, channels: Collection[Channel]) -> Listener | None:
        """Start to listen for hints.

        :param raw: belongs to the listener from now on.
        :returns: None where none can come by this connection.
        """
