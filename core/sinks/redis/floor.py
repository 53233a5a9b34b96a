"""The floor of a Redis database, and the stores that feed it.

The floor stands in ``xq:control``, which every batch of a single server watches. A sweep that raises the floor changes
that key, so no batch that has read the old floor is executed afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from export_queue.core.sinks import control
from export_queue.core.sinks.control import FloorRecord, stale_rank
from export_queue.core.sinks.redis.connection import Ask
from export_queue.core.sinks.redis.errors import Collision, until_undisturbed
from export_queue.core.sinks.redis.layout import CONTROL, rank_texts
from export_queue.core.sinks.redis.packing import Command

READ_FLOOR: Command = ("HGET", CONTROL, "floor")


def stale_text(floor: bytes | int | None) -> bytes:
    """Return the highest rank that a floor makes stale, written as ranks are; empty where there is none."""
    return rank_texts([stale_rank(int(floor))])[0] if floor and int(floor) else b""


def register_store(ask: Ask, *, store_id: str, sink: str) -> None:
    """Note that a store feeds this database.

    :raises SinkBelongsToAnother: another store has swept it.
    """
    _change(ask, lambda found: control.register_store(found, store_id=store_id, sink=sink), sink)


def raise_floor(ask: Ask, *, store_id: str, floor: int, sink: str) -> int:
    """Raise the floor: no batch that has read the old one is executed any more.

    :returns: where it is now.
    :raises SinkBelongsToAnother: another store feeds this database, too.
    """
    return _change(ask, lambda found: control.raise_floor(found, store_id=store_id, floor=floor, sink=sink), sink).floor


def _change(ask: Ask, decide: Callable[[FloorRecord], FloorRecord], sink: str) -> FloorRecord:
    def change() -> FloorRecord:
        _, (floor, stores) = ask(("WATCH", CONTROL), ("HMGET", CONTROL, "floor", "stores"))
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
        if done is None:
            raise Collision
        return wanted

    return until_undisturbed(change, f"{sink}: {CONTROL.decode()} changes all the time")
