"""Entries in a temporary file, in the order of bucket and key, so that they need not fit into memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice

BucketAndKey = tuple[int, bytes]
Row = tuple[int, bytes, int, bytes | None]
"""Bucket, key, number and value of an entry."""
_BLOCK_ROWS = 10_000
_SET_UP = """
    pragma journal_mode = off;
    pragma synchronous = off;
    create table entry (
      bucket integer, key blob, number integer, value blob, primary key (bucket, key)) without rowid;
    begin;
"""
_ADD = "insert into entry values (?, ?, ?, ?) on conflict do nothing"
_KEEP = """
    insert into entry values (?, ?, ?, ?)
    on conflict do update set number = excluded.number, value = excluded.value where excluded.number > number
"""
_BETWEEN = """
    select bucket, key, number, value from entry
    where bucket between ? and ? and (bucket, key) > (?, ?) and (bucket, key) <= (?, ?) order by bucket, key
"""


class EntrySpool:
    """A temporary file with one entry for each key. SQLite deletes it when it is closed, or the process ends."""

    def __init__(self) -> None:
        self._sql = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._sql.executescript(_SET_UP)

    def close(self) -> None:
        self._sql.close()

    def add(self, entries: Iterable[tuple[int, bytes, bytes | None]]) -> bytes | None:
        """Add entries in any order, numbered from 0; to be called once.

        :param entries: bucket, key and value of each.
        :returns: a key that comes twice, which ends the call; None if there is none.
        """
        rows = ((at, key, number, value) for number, (at, key, value) in enumerate(entries))
        while block := sorted(islice(rows, _BLOCK_ROWS)):
            if self._sql.executemany(_ADD, block).rowcount < len(block):
                return next(key for at, key, number, _ in block if not self._has(at, key, number))
        return None

    def keep(self, rows: Iterable[Row]) -> None:
        """Add entries with numbers of their own. Of several with one key, the one with the highest number stays."""
        self._sql.executemany(_KEEP, rows)

    def between(self, after: BucketAndKey, last: BucketAndKey) -> Iterator[Row]:
        """Read the entries after one position and up to another one, in their order."""
        return iter(self._sql.execute(_BETWEEN, (after[0], last[0], *after, *last)))

    def _has(self, at: int, key: bytes, number: int) -> bool:
        found = self._sql.execute("select number from entry where bucket = ? and key = ?", (at, key)).fetchone()
        return bool(found == (number,))
