"""Both sides of a comparison in temporary files, and the records that are not the same on both.

Each record has a fingerprint of 64 bits: of its target, id, rank and document. What both sides have is struck from a
set of fingerprints, so that records that are the same cost neither a row nor a sorting. The rows of the others are read
from the files, once both sides are complete.
"""

from __future__ import annotations

import marshal
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import IO, cast

import xxhash

from export_queue.core.sinks import StoredRecords

MOST_PRINTS = 1 << 17
"""Fingerprints in memory. If there are more, they are divided into files."""
MOST_IDS = 1 << 18
"""Ids of unmatched records in memory. If there are more, all records are returned."""
_PARTS = 64
_PART_BITS = 58


@dataclass(slots=True)
class Rows:
    """A page of records as columns."""

    targets: Sequence[int]
    """Number of the target of each record."""
    ids: Sequence[bytes]
    ranks: Sequence[int]
    digests: Sequence[bytes | None]
    keys: Sequence[bytes] | None = None
    """Of expected records: the key of the entry that names each."""
    expires: Sequence[bool] | None = None
    """Of expected records: whether the document has a time to live; None if none has."""

    @classmethod
    def of(
        cls,
        records: StoredRecords,
        number_of: Callable[[str], int],
        keys: Sequence[bytes] | None = None,
        expires: Sequence[bool] | None = None,
    ) -> Rows:
        """Replace documents by digests, and names of targets by numbers."""
        targets = records.targets
        if len(targets) and targets.count(targets[0]) == len(targets):  # the usual case
            numbers = [number_of(targets[0])] * len(targets)
        else:
            numbers = list(map(number_of, targets))
        return cls(numbers, records.ids, records.ranks, digests_of(records.documents), keys, expires)

    @classmethod
    def joined(cls, pages: Sequence[Rows]) -> Rows:
        """Join pages of the same side."""
        if len(pages) == 1:
            return pages[0]
        targets, ids, ranks, digests = (
            [one for page in pages for one in getattr(page, name)] for name in ("targets", "ids", "ranks", "digests")
        )
        keys: list[bytes] | None = None
        if all(page.keys is page.ids for page in pages):
            keys = ids
        elif pages[0].keys is not None:
            keys = [one for page in pages for one in page.keys or ()]
        has_ttl = any(page.expires is not None for page in pages)
        expires = [one for page in pages for one in page.expires or [False] * len(page.ids)] if has_ttl else None
        return cls(targets, ids, ranks, digests, keys, expires)

    def take(self, positions: Sequence[int]) -> Rows:
        """Return the rows at some positions."""
        ids = [self.ids[i] for i in positions]
        others = (self.ranks, self.digests, None if self.keys is self.ids else self.keys, self.expires)
        ranks, digests, keys, expires = (None if one is None else [one[i] for i in positions] for one in others)
        targets = [self.targets[i] for i in positions]
        return Rows(targets, ids, ranks, digests, ids if self.keys is self.ids else keys, expires)  # type: ignore[arg-type]

    def renumbered(self, numbers: Sequence[int]) -> Rows:
        """Return the rows with other numbers of targets.

        :param numbers: the new number of each target.
        """
        if all(number == at for at, number in enumerate(numbers)):
            return self
        return replace(self, targets=[numbers[target] for target in self.targets])

    def prints(self, *, is_ranked: bool) -> Iterable[int]:
        """Return the fingerprints. Without ranks, only target, id and document count."""
        h, digests = xxhash.xxh3_64_intdigest, self.digests
        found = [digest or b"" for digest in digests] if None in digests else cast(Sequence[bytes], digests)
        versions = map(h, found, self.ranks) if is_ranked else map(h, found)
        if any(self.targets):
            versions = map(h, map(b"%d %d".__mod__, zip(self.targets, versions, strict=True)))
        return map(h, self.ids, versions)


