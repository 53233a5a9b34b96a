"""The guard ``fence``: the agreement between a drain and a sink without ranks.

A record of such a sink has no rank. In its place the sink keeps, for each unit of a queue, the fence of the
drain that claimed it last, and takes a batch only from that drain: the fence is compared in the batch's own
transaction. So an older drain is shut out as a whole, and the younger drain alone decides the order of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from export_queue.core.errors import LeaseLost, SinkConfigurationError
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult, Capabilities, Sink

Guard = Literal["seq", "fence"]
"""What keeps a late delivery from undoing a newer one: the rank of each record, or the fence of each unit."""


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """A drain's right to write the operations of one unit of a queue; a value that may travel to other processes."""

    unit: str
    """Name of the unit: queue, layout and first bucket."""
    fence: int
    """From the store's id source: a later claim has a higher one."""


class FencedSink(Protocol):
    """A sink whose capabilities say ``fenced``: batches are applied under claims only."""

    @property
    def capabilities(self) -> Capabilities:
        """Batch sizes and abilities."""

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        """Check the target; see :class:`~export_queue.core.sinks.Sink`."""

    def claim(self, claims: Sequence[Claim]) -> Sequence[Sink]:
        """Take units over: from now on nothing is taken under a lower fence.

        A claim waits for a batch that is being applied, or makes it fail. The same claims again change nothing.

        :returns: a sink for each claim, as :meth:`under` makes it.
        :raises LeaseLost: one of the units was claimed under a higher fence; none is taken over then.
        :raises SinkUnavailable: nothing is known; the claim may be repeated.
        """

    def under(self, claim: Claim) -> Sink:
        """Return the sink of a claim that was made before, perhaps by another process.

        Its ``apply`` writes a batch whatever the records hold, if the unit still has this very fence. Fence and records
        are one transaction: either the whole batch is applied before a later claim, or nothing. It raises
        :class:`LeaseLost` if the unit was claimed by another drain, or the claim is forgotten.
        Its ``close`` leaves the connections to this sink, which are shared.
        """

    def close(self) -> None:
        """Free connections."""


@dataclass(frozen=True, slots=True)
class ClaimedSink:
    """A fenced sink as a drain sees it while it works on one unit.

    :param sink: the fenced sink.
    :param write: applies a batch under the claim.
    """

    sink: FencedSink
    write: Callable[[Operations], ApplyResult]

    @property
    def capabilities(self) -> Capabilities:
        """Those of the fenced sink."""
        return self.sink.capabilities

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        """Ask the fenced sink."""
        self.sink.admit(queue_id=queue_id, store_id=store_id, fence=fence, shown=shown, readmit=readmit)

    def apply(self, operations: Operations) -> ApplyResult:
        """Apply a batch under the claim."""
        return self.write(operations)

    def close(self) -> None:
        """Nothing: the connections are the fenced sink's."""


def check_guard(guard: str) -> None:
    """Check the option of a sink.

    :raises SinkConfigurationError: there is no such guard.
    """
    if guard not in ("seq", "fence"):
        raise SinkConfigurationError(f"guard {guard!r}: expected 'seq' or 'fence'")


def unclaimed_error(sink: object) -> SinkConfigurationError:
    """Make the error of a batch that comes without a claim."""
    return SinkConfigurationError(
        f"{sink} has the guard fence, and takes batches of a drain only, under its claim",
        hint="drain a queue into it, or open the sink with guard='seq'",
    )


def needs_higher_fence(found: int | None, claim: Claim, sink: object) -> bool:
    """Decide about a claim; pure.

    :param found: the fence that the sink has for the unit.
    :returns: whether the sink has to write the claim's fence; if not, it stands there.
    :raises LeaseLost: a later drain has claimed the unit.
    """
    if found is not None and found > claim.fence:
        raise overtaken_error(found, claim, sink)
    return found != claim.fence


def overtaken_error(found: int | None, claim: Claim, sink: object) -> LeaseLost:
    """Make the error of a drain that does not hold a unit.

    :param found: the fence that the sink has for the unit.
    """
    if found is not None and found > claim.fence:
        return LeaseLost(
            f"unit {claim.unit} of {sink} was taken over: this drain's fence is {claim.fence}, the sink has {found}"
        )
    return LeaseLost(
        f"{sink} has forgotten the claim on unit {claim.unit}: expected fence {claim.fence}, found {found or 'none'}",
        hint="it lost writes that it had acknowledged, perhaps in a fail-over: compare it with the data; start again",
    )
