"""How a server is known again: by a random mark that the first sink left there."""

from __future__ import annotations

import secrets

from export_queue.core.errors import SinkLostData
from export_queue.core.sinks.redis.layout import Command


class Marks:
    """The marks that this sink has seen, by the key of the hash that holds each.

    A server that was emptied, or restarted without its data, has none any more, or a new one: its ranks are gone, and
    whatever comes late would bring old records back.
    """

    def __init__(self) -> None:
        self._seen: dict[bytes, bytes] = {}

    def to_text(self) -> str:
        """Return all marks, to be kept in another place."""
        return " ".join(f"{key.decode()} {mark.decode()}" for key, mark in sorted(self._seen.items()))

    def expect(self, text: bytes | None) -> None:
        """Take marks that were kept as seen."""
        words = (text or b"").split()
        for key, mark in zip(words[::2], words[1::2], strict=True):
            self._seen.setdefault(key, mark)

    def leave(self, key: bytes) -> Command:
        """Return the command that leaves a mark where there is none: each time a new one, unlike those that we know."""
        return ("HSETNX", key, "mark", secrets.token_hex(8))

    def look(self, key: bytes) -> Command:
        """Return the command whose reply :meth:`check` takes."""
        return ("HGET", key, "mark")

    def check(self, key: bytes, found: bytes | None, *, server: str) -> None:
        """Compare a mark with what was seen before.

        :raises SinkLostData: it is another one.
        """
        if found != self._seen.setdefault(key, found or b""):
            raise SinkLostData(
                f"Redis at {server} was emptied, or restarted without its data: expected the mark"
                f" {self._seen[key].decode()} in {key.decode()}, found {(found or b'none').decode()}"
            )
