"""Operations on a sink as columns, and the rules about them (pure)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import add
from typing import Any, cast

from export_queue.core.errors import AmbiguousRecord, InvalidArgument
from export_queue.core.json_text import NotJson, json_bytes

MAX_SEQ = (1 << 62) - 1
"""The largest sequence: the largest rank, ``2·seq + 1``, is still a signed 64-bit integer."""
MAX_OPERATIONS = 100_000
"""Maximum number of operations of one entry: an exporter that never ends must not use all memory."""
MAX_OPERATION_BYTES = 256 << 20
"""Maximum bytes of documents and ids of one entry."""
MAX_TTL = 100 * 365 * 24 * 3600
"""The longest time to live, in seconds: a hundred years."""


@dataclass(frozen=True, slots=True)
class Put:
    """Set one record of a sink. An exporter yields such objects.

    :param collection: the group of records: an index, a table, a key space.
    :param id: the record within its collection; text is encoded as UTF-8.
    :param document: the new content: bytes and text as they are, any other value as JSON.
    :param ttl: seconds after which the sink forgets the content, counted from the write; None means never. Not every
        sink supports it.
    """

    collection: str
    id: str | bytes
    document: Any
    ttl: float | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove one record of a sink. An exporter yields such objects."""

    collection: str
    id: str | bytes


