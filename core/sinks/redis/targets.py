"""What a record is in Redis, a string, a hash or a member of a set, and the commands that bring it about (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from operator import lt
from typing import Literal, Protocol, cast

from export_queue.core.sinks.batch import Reasons, refuse_lengths
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import Rejection
from export_queue.core.sinks.redis.fields import fields_of
from export_queue.core.sinks.redis.layout import (
    MAX_BYTES,
    RESERVED,
    Command,
    group_by_shard,
    group_by_slot,
    keys_of,
    rank_texts,
)

Kind = Literal["string", "hash", "set"]
_MOST_WORDS = 2000
"""Names and values in one HSET: a script cannot call a command of more than some thousand words."""


@dataclass(frozen=True, slots=True)
class Records:
    """Operations on distinct records, ready to be compared with the ranks that Redis holds."""

    keys: Sequence[bytes]
    """The user's key of each record: a string's, or a set's."""
    members: Sequence[bytes]
    """The member of the set that each record is; empty where records are strings."""
    documents: Sequence[bytes | None]
    fields: Sequence[bytes]
    """Under which each record's rank stands in the hash of its shard."""
    ranks: Sequence[bytes]
    shards: dict[bytes, Sequence[int]]
    """Positions of the records by the hash that holds their ranks."""
    ttls: Sequence[float | None] | None = None

    def milliseconds(self, position: int) -> bytes | None:
        """Return how long a record is to be kept; None where it stays."""
        ttl = self.ttls[position] if self.ttls is not None else None
        return None if ttl is None else b"%d" % max(1, round(ttl * 1000))

    def halves(self) -> tuple[Records, Records] | None:
        """Cut by shards; None where there is only one."""
        names = list(self.shards)
        if len(names) < 2:
            return None
        middle = len(names) // 2
        first, second = (
            replace(self, shards={name: self.shards[name] for name in part})
            for part in (names[:middle], names[middle:])
        )
        return first, second


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done about records, now that the ranks in the server are known."""

    newer: list[int]
    """Positions of operations above the rank that the server holds."""
    repeated: list[int]
    """Positions of operations that the server has, and that are sent again."""
    rejected: tuple[Rejection, ...]
    ranks: list[Command]
    """The commands that record the ranks of the newer ones."""


def decide(
    records: Records,
    found: Sequence[Sequence[bytes | None]],
    types: Mapping[bytes, bytes],
    *,
    repeats: bool,
    stale: bytes = b"",
) -> Decision:
    """Compare operations with what the server holds; strictly, since an equal rank is a repetition.

    :param records: the operations.
    :param found: ranks in the server, shard by shard; None where a record has none.
    :param types: types of the keys that were checked: anything but a set is wrong.
    :param repeats: whether an operation of the recorded rank is sent again.
    :param stale: the highest rank that the floor makes stale; empty where there is none.
    """
    wrong = _wrong(types)
    keys, fields, ranks = records.keys, records.fields, records.ranks
    decision = Decision([], [], tuple(_wrong_types(records, wrong, types)) if wrong else (), [])
    for (name, group), known_ranks in zip(records.shards.items(), found, strict=True):
        offered = [ranks[i] for i in group]
        if not wrong and min(offered) > stale and _all_newer(offered, known_ranks):
            decision.newer.extend(group)
            named = zip([fields[i] for i in group], offered, strict=True)
            decision.ranks.append(("HSET", name, *chain.from_iterable(named)))
            continue
        fresh: list[bytes] = []
        for i, known in zip(group, known_ranks, strict=True):
            if (wrong and keys[i] in wrong) or ranks[i] <= stale:
                continue
            if known is None or known < ranks[i]:
                decision.newer.append(i)
                fresh += (fields[i], ranks[i])
            elif repeats and known == ranks[i]:
                decision.repeated.append(i)
        if fresh:
            decision.ranks.append(("HSET", name, *fresh))
    return decision


def _all_newer(offered: Sequence[bytes], known: Sequence[bytes | None]) -> bool:
    """Tell whether every record is newer than the server's: as a rule so, and told without a look at each."""
    if None in known:
        return not any(known)
    return all(map(lt, cast(Sequence[bytes], known), offered))


def fitting(records: Records, types: Mapping[bytes, bytes]) -> tuple[Sequence[int], tuple[Rejection, ...]]:
    """Say which operations can be written where ranks do not matter, and why the others cannot.

    :param types: types of the keys that were checked.
    """
    everything = range(len(records.keys))
    wrong = _wrong(types)
    if not wrong:
        return everything, ()
    fit = [i for i in everything if records.keys[i] not in wrong]
    return fit, tuple(_wrong_types(replace(records, shards={b"": list(everything)}), wrong, types))


