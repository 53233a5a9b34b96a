"""Tombstones of a single server: their removal from the hashes of ranks, page by page."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from export_queue.core.sinks.redis.connection import Ask
from export_queue.core.sinks.redis.errors import Collision, until_undisturbed
from export_queue.core.sinks.redis.packing import Command

PAGE = 500
"""Fields of a hash that are looked at in one go, about."""
AT_ONCE = 50
"""Hashes whose first pages are asked for in one go: most of them are small."""
REPORT_GROUPS = 10
"""Groups of hashes after which the log says how far the sweep is."""

log = logging.getLogger("export_queue.sweep")


def sweep_hashes(ask: Ask, names: Sequence[bytes], stale: bytes, sink: str) -> int:
    """Remove from hashes of ranks the tombstones at or below the floor, which has been raised before.

    :param names: of the hashes of all shards.
    :param stale: the highest stale rank.
    :returns: how many were removed.
    """
    removed = 0
    for start in range(0, len(names), AT_ONCE):
        group = names[start : start + AT_ONCE]
        pages = ask(*(_scan(name, b"0") for name in group))
        removed += sum(
            _sweep_hash(ask, *hash_and_page, stale, sink) for hash_and_page in zip(group, pages, strict=True)
        )
        if start // AT_ONCE % REPORT_GROUPS == REPORT_GROUPS - 1:
            log.info("%s: %d of %d hashes swept, %d tombstones removed", sink, start + AT_ONCE, len(names), removed)
    return removed


def _scan(name: bytes, cursor: bytes) -> Command:
    return ("HSCAN", name, cursor, "COUNT", str(PAGE))


def _sweep_hash(ask: Ask, name: bytes, page: Any, stale: bytes, sink: str) -> int:
    """Remove the tombstones of one hash, of which the first page has been read."""
    removed = 0
    while True:
        cursor, pairs = page
        doomed = [field for field, rank in zip(pairs[::2], pairs[1::2], strict=True) if _is_doomed(rank, stale)]
        removed += _remove(ask, name, doomed, stale, sink) if doomed else 0
        if cursor == b"0":
            return removed
        (page,) = ask(_scan(name, cursor))


def _remove(ask: Ask, name: bytes, fields: Sequence[bytes], stale: bytes, sink: str) -> int:
    """Remove the fields of a hash that still are tombstones; a record that was put again since the page stays."""

    def remove() -> int:
        _, ranks = ask(("WATCH", name), ("HMGET", name, *fields))
        doomed = [field for field, rank in zip(fields, ranks, strict=True) if rank and _is_doomed(rank, stale)]
        if not doomed:
            ask(("UNWATCH",))
            return 0
        *_, done = ask(("MULTI",), ("HDEL", name, *doomed), ("EXEC",))
        if done is None:
            raise Collision
        return int(done[0])

    return until_undisturbed(
        remove, f"{sink}: {name.decode()} changes all the time", hint="sweep again when less is drained"
    )


def _is_doomed(rank: bytes, stale: bytes) -> bool:
    return rank <= stale and rank[-1:] in b"02468"
