"""A table of the store as the source of a queue's content."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from export_queue.core.queue import Queue
from export_queue.core.sources.function import FunctionContent, spooled
from export_queue.core.sources.records import as_key
from export_queue.core.store import Database
from export_queue.core.tables import ObservedColumns, Table, known_table
from export_queue.core.transactions import OpenTransaction, Snapshot


class TableSource:
    """The content of a queue that a table of the store has: each row is a record, and its name is the key.

    It holds exactly the transactions up to the cut. Sequences are not known, so that only documents can be compared.

    :param name: name of the table.
    :param value: the column that is the value, or several, which become a JSON object; all columns by default. A row
        without the one column is left out.
    """

    def __init__(self, name: str, *, value: str | Sequence[str] | None = None) -> None:
        self._name, self._value = name, value

    @contextlib.contextmanager
    def open(self, database: Database, queue: Queue) -> Iterator[FunctionContent]:
        """Read the table in a settled snapshot, and keep the records in a temporary file until the context ends.

        :raises InvalidArgument: the store has no such table.
        :raises EntryError: a row or a value does not fit the queue's codecs.
        :raises SnapshotTooOld: the reading took so long that clean-up has deleted what it needs.
        """
        options = known_table(database, self._name)
        opened = OpenTransaction(database, kind="read", settled=True)
        try:
            snapshot = opened.snapshot
            assert isinstance(snapshot, Snapshot)  # a settled one is made of ids
            table = Table(opened, options, ObservedColumns(database))
            with spooled(
                queue, snapshot.read_pointer, ((as_key(row, queue.key), value) for row, value in self._records(table))
            ) as found:
                yield found
        finally:
            opened.abort()

    def _records(self, table: Table) -> Iterator[tuple[Any, Any]]:
        one = self._value if isinstance(self._value, str) else None
        columns = [one] if one is not None else self._value
        for row, cells in groupby(table.scan(columns=columns), key=itemgetter(0)):
            found = {_text(column): value for _, column, value in cells}
            yield row, found if one is None else found[one]


def _text(column: str | bytes) -> str:
    return column if isinstance(column, str) else column.decode()