def _wrong(types: Mapping[bytes, bytes]) -> set[bytes]:
    return {key for key, kind in types.items() if kind not in (b"set", b"none")}


def _wrong_types(records: Records, wrong: Set[bytes], types: Mapping[bytes, bytes]) -> Iterator[Rejection]:
    for group in records.shards.values():
        for i in group:
            if (key := records.keys[i]) in wrong:
                yield wrong_type(i, key, types[key])


def wrong_type(position: int, key: bytes, found: bytes) -> Rejection:
    """Reject an operation on a key that holds something else than a set."""
    return Rejection(position, f"WRONGTYPE key {key[:100]!r} holds a {found.decode()}, not a set")


class Target(Protocol):
    """What a record is. Collections of operations hold templates with nothing but ``{id}`` left."""

    repeats: bool
    """Whether an operation that the sink has already is sent again. Where a command may fail alone, its
    rank may be recorded without it; then a repetition of the operation heals it."""

    only: bytes
    """The type that a key must have if it is there; empty where commands take keys of any type."""

    def refuse(self, operations: Operations, reasons: Reasons) -> None:
        """Note the operations that can never be taken."""

    def locate(self, operations: Operations) -> Records:
        """Say where the records lie, and nothing of ranks."""

    def place(self, operations: Operations, shards: int | None) -> Records:
        """Say where the records and their ranks lie.

        :param shards: how many there are; None in a cluster, where the slots are the shards.
        """

    def checked_keys(self, records: Records) -> list[bytes]:
        """Return the keys whose type must be looked at."""

    def longest_part(self, record: bytes, document: bytes | None) -> int:
        """Return the bytes of the longest part of an operation that travels in one piece."""

    def writes(self, records: Records, positions: Sequence[int]) -> list[Command]:
        """Return the commands that bring records to what the operations say."""


