"""How records and their ranks lie in Redis (pure).

============================  ==============================================================================
key                           holds
============================  ==============================================================================
the user's                    a string, or a plain set of members
``xq:control``                hash: number of this layout, number of shards, floor, stores that feed the database
``xq:queue:<queue>``          hash: the queue's control record
``xq:rank:<shard>``           hash: key of a string → its rank
``xq:member:<shard>``         hash: key of a set, NUL, member → its rank
============================  ==============================================================================

A rank is 20 decimal digits, compared as text: whoever takes numbers for doubles cannot blur it. An even
rank is a tombstone. The shard follows from the record's id alone, by the function that also gives the
bucket of a queue's key, so that drains of different units do not meet where ids are keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from export_queue.core.errors import SinkConfigurationError
from export_queue.core.queue import buckets_of
from export_queue.core.sinks.control import ControlRecord

Command = tuple[bytes | str, ...]

RESERVED = b"xq:"
"""What no key of a user begins with."""
CONTROL = "xq:control"
RANK_HASHES = (b"xq:rank:%d", b"xq:member:%d")
"""The hashes of ranks of each kind of record, by shard."""
NUMBER = "1"
"""Of this layout; another one is not touched."""
DEFAULT_SHARDS = 1009
MAX_BYTES = 512 << 20
"""The longest string that Redis takes."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_COLLECTION = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def check_template(template: str) -> None:
    """Check a template of keys.

    :raises SinkConfigurationError: no ``{id}`` or several, another placeholder, or keys that are the sink's.
    """
    names = _PLACEHOLDER.findall(template)
    if names.count("id") != 1 or set(names) - {"id", "collection"}:
        raise SinkConfigurationError(
            f"key template {template!r}: expected {{id}} once and perhaps {{collection}}, found {names or 'neither'}"
        )
    if template.encode().startswith(RESERVED):
        raise SinkConfigurationError(f"key template {template!r}: keys that begin with xq: are the sink's own")


def fill_collections(template: str, collections: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Put collections into a template of keys.

    Only plain names: collection ``a`` with the id ``b:c`` and collection ``a:b`` with the id ``c`` would
    be one key with two ranks.

    :returns: by collection, the template with nothing but ``{id}`` left, and why a collection is refused.
    """
    filled: dict[str, str] = {}
    refused: dict[str, str] = {}
    for name in collections:
        if "{collection}" not in template or _COLLECTION.fullmatch(name):
            filled[name] = template.replace("{collection}", name)
        else:
            refused[name] = f"collection {name!r}: expected 1 to 128 of letters, digits, _ . -"
    return filled, refused


def keys_of(templates: Sequence[str], ids: Sequence[bytes]) -> list[bytes]:
    """Return the key of each record.

    :param templates: of each record, with nothing but ``{id}`` left.
    :param ids: what takes its place.
    """
    affixes: dict[str, tuple[bytes, bytes]] = {}
    for template in set(templates):
        before, _, after = template.partition("{id}")
        affixes[template] = before.encode(), after.encode()
    if len(affixes) == 1:
        ((head, tail),) = affixes.values()
        return [head + record + tail for record in ids]
    return [affixes[t][0] + record + affixes[t][1] for t, record in zip(templates, ids, strict=True)]


def group_by_shard(ids: Sequence[bytes], shards: int, name: bytes) -> dict[bytes, list[int]]:
    """Return the positions of the records of each shard, by the hash that holds their ranks.

    :param ids: of the records.
    :param shards: how many there are.
    :param name: of the hashes, with a ``%d`` for the shard.
    """
    groups: dict[int, list[int]] = {}
    for i, shard in enumerate(buckets_of(ids, shards)):
        groups.setdefault(shard, []).append(i)
    return {name % shard: positions for shard, positions in groups.items()}


def rank_texts(ranks: Sequence[int]) -> list[bytes]:
    """Write ranks so that text order is their order."""
    return [b"%020d" % rank for rank in ranks]


def control_key(queue_id: str) -> str:
    """Return the key of a queue's control record."""
    return f"xq:queue:{queue_id}"


def read_control(fields: Sequence[bytes | None]) -> ControlRecord | None:
    """Read a control record from the values of ``CONTROL_FIELDS``."""
    store, fence, floor = fields
    if store is None or fence is None:
        return None
    return ControlRecord(store.decode(), int(fence), int(floor or 0))


CONTROL_FIELDS = ("store", "fence", "floor")


def write_control(record: ControlRecord) -> Command:
    """Return the fields of a control record and their values; numbers as decimal text."""
    return ("store", record.store_id, "fence", str(record.fence), "floor", str(record.floor))
