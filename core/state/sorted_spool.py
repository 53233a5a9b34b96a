"""Records as columns in a temporary file, in the order of bucket and key, so that they need not fit into memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from export_queue.core.segments import load_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

RUN_BYTES = 32 << 20
"""Bytes of records that are sorted at once."""
PIECE_BYTES = 256 << 10
"""Bytes that are read back at once, unless one record is larger."""


def pieces_of(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into parts of at most some bytes, unless one row is larger."""
    if batch.num_rows < 2 or batch.nbytes <= size:
        yield batch
        return
    half = batch.num_rows // 2
    yield from pieces_of(batch.slice(0, half), size)
    yield from pieces_of(batch.slice(half), size)


class BatchFile:
    """Record batches in a temporary file, which is deleted when it is closed, or the process ends."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._end = 0
        self._places: list[tuple[int, int]] = []
        self._schema: pa.Schema | None = None

    def __len__(self) -> int:
        return len(self._places)

    def close(self) -> None:
        self._file.close()

    def append(self, batch: pa.RecordBatch) -> None:
        """Add a batch in pieces. All batches have one schema."""
        self._schema = batch.schema
        for piece in pieces_of(batch, PIECE_BYTES):
            content = piece.serialize()
            self._file.write(content)
            self._places.append((self._end, content.size))
            self._end += content.size
        self._file.flush()

    def read(self, first: int = 0, end: int | None = None) -> Iterator[pa.RecordBatch]:
        """Read the pieces with some numbers."""
        pa = load_pyarrow()
        for start, size in self._places[first:end]:
            content = os.pread(self._file.fileno(), size, start)
            if len(content) < size:
                raise OSError(f"a temporary file of records: expected {size} bytes at {start}, found {len(content)}")
            yield pa.ipc.read_record_batch(pa.py_buffer(content), self._schema)


class SortedSpool:
    """Records that come in any order, and are read in that of bucket and key. The last ones stay in memory."""

    def __init__(self) -> None:
        self._file = BatchFile()
        self._runs: list[tuple[int, int]] = []
        self._unsorted: list[pa.RecordBatch] = []
        self._bytes = 0

    def close(self) -> None:
        self._file.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add records: columns ``bucket``, ``key``, ``value``."""
        for piece in pieces_of(batch, RUN_BYTES):
            self._unsorted.append(piece)
            self._bytes += piece.nbytes
            if self._bytes >= RUN_BYTES:
                first = len(self._file)
                for part in self._sorted():
                    self._file.append(part)
                self._runs.append((first, len(self._file)))

    def sources(self) -> list[Iterator[pa.RecordBatch]]:
        """Return sorted sources that together have all records; to be called once, at the end."""
        last = (piece for part in self._sorted() for piece in pieces_of(part, PIECE_BYTES))
        return [*(self._file.read(*run) for run in self._runs), last]

    def _sorted(self) -> list[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self._unsorted:
            return []
        table = pa.Table.from_batches(self._unsorted).combine_chunks()
        self._unsorted, self._bytes = [], 0
        order = pc.sort_indices(table, sort_keys=[("bucket", "ascending"), ("key", "ascending")])
        found: list[pa.RecordBatch] = table.take(order).combine_chunks().to_batches()
        return found
