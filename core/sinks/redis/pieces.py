"""A batch in pieces: what is read for each, and the transaction that writes it (pure).

A piece fits into the processor's cache, and its transaction does not make other clients of the server wait for long.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence, Set
from itertools import chain
from operator import lt
from typing import Any, cast

from export_queue.core.queue import buckets_of
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import Rejection
from export_queue.core.sinks.redis.layout import CONTROL, rank_texts
from export_queue.core.sinks.redis.packing import Command, Packed, Sendable, pack_words, packed, with_words
from export_queue.core.sinks.redis.sweep import READ_FLOOR, stale_text
from export_queue.core.sinks.redis.targets import Target, wrong_type

ROWS = 1000
"""Maximum number of records of a piece."""
BYTES = 1 << 18
"""Maximum bytes of ids and documents of a piece. A single larger record is a piece of its own."""
_TYPE = packed("TYPE")
(_HMGET, _HSET) = pack_words([b"HMGET", b"HSET"])


class Batch:
    """Operations on distinct records, sorted by shard so that a piece touches few shards.

    :param shards: number of hashes that hold the ranks; 0 if there are no ranks, and the order does not matter.
    """

    def __init__(self, operations: Operations, shards: int = 0) -> None:
        self.order: Sequence[int] = range(len(operations))
        """Original position of each operation."""
        self.shards: Sequence[int] = []
        """Shard of each operation, ascending."""
        if shards:
            found = buckets_of(operations.ids, shards)
            self.shards = sorted(found)
            if self.shards != found:  # a drain's batches are sorted already; others may not be
                self.order = sorted(self.order, key=found.__getitem__)
                operations = operations.take(self.order)
        self._operations = operations

    def __len__(self) -> int:
        return len(self.order)

    def cut(self) -> list[range]:
        """Return the positions of each piece."""
        return list(self._operations.parts(rows=ROWS, size=BYTES))

    def halves(self, part: range) -> list[range]:
        """Cut a piece in two between shards. A piece of one shard stays whole."""
        if self.shards:
            middle = self.shards[(part.start + part.stop) // 2]
            for edge in (bisect_left(self.shards, middle), bisect_right(self.shards, middle)):
                if part.start < edge < part.stop:
                    return [range(part.start, edge), range(edge, part.stop)]
        return [part]

    def take(self, part: range) -> Operations:
        return self._operations.cut(part.start, part.stop)

    def groups(self, part: range) -> list[tuple[int, int, int]]:
        """Return the shards of a piece, each with its start and end in the piece."""
        found: list[tuple[int, int, int]] = []
        start = part.start
        while start < part.stop:
            end = bisect_right(self.shards, self.shards[start], start, part.stop)
            found.append((self.shards[start], start - part.start, end - part.start))
            start = end
        return found


class Piece(ABC):
    """Some records of a batch, read and then written in one transaction.

    :param part: positions of the records in the batch.
    """

    reads: Sequence[Sendable]
    """Commands that watch and read what the transaction depends on."""

    def __init__(self, batch: Batch, part: range, target: Target) -> None:
        self.part = part
        self.target = target
        self.operations = batch.take(part)
        self.records = target.locate(self.operations)
        self.transaction: Sequence[Sendable] = ()
        self.written = 0
        self.rejected: list[Rejection] = []
        self._order = batch.order
        self._checked = target.checked_keys(self.records)
        self.look_at_types = [with_words(_TYPE, [key]) for key in self._checked]

    def __len__(self) -> int:
        return len(self.part)

    @abstractmethod
    def pack(self) -> None:
        """Make the transaction, assuming the usual case that everything may be written."""

    @abstractmethod
    def judge(self, replies: Sequence[Any]) -> None:
        """Remove from the transaction what must not be written.

        :param replies: replies to :attr:`reads`.
        :raises ExportQueueError: nothing may be written.
        """

    def fill(self, positions: Sequence[int], ranks: Sequence[Sendable] = ()) -> None:
        """Make the transaction that writes the operations at some positions, and their ranks."""
        writes = self.target.writes(self.records, positions)
        self.transaction = [("MULTI",), *writes, *ranks, ("EXEC",)] if writes else [("UNWATCH",)]

    def reject(self, types: Sequence[bytes]) -> Set[bytes]:
        """Reject the operations on keys that hold no set, and return those keys.

        :param types: replies to :attr:`look_at_types`.
        """
        wrong = {key: kind for key, kind in zip(self._checked, types, strict=True) if kind not in (b"set", b"none")}
        self.rejected = [
            wrong_type(self._order[self.part.start + i], key, wrong[key])
            for i, key in enumerate(self.records.keys if wrong else ())
            if key in wrong
        ]
        return wrong.keys()


class RankedPiece(Piece):
    """A piece whose records have ranks.

    :param look: command that reads the server's incarnation.
    :param check: receives the reply, and raises an error if the server has lost data.
    :param repairs: whether records of an equal rank and below the floor are written, too.
    """

    def __init__(
        self,
        batch: Batch,
        part: range,
        target: Target,
        *,
        look: Command,
        check: Callable[[Any], None],
        repairs: bool = False,
    ) -> None:
        super().__init__(batch, part, target)
        self._repairs = repairs
        self._check = check
        self._ranks = rank_texts(self.operations.ranks())
        groups = batch.groups(part)
        names = [target.hashes + b"%d" % shard for shard, _, _ in groups]
        self._groups = [(name, start, end) for name, (_, start, end) in zip(pack_words(names), groups, strict=True)]
        fields = self.records.fields
        self.reads = [
            ("WATCH", CONTROL, *names),
            READ_FLOOR,
            look,
            *(with_words(Packed(2, (_HMGET, name), 0), fields[start:end]) for name, start, end in self._groups),
            *self.look_at_types,
        ]

    def pack(self) -> None:
        fields, ranks = self.records.fields, self._ranks
        self.fill(
            range(len(self)), [_note(name, fields[start:end], ranks[start:end]) for name, start, end in self._groups]
        )
        self.written = len(self)

    def judge(self, replies: Sequence[Any]) -> None:
        # strictly, unless records are repaired: an equal rank is a repetition
        _, floor, mark, *found = replies
        self._check(mark)
        known, types = found[: len(self._groups)], found[len(self._groups) :]
        stale = b"" if self._repairs else stale_text(floor)
        wrong = self.reject(types)
        is_above = not stale or min(self._ranks) > stale
        if wrong or not is_above or not _all_newer(self._ranks, list(chain.from_iterable(known))):
            self._leave_newer(known, stale, wrong)

    def _leave_newer(self, found: Sequence[Sequence[bytes | None]], stale: bytes, wrong: Set[bytes]) -> None:
        keys, fields, ranks = self.records.keys, self.records.fields, self._ranks
        newer: list[int] = []
        repeated: list[int] = []
        notes: list[Packed] = []
        for (name, start, end), known_ranks in zip(self._groups, found, strict=True):
            fresh: list[int] = []
            for i, known in zip(range(start, end), known_ranks, strict=True):
                if ranks[i] <= stale or keys[i] in wrong:
                    continue
                if known is None or known < ranks[i] or (self._repairs and known == ranks[i]):
                    fresh.append(i)
                elif self.target.repeats and known == ranks[i]:
                    repeated.append(i)
            newer += fresh
            if fresh:
                notes.append(_note(name, [fields[i] for i in fresh], [ranks[i] for i in fresh]))
        self.fill(newer + repeated, notes)
        self.written = len(newer)


def _all_newer(offered: Sequence[bytes], known: Sequence[bytes | None]) -> bool:
    """Return whether every offered rank is higher than the known one; fast, because this is the usual case."""
    if not all(known):
        return not any(known)
    return all(map(lt, cast(Sequence[bytes], known), offered))


def _note(name: bytes, fields: Sequence[bytes], ranks: Sequence[bytes]) -> Packed:
    """Return the command that records ranks."""
    flat = [b"\r\n$20\r\n"] * (3 * len(fields))
    flat[0::3], flat[2::3] = fields, ranks
    together = b"".join((_HSET, name, *flat))
    return Packed(2 + 2 * len(fields), (together,), len(together))
