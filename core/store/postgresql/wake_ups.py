"""Hints by notifications of PostgreSQL."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection

import psycopg

from export_queue.core.postgresql_connection import BoundedConnection
from export_queue.core.store.postgresql import statements as sql
from export_queue.core.store.postgresql.connection import may_prepare
from export_queue.core.store.seams import Channel, Listener, WakeUps

_ANSWER_SECONDS = 10.0


class HintListener(Listener):
    """Listens on some channels, with its own session."""

    def __init__(self, raw: BoundedConnection, channels: Collection[Channel]) -> None:
        self._raw = raw
        raw.answer_seconds = _ANSWER_SECONDS
        for channel in channels:
            raw.execute(psycopg.sql.SQL("listen {}").format(psycopg.sql.Identifier(channel.name)))
            raw.execute(sql.LISTEN_LOCK, channel.locks)  # afterwards, so that no hint is sent without a listener

    def wait(self, seconds: float) -> bool:
        server = self._raw.pgconn  # hints that came meanwhile count as one
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

    def fileno(self) -> int:
        return self._raw.fileno()

    def _has_hint(self) -> bool:
        found = False
        while self._raw.pgconn.notifies() is not None:
            found = True
        return found

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._raw.close()


class PostgresWakeUps(WakeUps):
    """Notifies the sessions that hold the lock of a channel."""

    def __init__(self) -> None:
        self.is_supported = True

    def send_hints(self, raw: object, channels: Collection[Channel]) -> bool:
        assert isinstance(raw, BoundedConnection)
        names = [channel.name for channel in channels]
        first, second = ([channel.locks[i] for channel in channels] for i in (0, 1))
        try:
            found = raw.execute(sql.SEND_HINTS, (names, first, second)).fetchone()
        except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFunction):
            self.is_supported = False  # another engine that speaks the protocol
            return False
        assert found is not None
        return bool(found[0])

    def listen(self, raw: object, channels: Collection[Channel]) -> Listener | None:
        assert isinstance(raw, BoundedConnection)
        if not may_prepare(raw):
            raw.close()
            return None
        try:
            return HintListener(raw, channels)
        except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFunction):
            self.is_supported = False
            raw.close()
            return None
