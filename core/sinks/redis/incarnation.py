"""How a server is known again: by a random text, its incarnation, that the first sink left there, and by a fence.

The fence is the highest that a drain has shown to the server. It tells the server from an older state of itself, as
after a restart from a copy on disk that lacks the last writes.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from export_queue.core.errors import SinkLostData
from export_queue.core.sinks.redis.packing import Command


class Incarnations:
    """Incarnation and fence as this sink has seen them, by the key of the hash that holds each.

    A server that was emptied, or restarted without its data, has no incarnation any more, or a new one; one that came
    back in an older state has a lower fence. Ranks are gone, and a late delivery would bring an old record back.
    """

    def __init__(self) -> None:
        self._seen: dict[bytes, tuple[bytes, int]] = {}

    def to_text(self) -> str:
        """Return all incarnations and fences, to be kept in another place."""
        return " ".join(
            f"{key.decode()} {found.decode()} {shown}" for key, (found, shown) in sorted(self._seen.items())
        )

    def expect(self, text: bytes | None) -> None:
        """Take incarnations and fences that were kept as seen."""
        words = (text or b"").split()
        for key, found, shown in zip(words[::3], words[1::3], words[2::3], strict=True):
            known, fence = self._seen.get(key, (found, 0))
            self._seen[key] = known, max(fence, int(shown))

    def forget(self) -> None:
        """Take the servers as they are from now on."""
        self._seen.clear()

    def leave(self, key: bytes) -> Command:
        """Return the command that leaves a new incarnation where there is none."""
        return ("HSETNX", key, "incarnation", secrets.token_hex(8))

    def look(self, key: bytes) -> Command:
        """Return the command whose reply :meth:`check` takes."""
        return ("HMGET", key, "incarnation", SHOWN)

    def check(self, key: bytes, reply: Sequence[bytes | None], *, server: str) -> None:
        """Compare incarnation and fence with those that were seen before.

        :raises SinkLostData: the incarnation is another one, or the fence is lower.
        """
        found, shown = reply[0], int(reply[1] or 0)
        expected, fence = self._seen.setdefault(key, (found or b"", shown))
        if found != expected:
            raise SinkLostData(
                f"Redis at {server} was emptied, or restarted without its data: expected the incarnation"
                f" {expected.decode()} in {key.decode()}, found {(found or b'none').decode()}"
            )
        if shown < fence:
            raise SinkLostData.older(
                f"Redis at {server} is in an older state than it was, as after a restart without its last writes:"
                f" expected the fence {fence} in {key.decode()}, found {shown or 'none'}"
            )
        self._seen[key] = expected, shown

    def note(self, key: bytes, shown: int) -> None:
        """Note that a server holds a fence."""
        known, fence = self._seen[key]
        self._seen[key] = known, max(fence, shown)


SHOWN = "shown"
"""Field of the highest fence that a drain has shown to the server."""
