"""How a server is known again: by a random text, its incarnation, that the first sink left there."""

from __future__ import annotations

import secrets

from export_queue.core.errors import SinkLostData
from export_queue.core.sinks.redis.layout import Command


class Incarnations:
    """The incarnations that this sink has seen, by the key of the hash that holds each.

    A server that was emptied, or restarted without its data, has none any more, or a new one. Its ranks are gone, and
    a late delivery would bring an old record back.
    """

    def __init__(self) -> None:
        self._seen: dict[bytes, bytes] = {}

    def to_text(self) -> str:
        """Return all incarnations, to be kept in another place."""
        return " ".join(f"{key.decode()} {found.decode()}" for key, found in sorted(self._seen.items()))

    def expect(self, text: bytes | None) -> None:
        """Take incarnations that were kept as seen."""
        words = (text or b"").split()
        for key, found in zip(words[::2], words[1::2], strict=True):
            self._seen.setdefault(key, found)

    def leave(self, key: bytes) -> Command:
        """Return the command that leaves a new incarnation where there is none."""
        return ("HSETNX", key, "incarnation", secrets.token_hex(8))

    def look(self, key: bytes) -> Command:
        """Return the command whose reply :meth:`check` takes."""
        return ("HGET", key, "incarnation")

    def check(self, key: bytes, found: bytes | None, *, server: str) -> None:
        """Compare an incarnation with the one that was seen before.

        :raises SinkLostData: it is another one.
        """
        if found != self._seen.setdefault(key, found or b""):
            raise SinkLostData(
                f"Redis at {server} was emptied, or restarted without its data: expected the incarnation"
                f" {self._seen[key].decode()} in {key.decode()}, found {(found or b'none').decode()}"
            )
