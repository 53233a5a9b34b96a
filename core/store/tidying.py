"""Reclaiming the space of removed entries in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import sqlalchemy as sa

from export_queue.core.store.seams import Server

_JOIN_SECONDS = 3600.0
"""Maximum wait at the end, as for any answer."""

log = logging.getLogger("export_queue.store")


class Tidying:
    """Reclaims the space of removed entries in a thread, at most one at a time."""

    def __init__(self, server: Server, connect: Callable[[], AbstractContextManager[sa.Connection]]) -> None:
        self._server = server
        self._connect = connect
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Reclaim the space in the background, unless that is in progress."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._tidy, name="export-queue-tidying", daemon=True)
            self._thread.start()

    def _tidy(self) -> None:
        try:
            with self._connect() as connection:
                self._server.tidy_entries(connection)
        except Exception as error:  # the next removal of entries tries again
            log.debug("the space of removed entries was not reclaimed: %s", error)

    def wait(self) -> None:
        """Wait for the end of the thread, if any."""
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def begin_anew(self) -> None:
        """Forget the thread of a parent process."""
        self._thread = None
