"""A session that listens for hints of commits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Self

import psycopg

from export_queue.core.postgresql_connection import BoundedConnection
from export_queue.core.store.hints import Channel
from export_queue.core.store.postgresql import statements as sql

_ANSWER_SECONDS = 10.0


class HintListener:
    """Listens on some channels.

    :param raw: a session of its own.
    """

    def __init__(self, raw: BoundedConnection) -> None:
        self._raw = raw

    @classmethod
    def begin(cls, raw: BoundedConnection, channels: Iterable[Channel]) -> Self:
        """Listen from now on; the session ends where that fails."""
        raw.answer_seconds = _ANSWER_SECONDS
        for channel in channels:
            raw.execute(psycopg.sql.SQL("listen {}").format(psycopg.sql.Identifier(channel.name)))
            raw.execute(sql.LISTEN_LOCK, channel.locks)  # behind it, so that no hint is sent to nobody
        return cls(raw)

    def wait(self, seconds: float) -> bool:
        """Wait for a hint; hints that came meanwhile count as one."""
        server = self._raw.pgconn
        end = time.monotonic() + seconds
        try:
            while not self._has_hint():
                left = end - time.monotonic()
                if left <= 0 or not self._raw.has_input(left):
                    break
                server.consume_input()
        except psycopg.Error:
            self.close()
            return False
        return True

    def _has_hint(self) -> bool:
        found = False
        while self._raw.pgconn.notifies() is not None:
            found = True
        return found

    def close(self) -> None:
        """End the session."""
        with contextlib.suppress(psycopg.Error):
            self._raw.close()
