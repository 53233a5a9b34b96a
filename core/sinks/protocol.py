"""The seam to the systems that serve the copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from export_queue.core.callables import check_methods, returned
from export_queue.core.errors import SinkConfigurationError
from export_queue.core.interruptions import raised_by_handler
from export_queue.core.sinks.operations import Operations

_METHODS = ("admit", "apply", "claim", "under", "continue_drain", "ddl", "run_ddl", "sweep", "close")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a sink can do; data, from which the drain plans and the documentation's table is made."""

    batch_rows: int
    """Operations per call of ``apply`` that suit the sink best, and the most that it is given."""
    batch_bytes: int
    """Bytes of ids and documents per call; a single larger operation is given alone."""
    binary_ids: bool = True
    """Ids need not be UTF-8."""
    fenced: bool = False
    """Records have no ranks: the sink is a :class:`~export_queue.core.sinks.FencedSink`, batches go under claims."""
    ttl: bool = False
    """Puts may have a time to live; where not, such puts are rejected."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """One operation that the sink will never take."""

    position: int
    """Position of the operation in the batch that was given."""
    reason: str
    """The sink's own words."""


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What became of a batch; the counts and the rejections add up to its length (I13)."""

    written: int
    stale: int
    rejected: tuple[Rejection, ...] = ()


class Sink(Protocol):
    """A system that serves a copy of the committed data.

    ``apply`` is idempotent and ordered by nothing but the rank of each operation (seq, put over
    delete): whatever is delivered again, late or out of order, each record ends at its highest rank,
    and no reader sees it go back (I9). When ``apply`` returns, what it counts is as durable as the
    sink makes anything.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Batch sizes and abilities."""

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        """Check the target once before a drain, and record which store feeds it.

        Creates what is missing where that is safe (control record, rank storage).

        :param queue_id: the queue that is drained.
        :param store_id: identity of the store.
        :param fence: a number from the store's id source; the sink keeps the highest that it saw.
        :param shown: the highest fence of this queue that the store knows the sink to have kept; 0 where it has drained
            nothing into it. A sink that has a lower one, or none, has lost what came in between.
        :param readmit: take the sink as it is: forget what was lost there, and set it up anew.
        :raises SinkBelongsToAnother: the control record names another store or a higher fence.
        :raises SinkLostData: the control record is older than ``shown``, or something that was set up is gone.
        :raises SinkConfigurationError: the target cannot hold the guarantees, with what to change.
        :raises SinkUnavailable: the target cannot be reached.
        """

    def apply(self, operations: Operations) -> ApplyResult:
        """Apply a batch; several operations on one record are allowed.

        :raises SinkUnavailable: nothing is known of the batch, or parts of it are applied; the whole
            batch may be given again.
        :raises SinkRefused: the target takes no writes; trying again at once will not help.
        :raises SinkConfigurationError: the target of one of the collections cannot hold the guarantees.
        :raises AmbiguousRecord: two entries of one sequence put different documents into one record.
        """

    def close(self) -> None:
        """Free connections."""


@runtime_checkable
class BoundSink(Protocol):
    """A sink with options that decide which record an operation becomes, such as a template of keys.

    The store keeps them with each reader. A drain whose sink has others is refused, and a drain that leaves them out
    takes the stored ones. Nothing is compared for a sink without this method: whoever changes its options writes other
    records, and nobody notices.
    """

    def binding(self) -> Mapping[str, Any]:
        """Return these options, by the names that the sink's constructor or factory gives them, defaults included.

        Values are JSON, in one normal form: two ways to write the same option give equal values. Leave out what does
        not decide which record is written: batch sizes, time-outs, credentials, the server's address.
        """


@runtime_checkable
class ContinuingSink(Protocol):
    """A sink that wants to know whose batches come, where another object of it admitted the drain, as on Spark."""

    def continue_drain(self, queue_id: str) -> None:
        """Take the batches of a drain that was admitted elsewhere, as by Spark's driver.

        :param queue_id: the queue that is drained.
        """


@runtime_checkable
class PreparableSink(Protocol):
    """A sink that tells what its target still lacks, and can bring that about: tables, columns, indices."""

    def ddl(self, *collections: str) -> str:
        """Return the statements that the target still needs, for a person who runs them; empty where it needs none.

        :param collections: the collections that are going to be written to.
        """

    def run_ddl(self, *collections: str) -> str:
        """Run these statements; safe beside running drains, and to repeat.

        :param collections: the collections that are going to be written to.
        :returns: what :meth:`ddl` would have returned.
        :raises SinkConfigurationError: the target cannot be a sink even so.
        :raises SinkRefused: the target does not allow it.
        :raises SinkUnavailable: the target does not answer, or others keep it locked.
        """


@runtime_checkable
class SweepableSink(Sink, Protocol):
    """A sink that can forget tombstones; one without ``sweep`` keeps them for ever."""

    def sweep(self, *, store_id: str, floor: int) -> int:
        """Raise the sink's floor, then remove the tombstones whose sequence is at or below it.

        The floor is one for all that shares the sink's control records, and never falls. From its rise on,
        and before the first tombstone goes, ``apply`` counts every operation whose sequence is at or below it
        as stale, whatever the rank of its record: the floor is read in the batch's own atomic unit.

        Work is done in bounded steps; an interrupted sweep is finished by the next one. Tombstones above the floor
        stay, and so do records that were put again.

        :param store_id: identity of the store, which must be the only one that feeds the sink.
        :param floor: below the sequence of everything that the store may still send; see
            :func:`export_queue.core.maintenance.safe_floor`.
        :returns: how many tombstones were removed.
        :raises SinkBelongsToAnother: another store feeds the sink, too.
        :raises SinkUnavailable: the sink does not answer; sweeping again goes on.
        """


def check_sink(sink: object) -> None:
    """Refuse a sink with a method that does not run when it is called.

    :raises SinkConfigurationError: it has one; the error names it.
    """
    check_methods(sink, _METHODS, f"sink {type(sink).__name__}", error=SinkConfigurationError)


def call_sink(sink: object, method: str, *arguments: Any, **named: Any) -> Any:
    """Call a method of a sink that may be a user's.

    :raises SinkConfigurationError: what the method returned shows that it has not run.
    """
    try:
        answer = getattr(sink, method)(*arguments, **named)
    except Exception as error:
        interruption = raised_by_handler(error)
        if interruption is None or interruption is error:
            raise
        raise interruption from error  # a driver took it for an error of its connection, which would be tried again
    return returned(answer, f"{method}() of sink {type(sink).__name__}", error=SinkConfigurationError)
