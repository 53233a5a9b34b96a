"""The guard ``fence``: the protocol between a drain and a sink without ranks.

The records of such a sink have no ranks. Instead, the sink stores, for each unit of a queue, the fence of the drain
that claimed it last. It accepts a batch only from that drain, and compares the fence in the batch's own transaction. So
older drains can write nothing, and the newest drain alone decides the order of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from export_queue.core.errors import LeaseLost, SinkConfigurationError
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult, Capabilities, Sink

Guard = Literal["seq", "fence"]
"""What prevents a late delivery from undoing a newer one: the rank of each record, or the fence of each unit."""


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """A drain's right to write the operations of one unit of a queue. Other processes may use the value too."""

    unit: str
    """Name of the unit: queue, layout and first bucket."""
    fence: int
    """Drawn from the store's id source. Later claims have higher fences."""


class FencedSink(Protocol):
    """A sink whose capabilities say ``fenced``: batches are applied only under claims."""

    @property
    def capabilities(self) -> Capabilities: ...

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None: ...

    def claim(self, claims: Sequence[Claim]) -> Sequence[Sink]:
        """Take over units. From now on, batches under a lower fence are refused.

        A claim waits for a batch that is being applied, or makes it fail. Repeating claims changes nothing.

        :returns: a sink for each claim, as :meth:`under` returns it.
        :raises LeaseLost: a unit was claimed under a higher fence. No unit is taken over.
        :raises SinkUnavailable: the claims may have taken effect; they may be repeated.
        """

    def under(self, claim: Claim) -> Sink:
        """Return the sink of a claim that was made before, perhaps by another process.

        If the unit still has exactly this fence, its ``apply`` writes a batch whatever the records hold. Fence and
        records are one transaction: either the whole batch is applied before a later claim, or nothing. ``apply``
        raises :class:`LeaseLost` if another drain has claimed the unit, or the sink has lost the claim. ``close`` does
        nothing, because the connections are shared.
        """

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ClaimedSink:
    """A fenced sink under one claim.

    :param write: applies a batch under the claim.
    """

    sink: FencedSink
    write: Callable[[Operations], ApplyResult]

    @property
    def capabilities(self) -> Capabilities:
        return self.sink.capabilities

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        self.sink.admit(queue_id=queue_id, store_id=store_id, fence=fence, shown=shown, readmit=readmit)

    def apply(self, operations: Operations) -> ApplyResult:
        return self.write(operations)

    def close(self) -> None:
        pass  # the connections belong to the fenced sink


def check_guard(guard: str) -> None:
    if guard not in ("seq", "fence"):
        raise SinkConfigurationError(f"guard {guard!r}: expected 'seq' or 'fence'")


def unclaimed_error(sink: object) -> SinkConfigurationError:
    """Return the error for a batch without a claim."""
    return SinkConfigurationError(
        f"{sink} has the guard fence, and takes batches of a drain only, under its claim",
        hint="drain a queue into it, or open the sink with guard='seq'",
    )


def needs_higher_fence(found: int | None, claim: Claim, sink: object) -> bool:
    """Return whether the sink must store the fence of a claim; False if it is stored already.

    :param found: the unit's present fence.
    :raises LeaseLost: a later drain has claimed the unit.
    """
    if found is not None and found > claim.fence:
        raise overtaken_error(found, claim, sink)
    return found != claim.fence


def overtaken_error(found: int | None, claim: Claim, sink: object) -> LeaseLost:
    """Return the error for a drain that does not hold a unit.

    :param found: the unit's present fence.
    """
    if found is not None and found > claim.fence:
        return LeaseLost(
            f"unit {claim.unit} of {sink} was taken over: this drain's fence is {claim.fence}, the sink has {found}"
        )
    return LeaseLost(
        f"{sink} has forgotten the claim on unit {claim.unit}: expected fence {claim.fence}, found {found or 'none'}",
        hint="it lost writes that it had acknowledged, perhaps in a fail-over: compare it with the data; start again",
    )
