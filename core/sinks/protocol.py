"""The protocols of sinks, the systems that serve copies of the committed data."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from export_queue.core.callables import check_methods, returned
from export_queue.core.errors import SinkConfigurationError
from export_queue.core.interruptions import raised_by_handler
from export_queue.core.sinks.operations import Operations

_METHODS = (
    "admit",
    "apply",
    "claim",
    "under",
    "continue_drain",
    "ddl",
    "run_ddl",
    "sweep",
    "repair",
    "refresh",
    "probe",
    "close",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a sink can do. The drain plans by it, and the documentation shows it."""

    batch_rows: int
    """Maximum number of operations per call of ``apply``; the number at which the sink is fastest."""
    batch_bytes: int
    """Maximum bytes of ids and documents per call. A single larger operation is passed alone."""
    binary_ids: bool = True
    """Whether ids may be other bytes than UTF-8."""
    fenced: bool = False
    """Whether records have no ranks: the sink is a :class:`~export_queue.core.sinks.FencedSink`."""
    ttl: bool = False
    """Whether puts may have a time to live. If not, such puts are rejected."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """One operation that the sink can never write."""

    position: int
    """Position of the operation in the batch."""
    reason: str
    """The sink's own words."""


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The outcome of a batch. Counts and rejections add up to its length (I13)."""

    written: int
    stale: int
    rejected: tuple[Rejection, ...] = ()


class Sink(Protocol):
    """A system that serves a copy of the committed data.

    ``apply`` is idempotent, and only the rank of each operation (seq, put over delete) decides: whatever is delivered
    repeatedly, late or out of order, each record ends at its highest rank, and no reader sees it go back (I9). When
    ``apply`` returns, the operations that it counts are as durable as the sink makes any write.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Batch sizes and abilities."""

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        """Check the target before a drain, and record which store feeds it.

        Create what is missing if that is safe: control record, storage for ranks.

        :param queue_id: the queue that is drained.
        :param store_id: identity of the store.
        :param fence: a number from the store's id source. The sink keeps the highest one.
        :param shown: the highest fence of this queue that the sink is known to have kept; 0 before the first drain. A
            sink that has a lower one, or none, has lost the writes in between.
        :param readmit: accept the sink as it is: forget what was lost there, and set it up again.
        :raises SinkBelongsToAnother: the control record names another store or a higher fence.
        :raises SinkLostData: the control record is older than ``shown``, or something that was set up is missing.
        :raises SinkConfigurationError: the target cannot hold the guarantees; the hint says what to change.
        :raises SinkUnavailable: the target cannot be reached.
        """

    def apply(self, operations: Operations) -> ApplyResult:
        """Apply a batch, which may contain several operations on one record.

        :raises SinkUnavailable: the batch, or parts of it, may be applied. The whole batch may be passed again.
        :raises SinkRefused: the target accepts no writes. Trying again at once does not help.
        :raises SinkConfigurationError: the target of one of the collections cannot hold the guarantees.
        :raises AmbiguousRecord: two entries of one sequence put different documents into one record.
        """

    def close(self) -> None:
        """Free connections."""


@runtime_checkable
class BoundSink(Protocol):
    """A sink with options that decide which record an operation writes, such as a template of keys.

    The store keeps these options with each reader. A drain with other options is refused; a drain without them uses the
    stored ones. For a sink without this method nothing is compared, so that a changed option silently writes other
    records.
    """

    def binding(self) -> Mapping[str, Any]:
        """Return these options, including defaults, by the argument names of the sink's constructor or factory.

        Values are JSON in a normal form: two notations of the same option give equal values. Leave out options that do
        not decide which record is written: batch sizes, time-outs, credentials, the server's address.
        """


@runtime_checkable
class ContinuingSink(Protocol):
    """A sink that must know which queue is drained when another object of it admitted the drain, as on Spark."""

    def continue_drain(self, queue_id: str) -> None:
        """Prepare for the batches of a drain that was admitted elsewhere, such as in Spark's driver."""


@runtime_checkable
class PreparableSink(Protocol):
    """A sink that can report and create what its target lacks: tables, columns, indices."""

    def ddl(self, *collections: str) -> str:
        """Return the statements that a person must run on the target; empty if it needs none.

        :param collections: the collections that will be written to.
        """

    def run_ddl(self, *collections: str) -> str:
        """Run these statements. This is safe during drains, and may be repeated.

        :param collections: the collections that will be written to.
        :returns: the statements.
        :raises SinkConfigurationError: the target still cannot be a sink.
        :raises SinkRefused: the target does not allow it.
        :raises SinkUnavailable: the target does not answer, or others keep it locked.
        """


@runtime_checkable
class SweepableSink(Sink, Protocol):
    """A sink that can remove tombstones. A sink without ``sweep`` keeps them forever."""

    def sweep(self, *, store_id: str, floor: int) -> int:
        """Raise the sink's floor, then remove the tombstones whose sequence is at or below it.

        All collections that share the sink's control records have one floor, which never falls. After it is raised, and
        before the first tombstone is removed, ``apply`` counts every operation whose sequence is at or below it as
        stale, whatever the rank of its record. ``apply`` reads the floor in the same atomic step as the batch.

        The work is done in bounded steps. The next sweep finishes an interrupted one. Tombstones above the floor, and
        records that were put again, are kept.

        :param store_id: identity of the store, which must be the only one that feeds the sink.
        :param floor: a sequence below everything that the store may still send; see
            :func:`export_queue.core.maintenance.safe_floor`.
        :returns: the number of tombstones removed.
        :raises SinkBelongsToAnother: other stores feed the sink too.
        :raises SinkUnavailable: the sink does not answer. Another sweep continues.
        """


