"""SQLAlchemy's pool of connections; who waits here gets those that a store's own pool keeps in front of it."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool
from sqlalchemy.util.queue import Empty

from export_queue.core.store.limits import KEPT_CONNECTIONS


class EnginePool(QueuePool):
    """A pool behind the store's: who waits here gets the next connection that is returned, wherever it would go."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger = logging.getLogger("sqlalchemy.pool")  # not one of this library's, at whose level users log
        self.idle_in_front: list[tuple[sa.PoolProxiedConnection, object]] = []
        self._taking: set[object] = set()
        """One object for each thread that takes a connection here, or waits for one."""

    def may_keep_in_front(self) -> bool:
        """Return whether an idle connection may be kept in front: nobody waits for it here, and few are idle."""
        return not self._is_awaited() and len(self.idle_in_front) < KEPT_CONNECTIONS // 2

    def serve_from_front(self) -> None:
        """Take a connection from the front if a thread may wait for it here.

        Called by who has just kept one there, and by who has just come to wait here: one sees the other.
        """
        if self._is_awaited():
            with contextlib.suppress(IndexError):
                self.idle_in_front.pop()[0].close()

    def close_idle(self) -> None:
        """Close the connections that nobody uses. Unlike after :meth:`dispose`, the others still count."""
        for_waiting: list[ConnectionPoolEntry] = []
        with contextlib.suppress(Empty):
            while True:
                record = self._pool.get(False)
                record.close()
                if self._is_awaited():
                    for_waiting.append(record)  # it was returned for a thread that waits, which opens it anew
                else:
                    self._dec_overflow()
        for record in for_waiting:
            super()._do_return_conn(record)

    def _is_awaited(self) -> bool:
        """Return whether a thread may wait: no other connection may be opened."""
        return bool(self._taking) and self._overflow >= self._max_overflow

    def recreate(self) -> EnginePool:
        made = super().recreate()
        assert isinstance(made, EnginePool)
        made.idle_in_front = self.idle_in_front
        return made

    def _do_get(self) -> ConnectionPoolEntry:
        taker = object()
        try:
            self._taking.add(taker)
            self.serve_from_front()
            return super()._do_get()
        finally:
            self._taking.discard(taker)
