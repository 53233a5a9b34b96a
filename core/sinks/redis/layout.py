"""The keys under which records, their ranks and the sink's own data are stored in Redis (pure).

============================  ==============================================================================
key                           holds
============================  ==============================================================================
the user's                    a string, or a plain set of members
``xq:control``                hash: layout number, number of shards, incarnation, floor, stores that feed it
``xq:queue:<queue>``          hash: the queue's control record; in a cluster also the incarnations of all primaries
``xq:waited``                 a string that is written before each wait for replicas
``xq:rank:<shard>``           hash: key of a string → its rank
``xq:member:<shard>``         hash: key of a set, NUL, member → its rank
============================  ==============================================================================

In a cluster a shard is the slot of the record's own key, so that record and rank are on one node and change
together. Its hashes are ``xq:rank:{<tag>}`` and ``xq:member:{<tag>}``, where the tag is the smallest number whose text
belongs to the slot. Their field ``xq:floor`` is the highest stale rank. Each primary has its own incarnation in
``xq:control:{<tag>}``.

A rank is 20 decimal digits and is compared as text: no program can lose digits by reading it as a double. An even rank
is a tombstone. The shard is computed from the record's id alone, with the function that computes the bucket of a
queue's key. So drains of different units use different shards if ids are keys.
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
"""Prefix of the sink's own keys. No key of a user may have it."""
CONTROL = b"xq:control"
RANK_HASHES = (b"xq:rank:", b"xq:member:")
"""Prefixes of the hashes of ranks for each kind of record, before the shard or the slot's tag."""
WAITED = b"xq:waited"
"""The key that is written before a wait for replicas; one per primary in a cluster."""
NUMBER = "1"
"""Number of this layout. Databases with another layout are refused."""
NUMBER_IN_CLUSTERS = "2"
DEFAULT_SHARDS = 1009
SLOTS = REDIS_CLUSTER_HASH_SLOTS
MAX_BYTES = 512 << 20
"""The longest string that Redis accepts."""

_COLLECTION = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_PART = re.compile(r"[^A-Za-z0-9_.-]")
"""A character that no collection has. Between collection and id, it makes a key unambiguous."""


def check_template(template: str) -> str:
    """Check a template of keys.

    :returns: the template in its normal form.
    :raises SinkConfigurationError: there is not exactly one ``$id``, there is another field, keys would be the sink's
        own, or two records could have the same key.
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
    """Fill collections into a template of keys.

    Only plain names are accepted: otherwise collection ``a`` with the id ``b:c`` and collection ``a:b`` with the id
    ``c`` would be one key with two ranks.

    :returns: by collection, the template with only ``$id`` left, and the reasons why collections are refused.
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

    :param templates: template of each record, with only ``$id`` left.
    :param ids: the texts that replace ``$id``.
    """
    affixes = {template: affixes_of(template) for template in set(templates)}
    return [affixes[t][0] + record + affixes[t][1] for t, record in zip(templates, ids, strict=True)]


def packed_keys_of(templates: Sequence[str], ids: Sequence[bytes]) -> list[bytes]:
    """Return the packed key of each record; see :func:`keys_of`."""
    if templates.count(templates[0]) < len(templates):
        return pack_words(keys_of(templates, ids))
    before, after = affixes_of(templates[0])
    extra, lengths = len(before) + len(after), list(map(len, ids))
    heads = {length: b"\r\n$%d\r\n%b" % (length + extra, before) for length in set(lengths)}
    return [heads[length] + record + after for length, record in zip(lengths, ids, strict=True)]


def affixes_of(template: str) -> tuple[bytes, bytes]:
    """Return the texts before and after the id in the keys of a template."""
    (before, _), (after, _) = naming.parts_of(template)
    return before.encode(), after.encode()


def group_by_slot(keys: Sequence[bytes], name: bytes) -> dict[bytes, Sequence[int]]:
    """Group the positions of records by the hash of their slot that holds their ranks.

    :param name: name of the hashes, with ``%b`` for the slot's tag.
    """
    groups: dict[int, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key_slot(key), []).append(i)
    tags = slot_tags()
    return {name % tags[slot]: positions for slot, positions in groups.items()}


@cache
def slot_tags() -> Sequence[bytes]:
    """Return, for each slot, the smallest number whose text belongs to it."""
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
    """Return a key of the sink that belongs to a slot."""
    return b"%b:{%b}" % (name, slot_tags()[slot])


def rank_texts(ranks: Sequence[int]) -> list[bytes]:
    """Return ranks as texts that sort like the ranks."""
    texts = {rank: b"%020d" % rank for rank in set(ranks)}  # many are equal: one transaction has one sequence
    return [texts[rank] for rank in ranks]


def control_key(queue_id: str) -> bytes:
    return f"xq:queue:{queue_id}".encode()


def read_control(fields: Sequence[bytes | None]) -> ControlRecord | None:
    """Read a control record from the values of ``CONTROL_FIELDS``."""
    store, fence = fields
    if store is None or fence is None:
        return None
    return ControlRecord(store.decode(), int(fence))


CONTROL_FIELDS = ("store", "fence")


def write_control(record: ControlRecord) -> Command:
    """Return the fields and values of a control record."""
    return ("store", record.store_id, "fence", str(record.fence))
