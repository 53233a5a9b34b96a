"""How records and their ranks lie in Redis (pure).

============================  ==============================================================================
key                           holds
============================  ==============================================================================
the user's                    a string, or a plain set of members
``xq:control``                hash: number of this layout, number of shards, incarnation, floor, stores that feed it
``xq:queue:<queue>``          hash: the queue's control record; in a cluster also the incarnations of all primaries
``xq:waited``                 a string that is written again and again, where replicas are waited for
``xq:rank:<shard>``           hash: key of a string → its rank
``xq:member:<shard>``         hash: key of a set, NUL, member → its rank
============================  ==============================================================================

In a cluster a shard is a slot, that of the record's own key, so that record and rank lie on one node and
change together. Its hashes are ``xq:rank:{<tag>}`` and ``xq:member:{<tag>}``, where the tag is the smallest
number whose text belongs to the slot, and their field ``xq:floor`` is the highest stale rank. Each primary
has an incarnation of its own in ``xq:control:{<tag>}``.

A rank is 20 decimal digits, compared as text: a program that takes numbers for doubles cannot blur it. An even
rank is a tombstone. The shard follows from the record's id alone, by the function that also gives the
bucket of a queue's key, so that drains of different units do not meet where ids are keys.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Iterable, Sequence
from functools import cache

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from export_queue.core.errors import SinkConfigurationError
from export_queue.core.sinks import naming
from export_queue.core.sinks.control import ControlRecord
from export_queue.core.sinks.redis.packing import Command, pack_words

RESERVED = b"xq:"
"""The beginning of the sink's own keys; no key of a user has it."""
CONTROL = b"xq:control"
RANK_HASHES = (b"xq:rank:", b"xq:member:")
"""Names of the hashes of ranks of each kind of record, before the shard or the slot's tag."""
WAITED = b"xq:waited"
"""The key that is written before a wait for replicas; in a cluster one for each primary."""
NUMBER = "1"
"""Of this layout; another one is not touched."""
NUMBER_IN_CLUSTERS = "2"
DEFAULT_SHARDS = 1009
SLOTS = REDIS_CLUSTER_HASH_SLOTS
MAX_BYTES = 512 << 20
"""The longest string that Redis takes."""

_COLLECTION = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_PART = re.compile(r"[^A-Za-z0-9_.-]")
"""A character that no collection has: where one stands between collection and id, a key can be parted again."""


def check_template(template: str) -> str:
    """Check a template of keys.

    :returns: the template in its normal form.
    :raises SinkConfigurationError: no ``$id`` or several, another field, keys that are the sink's, or keys that do not
        tell where the collection ends and the id begins.
    """
    parts = naming.check_fields(template, ["id", naming.COLLECTION], what="key")
    fields = [field for _, field in parts[:-1]]
    if fields.count("id") != 1 or fields.count(naming.COLLECTION) > 1:
        raise SinkConfigurationError(
            f"key template {template!r}: expected $id once and perhaps $collection, "
            f"found {', '.join(f'${field}' for field in fields) or 'neither'}",
            hint="in a shell a template stands between single quotes: 'key=order:$id'",
        )
    if parts[0][0].encode().startswith(RESERVED):
        raise SinkConfigurationError(f"key template {template!r}: keys that begin with xq: are the sink's own")
    if len(fields) == 2 and not _PART.search(between := parts[1][0]):
        raise SinkConfigurationError(
            f"key template {template!r}: {between or 'nothing'!r} between collection and id may be part of both, so"
            " that two records could have one key",
            hint="put a character between them that no collection has, such as $collection:$id",
        )
    return naming.written(parts)


