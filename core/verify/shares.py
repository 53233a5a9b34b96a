"""Both sides of a comparison in shares that several processes compare: records of one id are in the same share."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import xxhash

from export_queue.core.sinks import StoredRecords
from export_queue.core.verify.rows import Rows

AT_ONCE = 50_000
"""Records that are divided together, so that pages do not become small."""


@dataclass(frozen=True, slots=True)
class Page:
    """Records of one side and one share."""

    side: int
    """0 for the expected records, 1 for the found ones."""
    names: Sequence[str]
    """Names of the targets, by their numbers in the rows."""
    rows: Rows

    def packed(self) -> bytes:
        """Return the page as bytes, which another process reads with :meth:`unpacked`."""
        return marshal.dumps((self.side, list(self.names), self.rows.packed()), 2)

    @classmethod
    def unpacked(cls, content: bytes) -> Self:
        """Return the page that :meth:`packed` packed."""
        side, names, rows = marshal.loads(content)
        return cls(side, names, Rows.unpacked(rows))


@dataclass(slots=True)
class Divider:
    """Divides the records of one side into shares.

    :param side: 0 for the expected records, 1 for the found ones.
    :param shares: number of shares.
    """

    side: int
    shares: int
    _names: dict[str, int] = field(default_factory=dict)
    _left: list[Rows] = field(default_factory=list)
    _size: int = 0

    def add(
        self, records: StoredRecords, keys: Sequence[bytes] | None = None, expires: Sequence[bool] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Add records, and return complete pages, each packed and with the number of its share.

        :param keys: of expected records: the key of the entry that names each.
        :param expires: of expected records: whether each document has a time to live; None if none has.
        """
        self._left.append(Rows.of(records, lambda name: self._names.setdefault(name, len(self._names)), keys, expires))
        self._size += len(records)
        return self.rest() if self._size >= AT_ONCE else iter(())

    def rest(self) -> Iterator[tuple[int, bytes]]:
        """Return pages of the records that have not been returned yet."""
        left, self._left, self._size = self._left, [], 0
        if not left:
            return
        rows, names = Rows.joined(left), list(self._names)
        positions: list[list[int]] = [[] for _ in range(self.shares)]
        for at, found in enumerate(map(xxhash.xxh3_64_intdigest, rows.ids)):
            positions[found % self.shares].append(at)
        for share, some in enumerate(positions):
            if some:
                yield share, Page(self.side, names, rows.take(some)).packed()


def divided(side: int, shares: int, pages: Iterable[StoredRecords]) -> Iterator[tuple[int, bytes]]:
    """Divide pages of found records; see :class:`Divider`."""
    divider = Divider(side, shares)
    for records in pages:
        yield from divider.add(records)
    yield from divider.rest()
