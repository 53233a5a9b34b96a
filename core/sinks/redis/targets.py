"""What a record is in Redis (a string, a hash or a member of a set), and the commands that write it (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, Protocol, cast

import orjson

from export_queue.core.sinks.batch import Reasons
from export_queue.core.sinks.json_texts import texts_of
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import Rejection
from export_queue.core.sinks.redis.layout import RESERVED, affixes_of, keys_of, packed_keys_of
from export_queue.core.sinks.redis.packing import (
    Command,
    Packed,
    joined,
    pack_words,
    packed,
    with_pairs,
    with_words,
    word_of,
)

Kind = Literal["string", "hash", "set"]
_JSON_TYPES = {list: "array", str: "text", int: "number", float: "number", bool: "truth value", type(None): "null"}
_MOST_WORDS = 2000
"""Maximum number of names and values in one HSET: a script cannot call a command of more than some thousand words."""
_MSET, _SET, _UNLINK, _HSET, _PEXPIRE, _SADD, _SREM = map(packed, "MSET SET UNLINK HSET PEXPIRE SADD SREM".split())


@dataclass(frozen=True, slots=True)
class Records:
    """Operations on distinct records, as columns of packed words."""

    keys: Sequence[bytes]
    """The key of each record, or of the set that it is a member of."""
    fields: Sequence[bytes]
    """The field that holds the rank of each record in the hash of its shard."""
    members: Sequence[bytes]
    """The member of a set that each record is; empty for other records."""
    documents: Sequence[bytes | None]
    """Not packed."""
    ttls: Sequence[float | None] | None = None

    def milliseconds(self, position: int) -> bytes | None:
        """Return the time to live of a record; None if it has none."""
        ttl = self.ttls[position] if self.ttls is not None else None
        return None if ttl is None else b"%d" % max(1, round(ttl * 1000))


def wrong_type(position: int, key: bytes, found: bytes) -> Rejection:
    """Reject an operation on a packed key that holds no set."""
    return Rejection(position, f"WRONGTYPE key {word_of(key)[:100]!r} holds a {found.decode()}, not a set")


class Target(Protocol):
    """What a record is. The collections of operations are key templates with only ``$id`` left."""

    repeats: bool
    """Whether an operation whose rank is recorded already is sent again. If a command can fail alone, its rank may have
    been recorded without it, and the repetition corrects that."""

    only: bytes
    """The type that an existing key must have; empty if the commands accept keys of any type."""

    hashes: bytes
    """Prefix of the names of the hashes of ranks."""

    def refuse(self, operations: Operations, reasons: Reasons) -> None:
        """Add the operations that can never be written to the reasons."""

    def locate(self, operations: Operations) -> Records:
        """Return the keys and fields of the records and their ranks."""

    def checked_keys(self, records: Records) -> Sequence[bytes]:
        """Return the packed keys whose type must be read."""

    def longest_part(self, record: bytes, document: bytes | None) -> int:
        """Return the bytes of the longest word that an operation sends, apart from its key."""

    def writes(self, records: Records, positions: Sequence[int]) -> list[Packed]:
        """Return the commands that write the operations at some positions."""

    def normal(self, document: bytes) -> bytes:
        """Return the normal form of a document, in which it is compared."""

    def read(self, key: bytes, member: bytes) -> Command:
        """Return the command that reads a record."""

    def document_of(self, reply: object) -> bytes | None:
        """Return the normal form of the document in a reply to :meth:`read`; None if there is none."""

    def id_of_field(self, field: bytes, before: bytes, after: bytes) -> bytes | None:
        """Return the id of the record whose rank is in a field; None if its key does not have these affixes."""

    def listing(self, key: bytes) -> Sequence[Command]:
        """Return the command that lists the records of a key, if there may be several."""

    def ids_of(self, keys: Sequence[bytes], before: bytes, after: bytes, replies: Sequence[object]) -> list[bytes]:
        """Return the ids of the records of keys with these affixes, from the replies to :meth:`listing`."""


class StringTarget:
    """Each record is a string, its document. SET and UNLINK accept keys of any type, and neither can fail alone."""

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
        return len(document or b"")

    def writes(self, records: Records, positions: Sequence[int]) -> list[Packed]:
        keys, documents = records.keys, records.documents
        if len(positions) == len(keys) and records.ttls is None and all(documents):  # the usual case
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

    def normal(self, document: bytes) -> bytes:
        return document

    def read(self, key: bytes, member: bytes) -> Command:
        return ("GET", key)

    def document_of(self, reply: object) -> bytes | None:
        return reply if isinstance(reply, bytes) else None

    def id_of_field(self, field: bytes, before: bytes, after: bytes) -> bytes | None:
        return _between(field, before, after)

    def listing(self, key: bytes) -> Sequence[Command]:
        return ()

    def ids_of(self, keys: Sequence[bytes], before: bytes, after: bytes, replies: Sequence[object]) -> list[bytes]:
        found = (_between(key, before, after) for key in keys)
        return [record for record in found if record is not None]


class HashTarget(StringTarget):
    """Each record is a hash with the fields of its document, a JSON object. It is replaced as a whole."""

    def refuse(self, operations: Operations, reasons: Reasons) -> None:
        super().refuse(operations, reasons)
        for i, document in enumerate(operations.documents):
            if document is not None and i not in reasons:
                try:
                    fields_of(document)
                except ValueError as error:
                    reasons[i] = str(error)

    def longest_part(self, record: bytes, document: bytes | None) -> int:
        return 0 if document is None else max(map(len, fields_of(document)))

    def writes(self, records: Records, positions: Sequence[int]) -> list[Packed]:
        # unlink first, so that no earlier field remains
        commands = [with_words(_UNLINK, [records.keys[i] for i in positions])] if positions else []
        for i in positions:
            if (document := records.documents[i]) is not None:
                key, fields = [records.keys[i]], pack_words(fields_of(document))
                starts = range(0, len(fields), _MOST_WORDS)
                commands += [with_words(_HSET, key + fields[start : start + _MOST_WORDS]) for start in starts]
                if (milliseconds := records.milliseconds(i)) is not None:
                    commands.append(joined([with_words(_PEXPIRE, key), packed(milliseconds)]))
        return commands

    def normal(self, document: bytes) -> bytes:
        return _normal_fields(fields_of(document))

    def read(self, key: bytes, member: bytes) -> Command:
        return ("HGETALL", key)

    def document_of(self, reply: object) -> bytes | None:
        pairs = list(chain.from_iterable(reply.items())) if isinstance(reply, dict) else reply
        return _normal_fields(pairs) if pairs and isinstance(pairs, list) else None


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
        # the field of the rank is the key, a NUL and the member
        split = [record.partition(b"/") for record in operations.ids]
        keys = keys_of(operations.collections, [name for name, _, _ in split])
        members = [member for _, _, member in split]
        fields = [key + b"\0" + member for key, member in zip(keys, members, strict=True)]
        return Records(pack_words(keys), pack_words(fields), pack_words(members), operations.documents)

    def checked_keys(self, records: Records) -> Sequence[bytes]:
        # a command on another type would fail alone in the transaction, which Redis does not roll back
        return list(dict.fromkeys(records.keys))

    def longest_part(self, record: bytes, document: bytes | None) -> int:
        return len(record)

    def writes(self, records: Records, positions: Sequence[int]) -> list[Packed]:
        commands: dict[tuple[bool, bytes], list[bytes]] = {}
        for i in positions:
            commands.setdefault((records.documents[i] is None, records.keys[i]), [records.keys[i]]).append(
                records.members[i]
            )
        return [with_words(_SREM if is_delete else _SADD, words) for (is_delete, _), words in commands.items()]

    def normal(self, document: bytes) -> bytes:
        return b""

    def read(self, key: bytes, member: bytes) -> Command:
        return ("SISMEMBER", key, member)

    def document_of(self, reply: object) -> bytes | None:
        return b"" if reply == 1 else None

    def id_of_field(self, field: bytes, before: bytes, after: bytes) -> bytes | None:
        key, _, member = field.partition(b"\0")
        name = _between(key, before, after)
        return None if name is None else name + b"/" + member

    def listing(self, key: bytes) -> Sequence[Command]:
        return [("SMEMBERS", key)]

    def ids_of(self, keys: Sequence[bytes], before: bytes, after: bytes, replies: Sequence[object]) -> list[bytes]:
        return [
            name + b"/" + member
            for key, members in zip(keys, replies, strict=True)
            if (name := _between(key, before, after)) is not None and isinstance(members, list | set)
            for member in members
        ]


TARGETS: dict[str, Target] = {"string": StringTarget(), "hash": HashTarget(), "set": SetTarget()}


def _refuse_reserved(templates: Sequence[str], ids: Sequence[bytes], reasons: Reasons) -> None:
    suspects = {t for t in set(templates) if RESERVED.startswith(affixes_of(t)[0][: len(RESERVED)])}
    if suspects:
        for i, key in enumerate(keys_of(templates, ids)):
            if key.startswith(RESERVED):
                reasons.setdefault(i, f"key {key[:100]!r}: keys that begin with xq: are the sink's own")


def _between(key: bytes, before: bytes, after: bytes) -> bytes | None:
    fits = key.startswith(before) and key.endswith(after) and len(key) >= len(before) + len(after)
    return key[len(before) : len(key) - len(after)] if fits else None


def _normal_fields(fields: Sequence[bytes]) -> bytes:
    return repr(sorted(zip(fields[::2], fields[1::2], strict=True))).encode()


def fields_of(document: bytes) -> list[bytes]:
    """Return the names and values of a document's fields in turn, for a Redis hash.

    A string becomes its text. Any other value becomes its JSON as it is in the document, so that no digit is lost. Null
    fields are left out.

    :raises ValueError: the document is not a JSON object with a field, or is nested too deeply.
    """
    try:
        found = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the document is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"the document is a JSON {_JSON_TYPES[type(found)]}, expected an object")
    # orjson turns an integer of more than 64 bits into a float
    texts = texts_of(document) if any(type(v) in (float, list, dict) for v in found.values()) else {}
    fields: list[bytes] = []
    for name, value in found.items():
        if value is not None:
            fields += (name.encode(), _text(value, texts.get(name, "")))
    if not fields:
        raise ValueError("the document has no field: a hash in Redis has at least one")
    return fields


def _text(value: Any, raw: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return b"%d" % value if isinstance(value, int) else raw.encode()
