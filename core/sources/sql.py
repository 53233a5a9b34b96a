"""A SQL query in the store's own database as the source of a queue's content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from export_queue.core.queue import Queue
from export_queue.core.sources.data_files import rows_of_own_query
from export_queue.core.sources.function import FunctionContent, FunctionSource
from export_queue.core.sources.records import as_key, record_of
from export_queue.core.store import Database


class SqlSource:
    """The content of a queue that a SQL query in the store's own database reads.

    The query is one statement, which the database runs in one snapshot, after the cut was taken. So it sees all rows of
    every transaction with an id up to the cut, also of those that are bound to a connection, because an id counts as in
    progress until the rows of its transaction are committed. Of each younger transaction it sees all or nothing.
    Sequences are not known, so that only documents can be compared.

    :param query: one statement. On PostgreSQL, names of tables need their schema: ``public.airports``.
    :param key: the column that is the key, or several, which become a JSON list for the key codec ``str``. None: the
        query has columns ``key`` and ``value``.
    :param value: the column that is the value, or several that become a JSON object; all columns by default.
    """

    def __init__(
        self, query: str, *, key: str | Sequence[str] | None = None, value: str | Sequence[str] | None = None
    ) -> None:
        self._query, self._key, self._value = query, key, value

    def open(self, database: Database, queue: Queue) -> AbstractContextManager[FunctionContent]:
        """Run the query, and keep the result in a temporary file until the context ends.

        :raises StoreError: the database refuses the query.
        :raises InvalidArgument: the query yields a key twice.
        :raises EntryError: a row has no key, or a key or a value does not fit the queue's codecs.
        """

        def records() -> Iterator[tuple[Any, Any]]:
            for row in rows_of_own_query(database, self._query):
                key, value = record_of(row, self._key, self._value)
                yield as_key(key, queue.key), value

        return FunctionSource(records).open(database, queue)
