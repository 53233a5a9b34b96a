"""Merging sorted columns, a part of bounded size at a time.

Each source gives record batches in the order of bucket and key. Let P be the lowest of the last positions that the
sources have reached: what lies before P is complete, and is handed out. Entries of one key are never parted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

BucketAndKey = tuple[int, bytes]


def windows(sources: Sequence[Iterator[pa.RecordBatch]], schema: pa.Schema, *, size: int) -> Iterator[list[pa.Table]]:
    """Read sources side by side.

    :param sources: each sorted by the columns ``bucket`` and ``key``.
    :param schema: that of all batches.
    :param size: approximate bytes of all sources in memory; more if one batch, or the entries of one key, have more.
    :returns: for each window what each source has there, in the order of the sources.
    """
    heads = [_Head(source, schema) for source in sources]
    share = size // max(len(heads), 1)
    while True:
        for head in heads:
            head.fill(share)
        if all(head.is_over for head in heads):
            return
        until = min((head.last for head in heads if not head.is_read), default=None)
        yield [head.take(until) for head in heads]


class _Head:
    """What was read of one source, and not taken."""

    def __init__(self, source: Iterator[Any], schema: pa.Schema) -> None:
        self._source, self._schema = source, schema
        self._batches: deque[Any] = deque()
        self._bytes = 0
        self.is_read = False

    @property
    def is_over(self) -> bool:
        return self.is_read and not self._batches

    @property
    def last(self) -> BucketAndKey:
        return key_at(self._batches[-1], -1)

    def fill(self, size: int) -> None:
        """Read until there is enough, and more than one key, or the end is reached."""
        while not self.is_read and (self._bytes * 2 < size or not self._has_two_keys()):
            batch = next(self._source, None)
            if batch is None:
                self.is_read = True
            elif batch.num_rows:
                self._batches.append(batch)
                self._bytes += batch.nbytes

    def _has_two_keys(self) -> bool:
        return bool(self._batches) and key_at(self._batches[0], 0) < self.last

    def take(self, until: BucketAndKey | None) -> pa.Table:
        """Take what lies before a position; None for everything."""
        import pyarrow as pa

        taken = []
        while self._batches and (until is None or key_at(self._batches[0], -1) < until):
            taken.append(self._batches.popleft())
        if self._batches and until is not None:
            first = self._batches[0]
            if end := rows_before(first, until):
                taken.append(first.slice(0, end))
                self._batches[0] = first.slice(end)
        self._bytes = sum(batch.nbytes for batch in self._batches)
        return pa.Table.from_batches(taken, self._schema)


def key_at(batch: pa.RecordBatch, row: int) -> BucketAndKey:
    """Return bucket and key of a row."""
    row %= batch.num_rows
    return batch.column("bucket")[row].as_py(), batch.column("key")[row].as_py()


def rows_before(batch: pa.RecordBatch, position: BucketAndKey) -> int:
    """Count the rows of a sorted batch before a position."""
    return bisect_left(range(batch.num_rows), position, key=lambda row: key_at(batch, row))
