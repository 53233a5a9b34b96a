"""The engine's pool of connections, behind the idle ones that a store keeps in front of it."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool
from sqlalchemy.util.queue import Empty

from export_queue.core.store.limits import KEPT_CONNECTIONS, MOST_CONNECTIONS

_KEPT_HERE = KEPT_CONNECTIONS // 2
_KEPT_IN_FRONT = KEPT_CONNECTIONS - _KEPT_HERE


class EnginePool(QueuePool):
    """A pool of at most ``MOST_CONNECTIONS``.

    A thread that waits for one of them gets the next one that is returned: while it waits, none is kept in front.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        sizes = {"pool_size": _KEPT_HERE, "max_overflow": MOST_CONNECTIONS - _KEPT_HERE}
        super().__init__(*arguments, **options | sizes)
        # SQLAlchemy would name it after this class, and so log on behalf of this library.
        self.logger = logging.getLogger("sqlalchemy.pool")
        self.idle_in_front: list[tuple[sa.PoolProxiedConnection, object]] = []
        self._taking: set[object] = set()
        """One object for each thread that takes a connection here, or waits for one."""

    def may_keep_in_front(self) -> bool:
        """Return whether one more idle connection may be kept in front."""
        return not self._is_awaited() and len(self.idle_in_front) < _KEPT_IN_FRONT

    def serve_from_front(self) -> None:
        """Take back a connection from the front if a thread may be waiting here.

        Both sides call it: the thread that has just kept one in front, and the one that is about to wait. Whichever
        comes second sees what the first has done.
        """
        if self._is_awaited():
            with contextlib.suppress(IndexError):
                self.idle_in_front.pop()[0].close()

    def close_idle(self) -> None:
        """Close the connections in this pool. Those in use still count, which they do not after :meth:`dispose`."""
        awaited: list[ConnectionPoolEntry] = []
        with contextlib.suppress(Empty):
            while True:
                record = self._pool.get(False)
                record.close()
                if self._is_awaited():
                    awaited.append(record)  # returned for a thread that waits, which opens it again
                else:
                    self._dec_overflow()
        for record in awaited:
            self._do_return_conn(record)

    def _is_awaited(self) -> bool:
        """Return whether a thread may be waiting: one takes a connection, and no more may be opened."""
        return bool(self._taking) and self._overflow >= self._max_overflow

    def _do_get(self) -> ConnectionPoolEntry:
        taker = object()
        try:
            self._taking.add(taker)
            self.serve_from_front()
            return super()._do_get()
        finally:
            self._taking.discard(taker)