@dataclass(frozen=True, slots=True)
class StoredRecords:
    """Records as a sink stores them, as columns of equal length."""

    targets: Sequence[str]
    """The sink's own name of the group of each record, such as its table; with the id it identifies the record."""
    ids: Sequence[bytes]
    ranks: Sequence[int]
    """-1 for a record without a rank."""
    documents: Sequence[bytes | None]
    """In a normal form: equal documents have equal bytes. None for a tombstone, and for a document that is missing."""

    def __len__(self) -> int:
        return len(self.ids)


def joined_records(parts: Sequence[StoredRecords]) -> StoredRecords:
    """Join records into one object."""
    if len(parts) == 1:
        return parts[0]
    columns = ("targets", "ids", "ranks", "documents")
    return StoredRecords(*([one for part in parts for one in getattr(part, name)] for name in columns))


@runtime_checkable
class ScannableSink(Protocol):
    """A sink whose records can be compared with what they should be.

    Nothing is written. The sink need not admit a drain before, and drains may run meanwhile.
    """

    def render(self, operations: Operations) -> tuple[StoredRecords, Sequence[int]]:
        """Return the records that :meth:`scan` would find if only these operations were applied.

        :param operations: of any collections, several of one record too.
        :returns: a record for each operation that the sink can write, and the position of that operation. A sink of
            several parts returns several records for each.
        """

    def scan(self, collections: Collection[str]) -> Iterator[StoredRecords]:
        """Read all records of some collections, tombstones included, in any order, in parts of bounded size.

        A record that changes meanwhile may be read twice, or with the rank of one version and the document of another.
        Every record that exists from the beginning to the end is read.

        :raises SinkUnavailable: the sink does not answer.
        """

    def look_up(self, target: str, ids: Sequence[bytes]) -> StoredRecords:
        """Read some records of a target as they are now, rank and document of one version.

        :returns: a record for each id, in order; one that does not exist has no rank and no document.
        """

    def floor_of(self, target: str) -> int:
        """Return the floor of the target's sweeps, below which tombstones may be missing; 0 if it was never swept."""


@runtime_checkable
class RepairableSink(Sink, Protocol):
    """A sink whose records can be written again with the ranks that they should have."""

    def repair(self, operations: Operations) -> ApplyResult:
        """Apply a batch as :meth:`~Sink.apply` does, with two differences.

        A record of an equal rank is written, not stale. And the floor of sweeps makes nothing stale: the caller holds
        all units of the queue whose entries may concern these records, so that no delete above these sequences was
        swept. A record of a higher rank is stale, as ever.

        :param operations: what the latest entries make of some records.
        :raises SinkUnavailable: as for :meth:`~Sink.apply`, which lists the other errors too.
        """


@runtime_checkable
class SearchableSink(Sink, Protocol):
    """A sink whose searches show a record only some time after ``apply`` has acknowledged it."""

    def refresh(self) -> None:
        """Let searches that begin afterwards see everything that was acknowledged before the call.

        :raises SinkUnavailable: the sink does not answer. It may be asked again.
        :raises SinkRefused: the sink does not allow it.
        """


@runtime_checkable
class PointingSink(Sink, Protocol):
    """A sink whose readers can be led from one collection to another by a name of their own, a *pointer*.

    A rebuild needs it. A pointer is an alias, a view or a key that holds a key template; no drain writes through it.
    """

    def target(self, collection: str) -> str:
        """Return the sink's own name of a collection: its table, the alias that is written to, or its key template.

        :raises SinkConfigurationError: the collection cannot have one.
        """

    def pointed_at(self, pointer: str) -> str | None:
        """Return to which target a pointer leads; None if nothing has this name.

        :raises SinkConfigurationError: no pointer can have this name, or something else has it.
        :raises SinkUnavailable: the server does not answer.
        """

    def point(self, pointers: Mapping[str, str]) -> None:
        """Let pointers lead to collections of this sink, which are created if they are missing.

        A reader sees the former target or the new one, and never neither. Elasticsearch, PostgreSQL, SQLite and a
        single Redis server change all pointers in one step. Repeating the call changes nothing.

        :param pointers: the collection of each pointer.
        :raises SinkConfigurationError: as for :meth:`pointed_at`.
        :raises SinkRefused: the target does not allow it.
        :raises SinkUnavailable: the server does not answer, or readers keep a view locked. It may be asked again.
        """


@runtime_checkable
class ProbedSink(Protocol):
    """A sink that can say what it finds without writing anything, for `export-queue doctor`."""

    def probe(self) -> str:
        """Ask the target once, as a drain would, and return a sentence about it.

        :raises SinkUnavailable: it does not answer.
        :raises SinkRefused: it refuses user or password.
        :raises SinkConfigurationError: it cannot hold the guarantees.
        """


def check_sink(sink: object) -> None:
    """Refuse a sink with a method that does not run when it is called, such as a coroutine function."""
    check_methods(sink, _METHODS, f"sink {type(sink).__name__}", error=SinkConfigurationError)


def call_sink(sink: object, method: str, *arguments: Any, **named: Any) -> Any:
    """Call a method of a sink that may be a user's own.

    :raises SinkConfigurationError: its result shows that it has not run.
    """
    try:
        answer = getattr(sink, method)(*arguments, **named)
    except Exception as error:
        interruption = raised_by_handler(error)
        if interruption is None or interruption is error:
            raise
        raise interruption from error  # a driver reported it as an error of its connection, which would be retried
    return returned(answer, f"{method}() of sink {type(sink).__name__}", error=SinkConfigurationError)
