"""The guard ``fence`` in Redis: each unit has a hash, watched while its fence is compared and records are written.

============================  ==============================================================================
key                           holds
============================  ==============================================================================
``xq:fence:<unit>``           hash: fence of the last drain that claimed the unit, as decimal text
============================  ==============================================================================

Documents are sent with native commands. A script would copy each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from export_queue.core.errors import SinkConfigurationError
from export_queue.core.sinks.guards import Claim, needs_higher_fence, overtaken_error
from export_queue.core.sinks.redis.connection import Ask, Reply, change_watched
from export_queue.core.sinks.redis.layout import CONTROL
from export_queue.core.sinks.redis.packing import Command
from export_queue.core.sinks.redis.pieces import Batch, Piece
from export_queue.core.sinks.redis.targets import Target

GUARD = "guard"
"""Field of a queue's control record: ``fence``. A record without this field belongs to the guard ``seq``."""
_FENCE = "fence"


def check_queue(guard: bytes | None, *, is_known: bool, is_fenced: bool, queue_id: str, sink: object) -> None:
    """Check that a queue was not drained under the other guard before.

    :param guard: the field ``guard`` of its control record.
    :param is_known: whether it has a control record.
    :raises SinkConfigurationError: it was.
    """
    if not is_known or (guard is not None) == is_fenced:
        return
    found, wanted = ("seq", "fence") if is_fenced else ("fence", "seq")
    reason = "its records have ranks, which this guard would leave behind" if is_fenced else "its records have no ranks"
    raise SinkConfigurationError(
        f"queue {queue_id!r} was drained into {sink} with guard={found!r}, not {wanted!r}: {reason}",
        hint=f"continue with guard={found!r}, or empty the database together with its keys that begin with xq:",
    )


def agree_on_guard(ask: Ask, templates: Sequence[str], *, is_fenced: bool, sink: object) -> None:
    """Record the guard of keys, and check that all queues write them under it.

    :param templates: templates of the keys, with only ``$id`` left.
    :raises SinkConfigurationError: another queue writes them under the other guard.
    """
    wanted, other = ("fence", "seq") if is_fenced else ("seq", "fence")
    fields = [f"{GUARD}:{template}" for template in templates]
    *_, found = ask(*(("HSETNX", CONTROL, field, wanted) for field in fields), ("HMGET", CONTROL, *fields))
    for template, guard in zip(templates, found, strict=True):
        if guard != wanted.encode():
            raise SinkConfigurationError(
                f"keys {template!r} of {sink} are written by a queue with guard={other!r}, not {wanted!r}: "
                "an operation with a rank and one without cannot be compared",
                hint=f"use guard={other!r} for this queue too, or other keys",
            )


def claim_units(ask: Ask, claims: Sequence[Claim], sink: object) -> None:
    """Raise the fences of units, all of them or none.

    :raises LeaseLost: one of them has a higher fence.
    """
    keys = [_key(claim.unit) for claim in claims]

    def decide(replies: Sequence[Reply]) -> Sequence[Command]:
        return [
            ("HSET", key, _FENCE, str(claim.fence))
            for key, claim, (fence,) in zip(keys, claims, replies, strict=True)
            if needs_higher_fence(_number(fence), claim, sink)
        ]

    reads = [("HMGET", key, _FENCE) for key in keys]
    change_watched(ask, keys, reads, decide, f"{sink}: the fences of {len(claims)} units change all the time")


class ClaimedPiece(Piece):
    """A piece that is written if its unit still has the fence of a claim."""

    def __init__(self, batch: Batch, part: range, target: Target, *, claim: Claim, sink: object) -> None:
        super().__init__(batch, part, target)
        self._claim = claim
        self._sink = sink
        key = _key(claim.unit)
        self.reads = [("WATCH", key), ("HMGET", key, _FENCE), *self.look_at_types]

    def pack(self) -> None:
        self._write(range(len(self)))

    def judge(self, replies: Sequence[Any]) -> None:
        _, (fence,), *types = replies
        if (found := _number(fence)) != self._claim.fence:
            raise overtaken_error(found, self._claim, self._sink)
        if wrong := self.reject(types):
            self._write([i for i, key in enumerate(self.records.keys) if key not in wrong])

    def _write(self, positions: Sequence[int]) -> None:
        self.fill(positions)
        self.written = len(positions)


def _key(unit: str) -> str:
    return f"xq:fence:{unit}"


def _number(found: bytes | None) -> int | None:
    return None if found is None else int(found)
