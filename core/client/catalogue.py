"""The tables and queues of a store, as its transactions see them."""

from __future__ import annotations

import time
from collections.abc import Callable

from export_queue.core.queue import Queue, find_queue
from export_queue.core.store import Database
from export_queue.core.tables import ObservedColumns, TableOptions, add_table, find_table
from export_queue.core.transactions import BoundSession

FRESH_SECONDS = 60.0
"""How long a process uses the options of a queue before it reads them again."""


class Catalogue:
    """Caches the options of a store's queues and tables, and the observed columns.

    The codecs of a queue never change. Other options may be altered, and are read again after a minute; the layout of
    its entries is decided by the store at each commit. If another store has replaced the known one, everything is read
    again.

    :param clock: returns seconds.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.observed = ObservedColumns(database)
        self._database = database
        self._clock = clock
        self._identity = database.identity
        self._queues: dict[str, tuple[Queue, float]] = {}
        """Each queue with the time at which it was read."""
        self._tables: dict[str, TableOptions] = {}

    def queue(self, queue_id: str) -> Queue:
        """Return the options of a queue.

        :raises UnknownQueue: the store has no such queue.
        """
        self._forget_another_store()
        now = self._clock()
        known = self._queues.get(queue_id)
        if known is not None and now - known[1] < FRESH_SECONDS:
            return known[0]
        with self._database.read() as work:
            queue = find_queue(work, queue_id)
        self._queues[queue_id] = queue, now
        return queue

    def forget_queues(self) -> None:
        """Read the options of each queue again when it is used next."""
        self._queues.clear()

    def table(self, name: str, bound: BoundSession | None = None) -> TableOptions:
        """Return the options of a table. An unknown table is created with default options.

        :param bound: the user's SQL transaction in which the table is used.
        """
        self._forget_another_store()
        if name not in self._tables:
            found = find_table(self._database, name)
            if found is None and bound is not None:
                return add_table(bound.begin(), TableOptions(name))  # not cached: the user may roll it back
            self._tables[name] = found or add_table(self._database.begin(), TableOptions(name))
        return self._tables[name]

    def _forget_another_store(self) -> None:
        if self._identity is not self._database.identity:
            self._identity = self._database.identity
            self._queues, self._tables = {}, {}
            self.observed.forget()
