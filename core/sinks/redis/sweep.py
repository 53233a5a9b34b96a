"""The floor of a Redis database, the stores that feed it, and the removal of tombstones from a single server.

The floor is a field of ``xq:control``, which every batch of a single server watches. A sweep that raises the floor
changes that key, so that no batch that has read the old floor is executed afterwards.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from export_queue.core.sinks import control
from export_queue.core.sinks.control import FloorRecord, stale_rank
from export_queue.core.sinks.redis.connection import Ask, Reply, change_watched
from export_queue.core.sinks.redis.layout import CONTROL, rank_texts
from export_queue.core.sinks.redis.packing import Command

READ_FLOOR: Command = ("HGET", CONTROL, "floor")
PAGE = 500
"""Approximate number of fields of a hash that are read together."""
AT_ONCE = 50
"""Number of hashes whose first pages are read together. Most hashes have no second page."""
REPORT_GROUPS = 10
"""Groups of hashes between two lines of progress in the log."""

log = logging.getLogger("export_queue.sweep")


def stale_text(floor: bytes | int | None) -> bytes:
    """Return the highest rank that a floor makes stale, in the form of stored ranks; empty without a floor."""
    return rank_texts([stale_rank(int(floor))])[0] if floor and int(floor) else b""


def register_store(ask: Ask, *, store_id: str, sink: str) -> None:
    """Record that a store feeds this database.

    :raises SinkBelongsToAnother: another store has swept it.
    """
    _change(ask, lambda found: control.register_store(found, store_id=store_id, sink=sink), sink)


def raise_floor(ask: Ask, *, store_id: str, floor: int, sink: str) -> int:
    """Raise the floor. Batches that have read the old one are no longer executed.

    :returns: the floor from now on.
    :raises SinkBelongsToAnother: other stores feed this database too.
    """
    return _change(ask, lambda found: control.raise_floor(found, store_id=store_id, floor=floor, sink=sink), sink).floor


def _change(ask: Ask, decide: Callable[[FloorRecord], FloorRecord], sink: str) -> FloorRecord:
    wanted = FloorRecord()

    def changes(replies: Sequence[Reply]) -> Sequence[Command]:
        nonlocal wanted
        ((floor, stores),) = replies
        found = FloorRecord(frozenset(json.loads(stores or "[]")), int(floor or 0))
        wanted = decide(found)
        if wanted == found:
            return ()
        return [("HSET", CONTROL, "floor", str(wanted.floor), "stores", json.dumps(sorted(wanted.stores)))]

    read = ("HMGET", CONTROL, "floor", "stores")
    change_watched(ask, [CONTROL], [read], changes, f"{sink}: {CONTROL.decode()} changes all the time")
    return wanted


def sweep_hashes(ask: Ask, names: Sequence[bytes], stale: bytes, sink: str) -> int:
    """Remove the tombstones at or below the floor, which is raised already, from hashes of ranks.

    :param stale: the highest stale rank.
    :returns: the number of tombstones removed.
    """
    removed = 0
    for start in range(0, len(names), AT_ONCE):
        group = names[start : start + AT_ONCE]
        pages = ask(*(_scan(name, b"0") for name in group))
        removed += sum(_sweep_hash(ask, name, page, stale, sink) for name, page in zip(group, pages, strict=True))
        if start // AT_ONCE % REPORT_GROUPS == REPORT_GROUPS - 1:
            log.info("%s: %d of %d hashes swept, %d tombstones removed", sink, start + AT_ONCE, len(names), removed)
    return removed


def _scan(name: bytes, cursor: bytes) -> Command:
    return ("HSCAN", name, cursor, "COUNT", str(PAGE))


def _sweep_hash(ask: Ask, name: bytes, page: Any, stale: bytes, sink: str) -> int:
    """Sweep one hash, whose first page has been read."""
    removed = 0
    while True:
        cursor, pairs = page
        doomed = [field for field, rank in zip(pairs[::2], pairs[1::2], strict=True) if _is_doomed(rank, stale)]
        removed += _remove(ask, name, doomed, stale, sink) if doomed else 0
        if cursor == b"0":
            return removed
        (page,) = ask(_scan(name, cursor))


def _remove(ask: Ask, name: bytes, fields: Sequence[bytes], stale: bytes, sink: str) -> int:
    """Remove the fields that are still tombstones; a record may have been put again since its page was read."""

    def changes(replies: Sequence[Reply]) -> Sequence[Command]:
        (ranks,) = replies
        doomed = [field for field, rank in zip(fields, ranks, strict=True) if rank and _is_doomed(rank, stale)]
        return [("HDEL", name, *doomed)] if doomed else ()

    complaint, hint = f"{sink}: {name.decode()} changes all the time", "sweep again when less is drained"
    return sum(change_watched(ask, [name], [("HMGET", name, *fields)], changes, complaint, hint=hint))


def _is_doomed(rank: bytes, stale: bytes) -> bool:
    return rank <= stale and rank[-1:] in b"02468"
