"""The guard ``fence`` in Redis: a hash for each unit, watched while its fence is compared and records are written.

============================  ==============================================================================
key                           holds
============================  ==============================================================================
``xq:fence:<unit>``           hash: fence of the drain that claimed the unit last, as decimal text
============================  ==============================================================================

Values travel in native commands, never through a script, which would copy each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from export_queue.core.errors import SinkConfigurationError
from export_queue.core.sinks.claims import Claim, needs_higher_fence, overtaken_error
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult, Rejection
from export_queue.core.sinks.redis.connection import Ask, pack
from export_queue.core.sinks.redis.errors import Collision, code_of, explain, until_undisturbed
from export_queue.core.sinks.redis.layout import CONTROL, Command
from export_queue.core.sinks.redis.targets import Target, fitting

GUARD = "guard"
"""Field of a queue's control record: ``fence``; one that lacks it is of a sink with the guard ``seq``."""
_FENCE = "fence"
_NO_TYPES: Mapping[bytes, bytes] = {}


def check_queue(guard: bytes | None, *, is_known: bool, is_fenced: bool, queue_id: str, sink: object) -> None:
    """Make sure that all that a queue brought here was brought under one guard.

    :param guard: the field of its control record.
    :param is_known: whether it has a control record.
    :raises SinkConfigurationError: it was drained with the other guard.
    """
    if not is_known or (guard is not None) == is_fenced:
        return
    found, wanted = ("seq", "fence") if is_fenced else ("fence", "seq")
    reason = "its records have ranks, which this guard would leave behind" if is_fenced else "its records have no ranks"
    raise SinkConfigurationError(
        f"queue {queue_id!r} was drained into {sink} with guard={found!r}, not {wanted!r}: {reason}",
        hint=f"go on with guard={found!r}, or empty the database together with its keys that begin with xq:",
    )


def agree_on_guard(ask: Ask, templates: Sequence[str], *, is_fenced: bool, sink: object) -> None:
    """Note the guard of keys, and make sure that it is that of all queues that write them.

    :param templates: of the keys, with nothing but ``{id}`` left.
    :raises SinkConfigurationError: they are written under the other guard.
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

    def claim_all() -> None:
        _, *found = ask(("WATCH", *keys), *(("HMGET", key, _FENCE) for key in keys))
        try:
            raised = [
                ("HSET", key, _FENCE, str(claim.fence))
                for key, claim, (fence,) in zip(keys, claims, found, strict=True)
                if needs_higher_fence(_number(fence), claim, sink)
            ]
        except Exception:
            ask(("UNWATCH",))
            raise
        *_, done = ask(("MULTI",), *raised, ("EXEC",))
        if done is None:
            raise Collision

    until_undisturbed(claim_all, f"{sink}: the fences of {len(claims)} units change all the time")


def write_under(ask: Ask, target: Target, operations: Operations, claim: Claim, sink: object) -> ApplyResult:
    """Write operations on distinct records, if their unit still has this very fence.

    :raises LeaseLost: it has another one.
    """
    batch, key = _Batch(target, operations), _key(claim.unit)

    def write() -> ApplyResult:
        checked = batch.checked
        # a batch that needs no look at the keys is packed while the server looks up the fence
        meanwhile = None if checked else batch.fill
        _, (fence,), *types = ask(
            ("WATCH", key), ("HMGET", key, _FENCE), *(("TYPE", one) for one in checked), meanwhile=meanwhile
        )
        if (found := _number(fence)) != claim.fence:
            ask(("UNWATCH",))
            raise overtaken_error(found, claim, sink)
        if checked:
            batch.fill(dict(zip(checked, types, strict=True)))
        *_, answers = ask(*batch.commands, packed=batch.packed)
        if answers is None:
            raise Collision  # a drain claims the unit; perhaps this one, once more
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        if any(code_of(error) != "WRONGTYPE" for error in errors):
            raise explain(errors[0], str(sink))
        if errors:
            raise Collision  # a key became something else just now: the next try sees it
        return ApplyResult(batch.written, 0, batch.rejected)

    return until_undisturbed(write, f"{sink}: all tries of one batch met other writers of its records")


class _Batch:
    """The transaction that writes a batch, as far as it can be made before the server has answered."""

    def __init__(self, target: Target, operations: Operations) -> None:
        self._target = target
        self._records = target.locate(operations)
        self.checked = target.checked_keys(self._records)
        self.commands: list[Command] = []
        self.packed: list[bytes] = []
        self.written = 0
        self.rejected: tuple[Rejection, ...] = ()

    def fill(self, types: Mapping[bytes, bytes] = _NO_TYPES) -> None:
        """Make the transaction; again, if the types of keys have changed.

        :param types: of the keys that were checked.
        """
        if self.commands and not types:
            return
        positions, self.rejected = fitting(self._records, types)
        self.written = len(positions)
        self.commands = [("MULTI",), *self._target.writes(self._records, positions), ("EXEC",)]
        self.packed = pack(self.commands)


def _key(unit: str) -> str:
    return f"xq:fence:{unit}"


def _number(found: bytes | None) -> int | None:
    return None if found is None else int(found)