def fill_collections(template: str, collections: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Put collections into a template of keys.

    Only plain names, which lack a character that the template has between collection and id: collection ``a`` with the
    id ``b:c`` and collection ``a:b`` with the id ``c`` would be one key with two ranks.

    :returns: by collection, the template with nothing but ``$id`` left, and why a collection is refused.
    """
    filled: dict[str, str] = {}
    refused: dict[str, str] = {}
    parts, is_fixed = naming.parts_of(template), naming.is_fixed(template)
    for name in collections:
        if is_fixed:
            filled[name] = template
        elif _COLLECTION.fullmatch(name):
            filled[name] = _with_collection(parts, name)
        else:
            refused[name] = f"collection {name!r}: expected 1 to 128 of letters, digits, _ . -"
    return filled, refused


def _with_collection(parts: Sequence[tuple[str, str]], name: str) -> str:
    merged = [("", "")]
    for text, field in parts:
        before = merged.pop()[0] + text
        merged += [(before + name, "")] if field == naming.COLLECTION else [(before, field), ("", "")]
    return naming.written(merged[:-1])


def keys_of(templates: Sequence[str], ids: Sequence[bytes]) -> list[bytes]:
    """Return the key of each record.

    :param templates: of each record, with nothing but ``$id`` left.
    :param ids: the texts that take the place of ``$id``.
    """
    affixes = {template: affixes_of(template) for template in set(templates)}
    return [affixes[t][0] + record + affixes[t][1] for t, record in zip(templates, ids, strict=True)]


def packed_keys_of(templates: Sequence[str], ids: Sequence[bytes]) -> list[bytes]:
    """Return the key of each record, packed; see :func:`keys_of`."""
    if templates.count(templates[0]) < len(templates):
        return pack_words(keys_of(templates, ids))
    before, after = affixes_of(templates[0])
    extra, lengths = len(before) + len(after), list(map(len, ids))
    heads = {length: b"\r\n$%d\r\n%b" % (length + extra, before) for length in set(lengths)}
    return [heads[length] + record + after for length, record in zip(lengths, ids, strict=True)]


def affixes_of(template: str) -> tuple[bytes, bytes]:
    """Return what stands before and after the id in each key of a template."""
    (before, _), (after, _) = naming.parts_of(template)
    return before.encode(), after.encode()


def group_by_slot(keys: Sequence[bytes], name: bytes) -> dict[bytes, Sequence[int]]:
    """Return the positions of the records of each slot of a cluster, by the hash that holds their ranks.

    :param keys: of the records; they say where a record lies.
    :param name: of the hashes, with a ``%b`` for the slot's tag.
    """
    groups: dict[int, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key_slot(key), []).append(i)
    tags = slot_tags()
    return {name % tags[slot]: positions for slot, positions in groups.items()}


@cache
def slot_tags() -> Sequence[bytes]:
    """Return for each slot the smallest number whose text belongs to it."""
    tags = [b""] * SLOTS
    missing, number = SLOTS, 0
    while missing:
        text = b"%d" % number
        slot = crc_hqx(text, 0) % SLOTS
        if not tags[slot]:
            tags[slot] = text
            missing -= 1
        number += 1
    return tags


def rank_hashes(shards: int) -> list[bytes]:
    """Return the names of all hashes of ranks of a single server."""
    return [b"%b%d" % (kind, shard) for shard in range(shards) for kind in RANK_HASHES]


def rank_hashes_of_slots() -> list[bytes]:
    """Return the names of all hashes of ranks of a cluster."""
    return [b"%b{%b}" % (kind, tag) for tag in slot_tags() for kind in RANK_HASHES]


def key_in_slot(name: bytes, slot: int) -> bytes:
    """Return a key of ours that lies in a slot."""
    return b"%b:{%b}" % (name, slot_tags()[slot])


def rank_texts(ranks: Sequence[int]) -> list[bytes]:
    """Write ranks so that text order is their order."""
    texts = {rank: b"%020d" % rank for rank in set(ranks)}  # those of one transaction are equal
    return [texts[rank] for rank in ranks]


def control_key(queue_id: str) -> bytes:
    """Return the key of a queue's control record."""
    return f"xq:queue:{queue_id}".encode()


def read_control(fields: Sequence[bytes | None]) -> ControlRecord | None:
    """Read a control record from the values of ``CONTROL_FIELDS``."""
    store, fence = fields
    if store is None or fence is None:
        return None
    return ControlRecord(store.decode(), int(fence))


CONTROL_FIELDS = ("store", "fence")


def write_control(record: ControlRecord) -> Command:
    """Return the fields of a control record and their values; numbers as decimal text."""
    return ("store", record.store_id, "fence", str(record.fence))
