"""A page of records as columns, with digests in the place of documents."""

from __future__ import annotations

import marshal
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import xxhash

from export_queue.core.sinks import StoredRecords

_DIGEST = 16
"""Bytes of a digest."""
_NO_DIGEST = bytes(_DIGEST)


@dataclass(slots=True)
class Rows:
    """A page of records as columns; those of numbers and digests as buffers, in which a record takes few bytes."""

    targets: memoryview
    """Number of the target of each record, of 32 bits."""
    ids: Sequence[bytes]
    ranks: memoryview
    """Of 64 bits."""
    digests: bytes
    """The digests one after the other; zeros for a record without a document."""
    gone: bytes = b""
    """1 for each record without a document, 0 for others; empty if all have one."""
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
        names, documents, gone = records.targets, records.documents, b""
        if len(names) and names.count(names[0]) == len(names):  # the usual case
            targets = array("I", [number_of(names[0])]) * len(names)
        else:
            targets = array("I", map(number_of, names))
        if all(documents) or None not in documents:
            digests = b"".join(map(xxhash.xxh3_128_digest, cast(Sequence[bytes], documents)))
        else:
            gone = bytes(document is None for document in documents)
            digests = b"".join(digest_of(document) or _NO_DIGEST for document in documents)
        ranks = memoryview(array("q", records.ranks))
        return cls(memoryview(targets), records.ids, ranks, digests, gone, keys, expires)

    def packed(self) -> bytes:
        """Return the rows as bytes, which :meth:`unpacked` reads."""
        is_key = self.keys is self.ids
        keys = None if is_key or self.keys is None else list(self.keys)
        ids = self.ids if type(self.ids) is list else list(self.ids)
        columns: Any = (is_key, self.targets, ids, self.ranks, self.digests, self.gone, keys, self.expires)
        return marshal.dumps(columns, 2)

    @classmethod
    def unpacked(cls, content: bytes) -> Rows:
        """Return the rows that :meth:`packed` packed."""
        is_key, targets, ids, ranks, digests, gone, keys, expires = marshal.loads(content)
        numbers, signed = memoryview(targets).cast("I"), memoryview(ranks).cast("q")
        return cls(numbers, ids, signed, digests, gone, ids if is_key else keys, expires)

    @classmethod
    def joined(cls, pages: Sequence[Rows]) -> Rows:
        """Join pages of the same side."""
        if len(pages) == 1:
            return pages[0]
        ids = [one for page in pages for one in page.ids]
        targets, ranks = (b"".join(getattr(page, name) for page in pages) for name in ("targets", "ranks"))
        gone = (
            b"".join(page.gone or bytes(len(page.ids)) for page in pages) if any(page.gone for page in pages) else b""
        )
        keys: list[bytes] | None = None
        if all(page.keys is page.ids for page in pages):
            keys = ids
        elif pages[0].keys is not None:
            keys = [one for page in pages for one in page.keys or ()]
        has_ttl = any(page.expires is not None for page in pages)
        expires = [one for page in pages for one in page.expires or [False] * len(page.ids)] if has_ttl else None
        digests = b"".join(page.digests for page in pages)
        return cls(memoryview(targets).cast("I"), ids, memoryview(ranks).cast("q"), digests, gone, keys, expires)

    def take(self, positions: Sequence[int]) -> Rows:
        """Return the rows at some positions."""
        ids, all_digests = [self.ids[i] for i in positions], self.digests
        keys, expires = (None if one is None else [one[i] for i in positions] for one in (self.keys, self.expires))
        return Rows(
            memoryview(array("I", [self.targets[i] for i in positions])),
            ids,
            memoryview(array("q", [self.ranks[i] for i in positions])),
            b"".join([all_digests[i : i + _DIGEST] for i in map(_DIGEST.__mul__, positions)]),
            bytes([self.gone[i] for i in positions]) if self.gone else b"",
            ids if self.keys is self.ids else keys,  # type: ignore[arg-type]
            expires,  # type: ignore[arg-type]
        )

    def renumbered(self, numbers: Sequence[int]) -> Rows:
        """Return the rows with other numbers of targets.

        :param numbers: the new number of each target.
        """
        if all(number == at for at, number in enumerate(numbers)):
            return self
        return replace(self, targets=memoryview(array("I", [numbers[target] for target in self.targets])))

    def digest_list(self, without: bytes | None = None) -> list[bytes | None]:
        """Return the digest of each record.

        :param without: what to return for a record without a document.
        """
        found: list[bytes | None] = [self.digests[at : at + _DIGEST] for at in range(0, len(self.digests), _DIGEST)]
        if self.gone:
            return [without if gone else digest for gone, digest in zip(self.gone, found, strict=True)]
        return found


def digest_of(document: bytes | None) -> bytes | None:
    """Return the digest of a document; None if there is none."""
    return None if document is None else xxhash.xxh3_128_digest(document)
