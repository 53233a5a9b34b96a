"""Opening a file of entries so that the Parquet reader gets only verified bytes (I15).

The store has the size of each file and the checksum of its footer; the footer has a checksum of each row group. Bytes
are read into memory, compared with their checksum there, and only then parsed: damaged bytes never reach native code.
The footer also holds the unguessable name of its file, so that no two files have equal footers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from export_queue.core.errors import SegmentLost, text_of
from export_queue.core.segments.files import checksum, load_pyarrow, open_file, translated
from export_queue.core.segments.model import Segment

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ["bucket", "key", "seq", "value"]
STORE, TRANSACTION, FILE = (f"export_queue.{name}".encode() for name in ("store", "transaction", "file"))
"""Keys of the footer's metadata: the writer and the name of the file."""
GROUPS = b"export_queue.groups"
"""Key of the footer's metadata: a JSON list of the end and checksum of each row group, without gaps."""
AT_ONCE_BYTES = 1 << 16
"""Up to this size a file is read in one request, which is faster on an object store than several."""


class VerifiedFile:
    """An open file of segments.

    :param segment: one of the segments in the file.
    :param at_once: up to this size the file is read as a whole.
    :raises SegmentLost: it is missing or damaged.
    :raises SegmentUnavailable: it cannot be read now.
    """

    def __init__(self, segment: Segment, *, at_once: int = AT_ONCE_BYTES) -> None:
        pyarrow = load_pyarrow()
        self._segment = segment
        self._source = open_file(segment.file, size=segment.file_bytes)
        self._whole: Any = None
        self._file: Any = None
        try:
            if segment.file_bytes <= at_once:
                self._whole = self._read(0, segment.file_bytes)
                self._source.close()
            footer = self._verified(segment.file_bytes - segment.footer_bytes, segment.file_bytes, segment.checksum)
            with self._parsing():
                self.metadata: Any = pyarrow.parquet.read_metadata(pyarrow.BufferReader(footer))
            self._groups: Sequence[tuple[int, str]] = orjson.loads(self.metadata.metadata[GROUPS])
        except BaseException:
            self._source.close()
            raise

    def check(self, segment: Segment) -> None:
        """Raise :class:`SegmentLost` if a segment's number of entries in the file differs from the catalogue."""
        groups = range(segment.row_group_first, min(segment.row_group_end, self.metadata.num_row_groups))
        entries = sum(self.metadata.row_group(i).num_rows for i in groups)
        if entries != segment.entries:
            raise SegmentLost(f"file {segment.file}: expected {segment.entries} entries in a unit, found {entries}")

    def table(self, group: int, columns: Sequence[str] = COLUMNS) -> pa.Table:
        """Read one row group, and verify its bytes.

        :raises SegmentLost: the file is damaged.
        :raises SegmentUnavailable: it cannot be read now.
        """
        start = self._groups[group - 1][0] if group else 0
        end, expected = self._groups[group]
        window = _Window(start, self._verified(start, end, expected), self._segment.file_bytes)
        with self._parsing():
            file = load_pyarrow().parquet.ParquetFile(window, metadata=self.metadata)
            table = file.read_row_group(group, columns=list(columns), use_threads=False)
        if table.num_rows != (expected_rows := self.metadata.row_group(group).num_rows):
            raise self._lost(f"expected {expected_rows} entries in row group {group}, found {table.num_rows}")
        return table

    def close(self) -> None:
        self._source.close()
        self._whole = None

    def _read(self, start: int, end: int) -> Any:
        if self._whole is not None:
            return self._whole.slice(start, end - start)
        with translated(self._segment.file):
            self._source.seek(start)
            return self._source.read_buffer(end - start)

    def _verified(self, start: int, end: int, expected: str) -> Any:
        content = self._read(start, end)
        if (found := checksum(content)) != expected:
            raise self._lost(f"expected checksum {expected} of its bytes {start} to {end}, found {found}")
        return content

    @contextlib.contextmanager
    def _parsing(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError) as error:
            reason = f"its bytes are unchanged, but pyarrow {pa.__version__} cannot read them"
            raise self._lost(f"{reason}: {text_of(error)}") from error

    def _lost(self, reason: str) -> SegmentLost:
        return SegmentLost(f"file {self._segment.file}: {reason}")


class _Window:
    """The verified part of a file as a file object for the Parquet reader. Other parts cannot be read."""

    closed = False

    def __init__(self, start: int, content: Any, size: int) -> None:
        self._start, self._content, self._size = start, content, size
        self._at = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> Any:
        first = self._at - self._start
        if first < 0:
            raise OSError(f"the bytes at {self._at} are not verified")
        found = self._content.slice(first, max(0, min(size, self._content.size - first)))
        self._at += found.size
        return found

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