class Prints:
    """The fingerprints that only one of two sides has.

    They stay in memory while there are few. Then they are divided by their first bits, and compared part by part.
    """

    def __init__(self) -> None:
        self._left: tuple[set[int], set[int]] = set(), set()
        self._files: tuple[list[IO[bytes]], list[IO[bytes]]] | None = None

    def close(self) -> None:
        for file in (*self._files[0], *self._files[1]) if self._files else ():
            file.close()

    def add(self, side: int, prints: Iterable[int]) -> None:
        """Add fingerprints: first those of side 0, then those of side 1. A side may have one several times."""
        first, second = self._left
        if self._files is not None:
            _divide(prints, self._files[side])
        elif side == 0:
            first.update(prints)
        else:
            found = set(prints)
            second |= found - first  # one that has been struck is added, too: its record is compared by its row
            first -= found
        if len(first) + len(second) > MOST_PRINTS:
            self._files = _temporary_files(), _temporary_files()
            for left, files in zip(self._left, self._files, strict=True):
                _divide(left, files)
                left.clear()

    def unmatched(self) -> Iterator[set[int]]:
        """Return the fingerprints that only one side has, and maybe some that both have, in sets of bounded size."""
        if self._files is None:
            yield self._left[0] | self._left[1]
        else:
            for first, second in zip(*self._files, strict=True):
                yield _read(first) ^ _read(second)


class Sides:
    """The rows of both sides."""

    def __init__(self) -> None:
        self._files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self._prints = Prints()
        self._is_ranked = True

    def close(self) -> None:
        self._prints.close()
        for file in self._files:
            file.close()

    def add(self, side: int, rows: Rows, *, is_ranked: bool) -> None:
        """Add a page: first all pages of side 0, the expected records, then those of side 1, the found ones.

        :param is_ranked: whether ranks are compared; the same for all pages.
        """
        if not rows.ids:
            return
        self._is_ranked = is_ranked
        self._prints.add(side, rows.prints(is_ranked=is_ranked))
        is_key = rows.keys is rows.ids
        columns = (rows.targets, rows.ids, rows.ranks, rows.digests, None if is_key else rows.keys, rows.expires)
        page = [column if column is None or type(column) is list else list(column) for column in columns]
        content = marshal.dumps((is_key, *page), 2)
        self._files[side].write(len(content).to_bytes(8, "little") + content)

    def unmatched(self, side: int) -> Iterator[Rows]:
        """Return all rows of the records that are not the same on both sides; of others too, if there are many."""
        if self._ids is None:
            yield from self._rows(side)
        elif self._ids:
            for rows in self._rows(side):
                if some := [i for i, one in enumerate(rows.ids) if one in self._ids]:
                    yield rows.take(some)

    @cached_property
    def _ids(self) -> set[bytes] | None:
        """The ids of the records that are not the same on both sides; None if there are too many."""
        left, ids = set[int](), set[bytes]()
        for part in self._prints.unmatched():
            left |= part
            if len(left) > MOST_IDS:
                return None
        for rows in chain(self._rows(0), self._rows(1)) if left else ():
            prints = rows.prints(is_ranked=self._is_ranked)
            ids.update(one for one, found in zip(rows.ids, prints, strict=True) if found in left)
        return ids

    def _rows(self, side: int) -> Iterator[Rows]:
        file = self._files[side]
        file.seek(0)
        while size := file.read(8):
            content = file.read(int.from_bytes(size, "little"))
            is_key, targets, ids, ranks, digests, keys, expires = marshal.loads(content)
            yield Rows(targets, ids, ranks, digests, ids if is_key else keys, expires)


def digests_of(documents: Sequence[bytes | None]) -> list[bytes | None]:
    """Return the digests of documents, which stand for them in the comparison."""
    if None in documents:
        return list(map(digest_of, documents))
    return list(map(xxhash.xxh3_128_digest, cast(Sequence[bytes], documents)))


def digest_of(document: bytes | None) -> bytes | None:
    """Return the digest of a document; None if there is none."""
    return None if document is None else xxhash.xxh3_128_digest(document)


def _temporary_files() -> list[IO[bytes]]:
    return [tempfile.TemporaryFile() for _ in range(_PARTS)]


def _divide(prints: Iterable[int], files: Sequence[IO[bytes]]) -> None:
    parts = [array("Q") for _ in files]
    for one in prints:
        parts[one >> _PART_BITS].append(one)
    for part, file in zip(parts, files, strict=True):
        file.write(part.tobytes())


def _read(file: IO[bytes]) -> set[int]:
    file.seek(0)
    return set(memoryview(file.read()).cast("Q"))
