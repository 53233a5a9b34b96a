"""Floor and sweep of a Redis database.

The floor stands in ``xq:control``. Who raises it changes that key, which every batch watches: of the batches that have
read the old floor none is executed later. Which keys a batch watches for it is said by :func:`floor_reads` alone.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from export_queue.core.errors import SinkUnavailable
from export_queue.core.sinks.control import FloorRecord, join_feeders, raise_floor, stale_rank
from export_queue.core.sinks.redis.layout import CONTROL, Command, rank_texts

Ask = Callable[..., list[Any]]
"""Sends commands that must not fail, in one go, and returns their replies."""

FIELDS = ("floor", "stores")
PAGE = 500
"""Fields of a hash that are looked at in one go, about."""
AT_ONCE = 50
"""Hashes whose first pages are asked for in one go: most of them are small."""
REPORT_GROUPS = 10
"""After how many times that the log says how far the sweep is."""
_MAX_COLLISIONS = 200
_PAUSE_SECONDS = 0.02

log = logging.getLogger("export_queue.sweep")


def floor_reads(shards: Iterable[bytes]) -> tuple[tuple[bytes, ...], list[Command]]:
    """Say which keys a batch watches beside the hashes of its ranks, and how it reads the floor from them.

    :param shards: the hashes that hold the ranks of the batch: its slots, where slots matter.
    """
    return (CONTROL,), [("HMGET", CONTROL, FIELDS[0])]


def stale_text(replies: Sequence[Sequence[bytes | None]]) -> bytes:
    """Return the highest stale rank, written as ranks are, from the replies to :func:`floor_reads`; empty if none."""
    floor = max(int(found or 0) for reply in replies for found in reply)
    return rank_texts([stale_rank(floor)])[0] if floor else b""


def join(ask: Ask, *, store_id: str, sink: str) -> None:
    """Note that a store feeds this database.

    :raises SinkBelongsToAnother: another store has swept it.
    """
    _change(ask, lambda found: join_feeders(found, store_id=store_id, sink=sink), sink)


def lift(ask: Ask, *, store_id: str, floor: int, sink: str) -> bytes:
    """Raise the floor: of the batches that have read the old one none is executed any more.

    :returns: the highest stale rank, written as ranks are; empty if none.
    :raises SinkBelongsToAnother: another store feeds this database, too.
    """
    raised = _change(ask, lambda found: raise_floor(found, store_id=store_id, floor=floor, sink=sink), sink).floor
    return rank_texts([stale_rank(raised)])[0] if raised else b""


def sweep_hashes(ask: Ask, names: Sequence[bytes], stale: bytes, sink: str) -> int:
    """Remove from hashes of ranks the tombstones that a floor makes superfluous which was raised before, page by page.

    :param names: of the hashes: of all shards, or those of one server.
    :param stale: the highest stale rank.
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
    """Remove the fields of a hash that still are tombstones; what was put again since they were read stays."""
    for _ in range(_MAX_COLLISIONS):
        _, ranks = ask(("WATCH", name), ("HMGET", name, *fields))
        doomed = [field for field, rank in zip(fields, ranks, strict=True) if rank and _is_doomed(rank, stale)]
        if not doomed:
            ask(("UNWATCH",))
            return 0
        *_, done = ask(("MULTI",), ("HDEL", name, *doomed), ("EXEC",))
        if done is not None:
            return int(done[0])
        time.sleep(random.uniform(0, _PAUSE_SECONDS))
    raise SinkUnavailable(f"{sink}: {name.decode()} changes all the time", hint="sweep again when less is drained")


def _is_doomed(rank: bytes, stale: bytes) -> bool:
    return rank <= stale and rank[-1:] in b"02468"


def _change(ask: Ask, decide: Callable[[FloorRecord], FloorRecord], sink: str) -> FloorRecord:
    for _ in range(_MAX_COLLISIONS):
        _, (floor, stores) = ask(("WATCH", CONTROL), ("HMGET", CONTROL, *FIELDS))
        found = FloorRecord(frozenset(json.loads(stores or "[]")), int(floor or 0))
        try:
            wanted = decide(found)
        except Exception:
            ask(("UNWATCH",))
            raise
        if wanted == found:
            ask(("UNWATCH",))
            return found
        values = ("floor", str(wanted.floor), "stores", json.dumps(sorted(wanted.stores)))
        *_, done = ask(("MULTI",), ("HSET", CONTROL, *values), ("EXEC",))
        if done is not None:
            return wanted
    raise SinkUnavailable(f"{sink}: {CONTROL.decode()} changes all the time")
