"""What a record is in Redis, a string or a member of a set, and the commands that bring it about (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal, Protocol, cast

from export_queue.core.sinks.batch import Reasons, refuse_lengths
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import Rejection
from export_queue.core.sinks.redis.layout import MAX_BYTES, RESERVED, Command, group_by_shard, keys_of, rank_texts

Kind = Literal["string", "set"]


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
    shards: dict[bytes, list[int]]
    """Positions of the records by the hash that holds their ranks."""

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
    records: Records, found: Sequence[Sequence[bytes | None]], types: Mapping[bytes, bytes], *, repeats: bool
) -> Decision:
    """Compare operations with what the server holds; strictly, since an equal rank is a repetition.

    :param records: the operations.
    :param found: ranks in the server, shard by shard; None where a record has none.
    :param types: types of the keys that were checked: anything but a set is wrong.
    :param repeats: whether an operation of the recorded rank is sent again.
    """
    wrong = _wrong(types)
    keys, fields, ranks = records.keys, records.fields, records.ranks
    decision = Decision([], [], tuple(_wrong_types(records, wrong, types)) if wrong else (), [])
    for (name, group), known_ranks in zip(records.shards.items(), found, strict=True):
        fresh: list[bytes] = []
        for i, known in zip(group, known_ranks, strict=True):
            if wrong and keys[i] in wrong:
                continue
            if known is None or known < ranks[i]:
                decision.newer.append(i)
                fresh += (fields[i], ranks[i])
            elif repeats and known == ranks[i]:
                decision.repeated.append(i)
        if fresh:
            decision.ranks.append(("HSET", name, *fresh))
    return decision


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
                yield Rejection(i, f"WRONGTYPE key {key[:100]!r} holds a {types[key].decode()}, not a set")


class Target(Protocol):
    """What a record is. Collections of operations hold templates with nothing but ``{id}`` left."""

    repeats: bool
    """Whether an operation that the sink has already is sent again. Where a command may fail alone, its
    rank may be recorded without it; then sending again what is recorded is what heals it."""

    def refuse(self, operations: Operations, reasons: Reasons) -> None:
        """Note the operations that can never be taken."""

    def locate(self, operations: Operations) -> Records:
        """Say where the records lie, and nothing of ranks."""

    def place(self, operations: Operations, shards: int) -> Records:
        """Say where the records and their ranks lie."""

    def checked_keys(self, records: Records) -> list[bytes]:
        """Return the keys whose type must be looked at."""

    def writes(self, records: Records, positions: Sequence[int]) -> list[Command]:
        """Return the commands that bring records to what the operations say."""


class StringTarget:
    """Each record is a string, its document. SET and UNLINK take keys of any type, and neither fails alone."""

    repeats = False

    def refuse(self, operations: Operations, reasons: Reasons) -> None:
        """Refuse what is too long, and keys that are the sink's own."""
        refuse_lengths(operations, reasons, id_bytes=MAX_BYTES // 2, document_bytes=MAX_BYTES)
        _refuse_reserved(operations.collections, operations.ids, reasons)

    def locate(self, operations: Operations) -> Records:
        """The keys are all that there is."""
        return Records(keys_of(operations.collections, operations.ids), (), operations.documents, (), (), {})

    def place(self, operations: Operations, shards: int) -> Records:
        """The key is also the rank's field."""
        found, ranks = self.locate(operations), rank_texts(operations.ranks())
        groups = group_by_shard(operations.ids, shards, b"xq:rank:%d")
        return replace(found, fields=found.keys, ranks=ranks, shards=groups)

    def checked_keys(self, records: Records) -> list[bytes]:
        """None."""
        return []

    def writes(self, records: Records, positions: Sequence[int]) -> list[Command]:
        """One MSET for the puts, one UNLINK for the deletes."""
        keys, documents = records.keys, records.documents
        if len(positions) == len(keys) and None not in documents:  # no need to look at each
            pairs: list[bytes | str] = ["MSET"] * (2 * len(keys) + 1)
            pairs[1::2], pairs[2::2] = keys, cast(Sequence[bytes], documents)
            return [tuple(pairs)]
        put: list[bytes | str] = ["MSET"]
        gone: list[bytes | str] = ["UNLINK"]
        for i in positions:
            document = documents[i]
            if document is None:
                gone.append(keys[i])
            else:
                put += (keys[i], document)
        return [tuple(command) for command in (put, gone) if len(command) > 1]


class SetTarget:
    """Each record is a member of a set: the id ``<set>/<member>``. Documents are not kept."""

    repeats = True

    def refuse(self, operations: Operations, reasons: Reasons) -> None:
        """Refuse ids that name no member, and keys that are the sink's own."""
        refuse_lengths(operations, reasons, id_bytes=MAX_BYTES // 2, document_bytes=MAX_BYTES)
        _refuse_reserved(operations.collections, operations.ids, reasons)
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

    def place(self, operations: Operations, shards: int) -> Records:
        """The set's key and the member, with a NUL between them, are the rank's field."""
        found, ranks = self.locate(operations), rank_texts(operations.ranks())
        fields = [key + b"\0" + member for key, member in zip(found.keys, found.members, strict=True)]
        groups = group_by_shard(operations.ids, shards, b"xq:member:%d")
        return replace(found, fields=fields, ranks=ranks, shards=groups)

    def checked_keys(self, records: Records) -> list[bytes]:
        """All sets: what is none would fail alone, in the middle of a transaction that is not rolled back."""
        if not records.shards:  # no ranks: all records are meant
            return list(dict.fromkeys(records.keys))
        return list(dict.fromkeys(records.keys[i] for group in records.shards.values() for i in group))

    def writes(self, records: Records, positions: Sequence[int]) -> list[Command]:
        """One SADD and one SREM for each set."""
        commands: dict[tuple[str, bytes], list[bytes]] = {}
        for i in positions:
            verb = "SREM" if records.documents[i] is None else "SADD"
            commands.setdefault((verb, records.keys[i]), []).append(records.members[i])
        return [(verb, key, *members) for (verb, key), members in commands.items()]


TARGETS: dict[str, Target] = {"string": StringTarget(), "set": SetTarget()}


def _refuse_reserved(templates: Sequence[str], ids: Sequence[bytes], reasons: Reasons) -> None:
    suspects = {t for t in set(templates) if RESERVED.startswith(t.partition("{id}")[0].encode()[: len(RESERVED)])}
    if suspects:
        for i, key in enumerate(keys_of(templates, ids)):
            if key.startswith(RESERVED):
                reasons.setdefault(i, f"key {key[:100]!r}: keys that begin with xq: are the sink's own")
