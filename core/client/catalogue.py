"""What one store has, as its transactions see it."""

from __future__ import annotations

from export_queue.core.queue import Queue, find_queue
from export_queue.core.store import Database
from export_queue.core.tables import ObservedColumns, TableOptions, add_table, default_options, find_table
from export_queue.core.transactions import BoundSession


class Catalogue:
    """The options of a store's queues and tables, each read once, and its observed columns.

    Codecs, buckets and layout of a stored queue never change, so that a transaction need not read them again; where
    another store is found in the place of the one that was known, all is read anew.
    """

    def __init__(self, database: Database) -> None:
        self.observed = ObservedColumns(database)
        self._database = database
        self._identity = database.identity
        self._queues: dict[str, Queue] = {}
        self._tables: dict[str, TableOptions] = {}

    def queue(self, queue_id: str) -> Queue:
        """Find a queue.

        :raises UnknownQueue: the store has no such queue.
        """
        self._forget_another_store()
        if queue_id not in self._queues:
            with self._database.read() as work:
                self._queues[queue_id] = find_queue(work, queue_id)
        return self._queues[queue_id]

    def table(self, name: str, bound: BoundSession | None = None) -> TableOptions:
        """Find a table; an unknown one is stored with default options.

        :param bound: the user's SQL transaction in which it is used.
        """
        self._forget_another_store()
        if name not in self._tables:
            found = find_table(self._database, name)
            if found is None and bound is not None:
                return add_table(bound.begin(), default_options(name))  # not kept: the user may roll it back
            self._tables[name] = found or add_table(self._database.begin(), default_options(name))
        return self._tables[name]

    def _forget_another_store(self) -> None:
        if self._identity is not self._database.identity:
            self._identity = self._database.identity
            self._queues, self._tables = {}, {}
            self.observed.forget()