@dataclass(frozen=True, slots=True)
class Operations:
    """A batch of operations as columns of equal length.

    A client accepts a list of a hundred thousand ``bytes`` as it is. The same number of small objects halves the speed.
    """

    collections: Sequence[str]
    ids: Sequence[bytes]
    documents: Sequence[bytes | None]
    """The content of a put; None marks a delete."""
    seqs: Sequence[int]
    entries: Sequence[int]
    """Position in its batch of the entry that each operation comes from."""
    ttls: Sequence[float | None] | None = None
    """Time to live of each put, in seconds; None if no operation has one."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_distinct(self) -> bool:
        """Whether no two operations concern one record."""
        names = self.collections
        if not names or names.count(names[0]) == len(names):  # the usual case, without pairs
            return len(set(self.ids)) == len(self)
        return len(set(zip(names, self.ids, strict=True))) == len(self)

    def ranks(self) -> list[int]:
        """Return the rank of each operation: by seq, and a put above a delete at the same seq (I9)."""
        if all(self.documents):  # the usual case
            return [seq + seq + 1 for seq in self.seqs]  # faster than 2 * seq
        return [2 * seq + (document is not None) for seq, document in zip(self.seqs, self.documents, strict=True)]

    def take(self, positions: Sequence[int]) -> Operations:
        """Return the operations at some positions, in the given order."""
        return Operations(*([column[i] for i in positions] for column in self._columns()))

    def cut(self, start: int, end: int) -> Operations:
        """Return the operations from one position to before another."""
        return Operations(*(column[start:end] for column in self._columns()))

    def parts(self, *, rows: int, size: int) -> Iterator[range]:
        """Divide the batch: return the positions of parts of at most ``rows`` operations and ``size`` bytes of ids and
        documents. A single larger operation is a part of its own.
        """
        found = self.documents if all(self.documents) else [document or b"" for document in self.documents]
        lengths = map(len, cast(Sequence[bytes], found))
        return cut_by_size(map(add, map(len, self.ids), lengths), rows=rows, size=size)

    def slices(self, *, rows: int, size: int) -> Iterator[Operations]:
        """Divide the batch as :meth:`parts` does, and return the operations of each part."""
        for part in self.parts(rows=rows, size=size):
            yield self if len(part) == len(self) else self.cut(part.start, part.stop)

    def _columns(self) -> tuple[Sequence[Any], ...]:
        columns = (self.collections, self.ids, self.documents, self.seqs, self.entries)
        return columns if self.ttls is None else (*columns, self.ttls)


@dataclass(slots=True)
class OperationsBuilder:
    """Collects the operations that exporters yield into columns."""

    collections: list[str] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)
    documents: list[bytes | None] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)
    ttls: dict[int, float] = field(default_factory=dict)
    """By position; most puts have none."""

    def add(self, operations: Iterable[Put | Delete], *, seq: int, entry: int) -> None:
        """Append all operations of one entry, or none if one of them is not valid.

        :param entry: the entry's position in its batch.
        :raises InvalidArgument: one of them is not a valid Put or Delete, or there are too many.
        """
        rows: list[tuple[str, bytes, bytes | None]] = []
        ttls: dict[int, float] = {}
        size = 0
        for operation in operations:
            if isinstance(operation, Put):
                document: bytes | None = document_bytes(operation.document)
                if operation.ttl is not None:
                    if problem := ttl_problem(operation.ttl):
                        raise InvalidArgument(problem)
                    ttls[len(self.ids) + len(rows)] = operation.ttl
            elif isinstance(operation, Delete):
                document = None
            else:
                raise InvalidArgument(f"an exporter yields Put or Delete, found {type(operation).__name__}")
            if not isinstance(operation.collection, str):
                raise InvalidArgument(f"a collection is text, found {type(operation.collection).__name__}")
            rows.append((operation.collection, _id_bytes(operation.id), document))
            size += len(rows[-1][1]) + len(document or b"")
            if len(rows) > MAX_OPERATIONS or size > MAX_OPERATION_BYTES:
                raise InvalidArgument(
                    f"an exporter yields at most {MAX_OPERATIONS} operations and {MAX_OPERATION_BYTES >> 20} MiB for "
                    "one entry, found more",
                    hint="look for a loop without end, or divide the work: add an entry for each part",
                )
        for collection, record, document in rows:
            self.collections.append(collection)
            self.ids.append(record)
            self.documents.append(document)
            self.seqs.append(seq)
            self.entries.append(entry)
        self.ttls |= ttls

    def build(self) -> Operations:
        ttls = [self.ttls.get(i) for i in range(len(self.ids))] if self.ttls else None
        return Operations(self.collections, self.ids, self.documents, self.seqs, self.entries, ttls)


def cut_by_size(sizes: Iterable[int], *, rows: int, size: int) -> Iterator[range]:
    """Divide items in order into parts of at most ``rows`` items and ``size`` bytes; a larger item is alone."""
    ends = list(accumulate(sizes))
    start, before = 0, 0
    while start < len(ends):
        end = min(start + rows, max(start + 1, bisect_right(ends, before + size)), len(ends))
        yield range(start, end)
        start, before = end, ends[end - 1]


def ttl_problem(ttl: object) -> str:
    """Return what is wrong with a time to live; empty if it is valid."""
    if isinstance(ttl, int | float) and not isinstance(ttl, bool) and 0 < ttl <= MAX_TTL:
        return ""
    return f"a time to live is a number of seconds above 0 and at most {MAX_TTL}, found {ttl!r}"


def document_bytes(document: Any) -> bytes:
    """Encode a document: bytes and text as they are, any other value as JSON.

    :raises InvalidArgument: text that is not Unicode, or an object that is not JSON.
    """
    if isinstance(document, bytes):
        return document
    if isinstance(document, str):
        return _utf8(document, "a document")
    try:
        return json_bytes(document)
    except NotJson as error:
        raise InvalidArgument(
            f"a document is bytes, text or JSON, but {error.misfit}", hint=error.misfit.remedy
        ) from None


def _id_bytes(record: object) -> bytes:
    if isinstance(record, str):
        return _utf8(record, "a record's id")
    if isinstance(record, bytes):
        return record
    raise InvalidArgument(f"a record's id is text or bytes, found {type(record).__name__}")


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what} holds a lone surrogate at position {error.start}") from None


def collapse(operations: Operations) -> tuple[Operations, list[int]]:
    """Keep only the operation with the highest rank for each record (I9).

    Sinks that send puts and deletes separately would otherwise apply the operations of one record in the wrong order.
    If one entry puts a record twice, the last put is kept.

    :param operations: any number of operations per record, in the order of their entries.
    :returns: the operations that are kept, in the same order, and the positions of the others.
    :raises AmbiguousRecord: two entries put different documents, or different times to live, into one record at one
        sequence. Its attribute ``positions`` holds the positions of both operations.
    """
    if operations.is_distinct:
        return operations, []  # the usual case
    best: dict[tuple[str, bytes], int] = {}
    ranks = operations.ranks()
    documents, entries, ttls = operations.documents, operations.entries, operations.ttls
    dropped: list[int] = []
    for i, record in enumerate(zip(operations.collections, operations.ids, strict=True)):
        other = best.setdefault(record, i)
        if other == i:
            continue
        differ = documents[i] != documents[other] or (ttls is not None and ttls[i] != ttls[other])
        if ranks[i] == ranks[other] and entries[i] != entries[other] and differ:
            error = AmbiguousRecord(
                f"record {record[0]}/{record[1]!r} has two documents of one transaction (seq {operations.seqs[i]})"
            )
            error.positions = (other, i)
            raise error
        if ranks[i] >= ranks[other]:
            best[record] = i
            dropped.append(other)
        else:
            dropped.append(i)
    if not dropped:
        return operations, []
    dropped.sort()
    return operations.take(sorted(best.values())), dropped
