"""What a record is in Redis, a string, a hash or a member of a set, and the commands that bring it about (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from export_queue.core.sinks.batch import Reasons
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import Rejection
from export_queue.core.sinks.redis.fields import fields_of
from export_queue.core.sinks.redis.layout import RESERVED, affixes_of, keys_of, packed_keys_of
from export_queue.core.sinks.redis.packing import Packed, joined, pack_words, packed, with_pairs, with_words, word_of

Kind = Literal["string", "hash", "set"]
_MOST_WORDS = 2000
"""Names and values in one HSET: a script cannot call a command of more than some thousand words."""
_MSET, _SET, _UNLINK, _HSET, _PEXPIRE, _SADD, _SREM = map(packed, "MSET SET UNLINK HSET PEXPIRE SADD SREM".split())


@dataclass(frozen=True, slots=True)
class Records:
    """Operations on distinct records, as columns of packed words."""

    keys: Sequence[bytes]
    """The user's key of each record: a string's, or a set's."""
    fields: Sequence[bytes]
    """Under which each record's rank stands in the hash of its shard."""
    members: Sequence[bytes]
    """The member of the set that each record is; empty where records are strings."""
    documents: Sequence[bytes | None]
    """Not packed."""
    ttls: Sequence[float | None] | None = None

    def milliseconds(self, position: int) -> bytes | None:
        """Return how long a record is to be kept; None where it stays."""
        ttl = self.ttls[position] if self.ttls is not None else None
        return None if ttl is None else b"%d" % max(1, round(ttl * 1000))


def wrong_type(position: int, key: bytes, found: bytes) -> Rejection:
    """Reject an operation on a key, packed, that holds something else than a set."""
    return Rejection(position, f"WRONGTYPE key {word_of(key)[:100]!r} holds a {found.decode()}, not a set")


class Target(Protocol):
    """What a record is. Collections of operations hold templates with nothing but ``$id`` left."""

    repeats: bool
    """Whether an operation that the sink has already is sent again. Where a command may fail alone, its
    rank may be recorded without it; then a repetition of the operation heals it."""

    only: bytes
    """The type that a key must have if it is there; empty where commands take keys of any type."""

    hashes: bytes
    """The beginning of the names of the hashes of ranks."""

    def refuse(self, operations: Operations, reasons: Reasons) -> None:
        """Note the operations that can never be taken."""

    def locate(self, operations: Operations) -> Records:
        """Say where the records and their ranks lie."""

    def checked_keys(self, records: Records) -> Sequence[bytes]:
        """Return the keys whose type must be looked at, packed."""

    def longest_part(self, record: bytes, document: bytes | None) -> int:
        """Return the bytes of the longest part of an operation that travels in one piece."""

    def writes(self, records: Records, positions: Sequence[int]) -> list[Packed]:
        """Return the commands that bring records to what the operations say."""


class StringTarget:
    """Each record is a string, its document. SET and UNLINK take keys of any type, and neither fails alone."""

    repeats = False
    only = b""
    hashes = b"xq:rank:"

    def refuse(self, operations: Operations, reasons: Reasons) -> None:
        _refuse_reserved(operations.collections, operations.ids, reasons)

    def locate(self, operations: Operations) -> Records:
        # the key is also the rank's field
        keys = packed_keys_of(operations.collections, operations.ids)
        return Records(keys, keys, (), operations.documents, operations.ttls)

    def checked_keys(self, records: Records) -> Sequence[bytes]:
        return ()

    def longest_part(self, record: bytes, document: bytes | None) -> int:
        """The document is one part."""
        return len(document or b"")

    def writes(self, records: Records, positions: Sequence[int]) -> list[Packed]:
        keys, documents = records.keys, records.documents
        if len(positions) == len(keys) and records.ttls is None and all(documents):  # no need to look at each
            return [with_pairs(_MSET, keys, cast(Sequence[bytes], documents))]
        put: list[int] = []
        gone: list[bytes] = []
        passing: list[Packed] = []
        for i in positions:
            document = documents[i]
            if document is None:
                gone.append(keys[i])
            elif (milliseconds := records.milliseconds(i)) is not None:
                passing.append(joined([with_pairs(_SET, [keys[i]], [document]), packed("PX", milliseconds)]))
            else:
                put.append(i)
        found = [with_words(_UNLINK, gone)] if gone else []
        if put:
            values = cast(Sequence[bytes], [documents[i] for i in put])
            found.append(with_pairs(_MSET, [keys[i] for i in put], values))
        return found + passing


class HashTarget(StringTarget):
    """Each record is a hash: the fields of its document, a JSON object. It is replaced as a whole."""

    def refuse(self, operations: Operations, reasons: Reasons) -> None:
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

    def writes(self, records: Records, positions: Sequence[int]) -> list[Packed]:
        # all are unlinked first, so that no earlier field stays
        commands = [with_words(_UNLINK, [records.keys[i] for i in positions])] if positions else []
        for i in positions:
            if (document := records.documents[i]) is not None:
                key, fields = [records.keys[i]], pack_words(fields_of(document))
                starts = range(0, len(fields), _MOST_WORDS)
                commands += [with_words(_HSET, key + fields[start : start + _MOST_WORDS]) for start in starts]
                if (milliseconds := records.milliseconds(i)) is not None:
                    commands.append(joined([with_words(_PEXPIRE, key), packed(milliseconds)]))
        return commands


class SetTarget:
    """Each record is a member of a set: the id ``<set>/<member>``. Documents are not kept."""

    repeats = True
    only = b"set"
    hashes = b"xq:member:"

    def refuse(self, operations: Operations, reasons: Reasons) -> None:
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
        # the key and the member, with a NUL between them, are the rank's field
        split = [record.partition(b"/") for record in operations.ids]
        keys = keys_of(operations.collections, [name for name, _, _ in split])
        members = [member for _, _, member in split]
        fields = [key + b"\0" + member for key, member in zip(keys, members, strict=True)]
        return Records(pack_words(keys), pack_words(fields), pack_words(members), operations.documents)

    def checked_keys(self, records: Records) -> Sequence[bytes]:
        # all sets: a command on another type would fail alone, in the middle of a transaction, without a rollback
        return list(dict.fromkeys(records.keys))

    def longest_part(self, record: bytes, document: bytes | None) -> int:
        """Of the id only, since documents are not kept."""
        return len(record)

    def writes(self, records: Records, positions: Sequence[int]) -> list[Packed]:
        commands: dict[tuple[bool, bytes], list[bytes]] = {}
        for i in positions:
            commands.setdefault((records.documents[i] is None, records.keys[i]), [records.keys[i]]).append(
                records.members[i]
            )
        return [with_words(_SREM if is_delete else _SADD, words) for (is_delete, _), words in commands.items()]


TARGETS: dict[str, Target] = {"string": StringTarget(), "hash": HashTarget(), "set": SetTarget()}


def _refuse_reserved(templates: Sequence[str], ids: Sequence[bytes], reasons: Reasons) -> None:
    suspects = {t for t in set(templates) if RESERVED.startswith(affixes_of(t)[0][: len(RESERVED)])}
    if suspects:
        for i, key in enumerate(keys_of(templates, ids)):
            if key.startswith(RESERVED):
                reasons.setdefault(i, f"key {key[:100]!r}: keys that begin with xq: are the sink's own")