class StringTarget:
    """Each record is a string, its document. SET and UNLINK take keys of any type, and neither fails alone."""

    repeats = False
    only = b""

    def refuse(self, operations: Operations, reasons: Reasons) -> None:
        """Refuse records that are too long, and keys that are the sink's own."""
        refuse_lengths(operations, reasons, id_bytes=MAX_BYTES // 2, document_bytes=MAX_BYTES)
        _refuse_reserved(operations.collections, operations.ids, reasons)

    def locate(self, operations: Operations) -> Records:
        """The keys are all that there is."""
        return Records(
            keys_of(operations.collections, operations.ids), (), operations.documents, (), (), {}, operations.ttls
        )

    def place(self, operations: Operations, shards: int | None) -> Records:
        """The key is also the rank's field."""
        found, ranks = self.locate(operations), rank_texts(operations.ranks())
        groups = _groups(found.keys, operations.ids, shards, b"xq:rank:")
        return replace(found, fields=found.keys, ranks=ranks, shards=groups)

    def checked_keys(self, records: Records) -> list[bytes]:
        """None."""
        return []

    def longest_part(self, record: bytes, document: bytes | None) -> int:
        """The document is one part."""
        return len(document or b"")

    def writes(self, records: Records, positions: Sequence[int]) -> list[Command]:
        """One MSET for the puts, one UNLINK for the deletes, a SET for each put with a time to live."""
        keys, documents = records.keys, records.documents
        if len(positions) == len(keys) and None not in documents and records.ttls is None:  # no need to look at each
            pairs: list[bytes | str] = ["MSET"] * (2 * len(keys) + 1)
            pairs[1::2], pairs[2::2] = keys, cast(Sequence[bytes], documents)
            return [tuple(pairs)]
        passing: list[Command] = []
        put: list[bytes | str] = ["MSET"]
        gone: list[bytes | str] = ["UNLINK"]
        for i in positions:
            document = documents[i]
            if document is None:
                gone.append(keys[i])
            elif records.ttls is not None and (milliseconds := records.milliseconds(i)) is not None:
                passing.append(("SET", keys[i], document, "PX", milliseconds))
            else:
                put += (keys[i], document)
        return [tuple(command) for command in (put, gone) if len(command) > 1] + passing


class HashTarget(StringTarget):
    """Each record is a hash: the fields of its document, a JSON object. It is replaced as a whole."""

    def refuse(self, operations: Operations, reasons: Reasons) -> None:
        """Refuse documents that have no fields, too."""
        super().refuse(operations, reasons)
        for i, document in enumerate(operations.documents):
            if document is not None and i not in reasons:
                try:
                    fields_of(document)
                except ValueError as error:
                    reasons[i] = str(error)

    def longest_part(self, record: bytes, document: bytes | None) -> int:
        """Each name and each value of a field is one."""
        return 0 if document is None else max(map(len, fields_of(document)))

    def writes(self, records: Records, positions: Sequence[int]) -> list[Command]:
        """One UNLINK for all, so that no field of before stays; then an HSET for each put."""
        commands: list[Command] = [("UNLINK", *[records.keys[i] for i in positions])] if positions else []
        for i in positions:
            if (document := records.documents[i]) is not None:
                fields = fields_of(document)
                starts = range(0, len(fields), _MOST_WORDS)
                commands += [("HSET", records.keys[i], *fields[start : start + _MOST_WORDS]) for start in starts]
                if (milliseconds := records.milliseconds(i)) is not None:
                    commands.append(("PEXPIRE", records.keys[i], milliseconds))
        return commands


class SetTarget:
    """Each record is a member of a set: the id ``<set>/<member>``. Documents are not kept."""

    repeats = True
    only = b"set"

    def refuse(self, operations: Operations, reasons: Reasons) -> None:
        """Refuse ids that name no member, keys that are the sink's own, and members that are to expire."""
        refuse_lengths(operations, reasons, id_bytes=MAX_BYTES // 2, document_bytes=MAX_BYTES)
        _refuse_reserved(operations.collections, operations.ids, reasons)
        for i, ttl in enumerate(operations.ttls or ()):
            if ttl is not None:
                reasons.setdefault(i, "a member of a set has no time to live of its own")
        for i, record in enumerate(operations.ids):
            name, slash, _ = record.partition(b"/")
            if not slash:
                reasons.setdefault(i, f"the id of a member of a set is '<set>/<member>', found {record[:100]!r}")
            elif b"\0" in name:
                reasons.setdefault(i, "the name of a set holds no NUL")

    def locate(self, operations: Operations) -> Records:
        """The set's key, and the member."""
        split = [record.partition(b"/") for record in operations.ids]
        keys = keys_of(operations.collections, [name for name, _, _ in split])
        return Records(keys, [member for _, _, member in split], operations.documents, (), (), {})

    def place(self, operations: Operations, shards: int | None) -> Records:
        """The set's key and the member, with a NUL between them, are the rank's field."""
        found, ranks = self.locate(operations), rank_texts(operations.ranks())
        fields = [key + b"\0" + member for key, member in zip(found.keys, found.members, strict=True)]
        groups = _groups(found.keys, operations.ids, shards, b"xq:member:")
        return replace(found, fields=fields, ranks=ranks, shards=groups)

    def checked_keys(self, records: Records) -> list[bytes]:
        """All sets: a command on another type would fail alone, in the middle of a transaction, without a roll-back."""
        if not records.shards:  # no ranks: all records are meant
            return list(dict.fromkeys(records.keys))
        return list(dict.fromkeys(records.keys[i] for group in records.shards.values() for i in group))

    def longest_part(self, record: bytes, document: bytes | None) -> int:
        """Of the id only, since documents are not kept."""
        return len(record)

    def writes(self, records: Records, positions: Sequence[int]) -> list[Command]:
        """One SADD and one SREM for each set."""
        commands: dict[tuple[str, bytes], list[bytes]] = {}
        for i in positions:
            verb = "SREM" if records.documents[i] is None else "SADD"
            commands.setdefault((verb, records.keys[i]), []).append(records.members[i])
        return [(verb, key, *members) for (verb, key), members in commands.items()]


TARGETS: dict[str, Target] = {"string": StringTarget(), "hash": HashTarget(), "set": SetTarget()}


def _groups(keys: Sequence[bytes], ids: Sequence[bytes], shards: int | None, name: bytes) -> dict[bytes, Sequence[int]]:
    if shards is None:
        return group_by_slot(keys, name + b"{%b}")
    return group_by_shard(ids, shards, name + b"%d")


def _refuse_reserved(templates: Sequence[str], ids: Sequence[bytes], reasons: Reasons) -> None:
    suspects = {t for t in set(templates) if RESERVED.startswith(t.partition("{id}")[0].encode()[: len(RESERVED)])}
    if suspects:
        for i, key in enumerate(keys_of(templates, ids)):
            if key.startswith(RESERVED):
                reasons.setdefault(i, f"key {key[:100]!r}: keys that begin with xq: are the sink's own")
