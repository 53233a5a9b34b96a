"""The seams between the store and a kind of database: what each kind does in its own way, and the values it exchanges.

All other SQL is portable, see :mod:`export_queue.core.store.queries`. All methods raise the errors of
:mod:`export_queue.core.errors`. A ``raw`` connection is the driver's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeAlias
from uuid import UUID

from export_queue.core.errors import StoreError
from export_queue.core.store.registration import Kind
from export_queue.core.store.snapshot import AnySnapshot, Snapshot
from export_queue.core.store.state_key import KeyInLayout

if TYPE_CHECKING:
    import sqlite3

    import psycopg
    from sqlalchemy import Connection


Handle: TypeAlias = "Connection | sqlite3.Connection | psycopg.Connection[Any]"
"""A connection of the engine, or the driver's own in a transaction that is bound to its user's."""

Clock = Callable[[], int]
"""Milliseconds since the epoch."""

VersionKey = tuple[bytes, bytes, int]
"""Row, column and version: the order of one table's versions."""
EntryKey = tuple[int, bytes, int]
"""Bucket, key, seq: the order of entries."""

Cell = tuple[int, bytes, bytes]
"""Table number, row, column."""
CellOfTable = tuple[bytes, bytes]
"""Row and column."""
Version = tuple[int | None, bytes | None]
"""Version and value of a cell: None and None if none is visible; with a version, None is a tombstone."""
NO_VERSION: Version = (None, None)


@dataclass(frozen=True, slots=True)
class Span:
    """A run of cells in the order of row and column."""

    first_row: bytes = b""
    end_row: bytes | None = None
    """The first row after the span; None if the span has no end."""
    columns: tuple[bytes, ...] = ()
    """Only these columns; all if empty."""

    def holds(self, row: bytes, column: bytes) -> bool:
        """Return whether a cell lies in the span."""
        return (
            row >= self.first_row
            and (self.end_row is None or row < self.end_row)
            and (not self.columns or column in self.columns)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Which versions of a table to read, in the order of row, column and version."""

    table: int
    span: Span
    after: VersionKey
    """Only what follows this row, column and version."""
    limit: int
    expired: int | None = None
    """Versions up to this one count as deleted."""
    newest: bool = False
    """Whether to read only the newest version of each cell. Such grouping costs several times as much if cells have few
    versions, as they do when clean-up runs."""


@dataclass(frozen=True, slots=True)
class Writes:
    """The rows that a commit or a staged flush writes."""

    keys: Sequence[bytes] = ()
    """Conflict keys, ascending and without duplicates, so that two commits cannot deadlock."""
    cells: Sequence[tuple[int, bytes, bytes, bytes | None]] = ()
    """Table number, row, column, value; None is a tombstone."""
    entries: Sequence[tuple[int, int, bytes, bytes | None]] = ()
    """Number of the queue, the key's hash, key, value; the store finds the queue's readers."""
    notifications: Sequence[Cell] = ()
    """Notifications to set."""
    acknowledged: Sequence[Cell] = ()
    """Notifications to remove, if the transaction's snapshot saw them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCall:
    """What a transaction that needs an id is registered with."""

    kind: Kind
    request: UUID
    timeout_ms: int
    client: str
    """The name under which monitoring shows the transaction."""
    first: Cell | None = None
    """A cell to read in the new snapshot, without a further call."""
    load: int | None = None
    """Number of the subscription whose first load this is."""
    mirrors: str | None = None
    """What is mirrored: a queue and a scope."""
    queues: str | None = None
    """A JSON list of the only queues that are added to."""

    @property
    def is_limited(self) -> bool:
        """Whether it adds to some readers only. Then there is no ``first``."""
        return self.load is not None or self.mirrors is not None or self.queues is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCall:
    """Everything that one commit needs; repeating the same call is safe."""

    kind: Kind
    request: UUID
    store_id: str
    """The store to which its numbers of queues and tables belong."""
    transaction: int | None = None
    """Its id; None if it has not been needed yet: the commit draws it."""
    snapshot: AnySnapshot | None = None
    """None if it never read."""
    deadline_ms: int = 0
    writes: Writes = field(default_factory=Writes)
    idempotency_key: str | None = None
    generation: int = 1
    result: str | None = None
    """JSON, stored with the idempotency key."""
    load: int | None = None
    """The subscription whose first load this is: entries are added only to it, and its load is complete."""


class Begun(NamedTuple):
    """The snapshot of a short transaction, taken with its first read."""

    snapshot: AnySnapshot
    taken_ms: int
    """When, by the store's clock."""
    found: Version | None
    """The version of the first cell; None if none was requested."""


class Started(NamedTuple):
    """A transaction that was registered under an id."""

    id: int
    excluded: tuple[int, ...]
    """The smaller ids that its snapshot excludes, ascending."""
    deadline_ms: int
    """By the store's clock."""
    found: Version | None
    """The version of the first cell; None if none was requested."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The decided outcome of a request to commit."""

    status: Literal["committed", "refused"]
    id: int | None


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of one sweep over transactions."""

    ended: int
    failed: str | None = None
    """The first error of a transaction that could not be ended. It did not keep the others from being ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockCall:
    """A request for locks of a queue."""

    queue: int
    layout: int
    buckets_per_range: int
    """Buckets of one unit, as the requester knows the queue."""
    areas: Sequence[tuple[int, int, str | None]]
    """First bucket, end, and what is requested there, as locks store it."""
    mode: str
    priority: int
    task: str
    attempts: Sequence[str]
    """The requester's own, and others of its task that it does not take over."""
    lease_ms: int
    """How long the locks last."""


@dataclass(frozen=True, slots=True)
class Channel:
    """The route of a queue's hints: the name under which they are sent, and two numbers that identify followers."""

    name: str
    locks: tuple[int, int]

    @classmethod
    def of(cls, store_id: str, queue: int) -> Self:
        """Return the channel of a queue, which nothing else in the database uses."""
        digest = hashlib.blake2b(f"{store_id}/{queue}".encode(), digest_size=16).digest()
        first, second = (int.from_bytes(digest[i : i + 4], signed=True) for i in (0, 4))
        return cls(f"export_queue_{digest.hex()}", (first, second))


class Driver(Protocol):
    """The driver of one kind of database: its connections and its errors."""

    error: ClassVar[type[Exception]]
    """Base class of the driver's own errors."""

    def is_idle(self, raw: object) -> bool:
        """Return whether a connection is open and in no SQL transaction, without asking the server."""

    def is_alive(self, raw: object) -> bool:
        """Return the same for a connection that has been idle: its server may have ended it meanwhile."""

    def is_missing_table(self, error: BaseException) -> bool:
        """Return whether a driver's error says that the store's tables do not exist."""

    def explain(self, error: BaseException, url: str) -> StoreError | None:
        """Translate an error about the database as a whole into one that names it; None for all others."""


class TransactionSteps(Protocol):
    """The steps of a transaction, with one round trip each. A step is its own SQL transaction unless one is open."""

    def now(self, connection: Handle) -> int:
        """Read the store's clock, in milliseconds since the epoch."""

    def transaction(self, connection: Handle, *, durable: bool = True) -> AbstractContextManager[None]:
        """Open a SQL transaction for the duration of a block."""

    def draw(self, connection: Handle) -> int:
        """Draw a number from the id source, greater than all before it (I5)."""

    def check_bound(self, raw: object) -> None:
        """Check that a user's connection can carry a transaction of this store and has a SQL transaction open.

        :raises InvalidArgument: it is another driver's, each statement would commit by itself, or texts would be lost.
        """

    def store_id(self, connection: Handle) -> str:
        """Read the identity of the store to which a user's connection leads.

        :raises InvalidArgument: the connection changes values that it reads.
        """

    def begin(self, connection: Handle, first: Cell | None = None) -> Begun:
        """Take the snapshot of a short transaction, without registering or writing anything (I1).

        :param first: a cell to read in the new snapshot, without a further call.
        """

    def start(self, connection: Handle, call: StartCall) -> Started:
        """Draw an id and register it: every smaller id is now listed or finished (I1)."""

    def checkpoint(self, connection: Handle, transaction: int) -> int:
        """Draw another write pointer for a transaction with an active row; it stays in progress as long as that.

        :raises RegistrationLost: the transaction has ended.
        """

    def take_snapshot(self, connection: Handle) -> Snapshot:
        """Take a snapshot without an id and without a durable write."""

    def read_cell(self, connection: Handle, snapshot: AnySnapshot, table: int, row: bytes, column: bytes) -> Version:
        """Read the newest visible version of one cell.

        :raises SnapshotTooOld: clean-up may have overtaken the snapshot.
        """

    def read_cells(
        self, connection: Handle, snapshot: AnySnapshot, table: int, cells: Sequence[CellOfTable]
    ) -> list[Version]:
        """Read at least one cell of a table.

        :returns: what :meth:`read_cell` does, in the order of the cells.
        :raises SnapshotTooOld: clean-up may have overtaken the snapshot.
        """

    def scan_versions(
        self, connection: Handle, snapshot: AnySnapshot, scan: Scan
    ) -> list[tuple[bytes, bytes, bytes | None]]:
        """Read the first visible versions of a span, tombstones included.

        :returns: row, column and value; None is a tombstone.
        :raises SnapshotTooOld: clean-up may have overtaken the snapshot.
        """

    def pointers(self, connection: Handle, transaction: int) -> tuple[int, ...]:
        """Read the write pointers of a long transaction of all its processes, ascending.

        :raises RegistrationLost: it has been ended by others, and its staged rows may be gone.
        """

    def stage(
        self,
        connection: Handle,
        transaction: int,
        writes: Writes,
        flush: int,
        *,
        store_id: str,
        load: int | None = None,
    ) -> tuple[int, ...]:
        """Write rows of a long transaction early: cells under its newest write pointer, entries under its id.

        Entries of a queue with subscriptions are staged under the queue's own number; the commit finds its readers.

        :param flush: a number that was drawn before the call. A call that arrives after one with a higher number, or
            after a checkpoint, changes nothing: the other call may repeat this one, whose process may be gone.
        :param store_id: the store to which the numbers of queues and tables belong.
        :param load: the number of the subscription whose first load this is.
        :returns: all its write pointers, ascending: another process may have made a checkpoint; empty if the call
            came too late.
        :raises RegistrationLost: it has ended.
        :raises StoreReplaced: this store is another one, or does not have these numbers any more.
        """

    def hold_long(self, connection: Handle, transaction: int, queues: Sequence[int], *, store_id: str) -> None:
        """Keep a long transaction in progress, and its queues' readers unchanged, until the SQL transaction ends.

        :param queues: numbers of queues for which the calling SQL transaction stages rows itself.
        :param store_id: the store to which these numbers belong.
        :raises RegistrationLost: the transaction has ended.
        :raises StoreReplaced: this store is another one, or does not have these numbers any more.
        """

    def end_long(self, connection: Handle, transaction: int) -> None:
        """End a long transaction that gets no outcome, in the SQL transaction that publishes its work.

        :raises RegistrationLost: it has ended.
        """

    def commit(self, connection: Handle, call: CommitCall) -> int:
        """Check, write and publish in one SQL transaction (I2, I3), and return the id.

        A bound transaction is written under its own number, drawn after the keys of its entries have been locked until
        the user's SQL transaction ends: the order of a key's entries is that of these ends.

        :raises StoreReplaced: this store is another one, or does not have the numbers of queues and tables any more.
        """

    def abort(
        self, connection: Handle, *, kind: Kind, transaction: int, kept: Sequence[int] = (), left_to: str = ""
    ) -> None:
        """Remove the staged rows and forget the id.

        :param kept: write pointers that become invalid permanently, in the same SQL transaction.
        :param left_to: the participants that could not undo what they wrote under these.
        """

    def decide(self, connection: Handle, request: UUID) -> Outcome:
        """Return the outcome of a request. An undecided request is refused by this call."""

    def select_entries(
        self,
        connection: Handle,
        queue: int,
        layout: int,
        snapshot: Snapshot,
        *,
        first: int,
        end: int,
        after: EntryKey | None,
        rows: int,
    ) -> list[tuple[int, bytes, int, bytes | None]]:
        """Read visible entries of a bucket interval in the order of their keys, in the driver's own rows.

        :param first: the first bucket.
        :param end: the first bucket after the interval.
        :param after: the position after which reading starts.
        :param rows: the maximum number of entries.
        :returns: bucket, key, seq and value.
        """

    def find_key(self, connection: Handle, state: int, hashed: int, key: bytes, cut: int) -> list[KeyInLayout]:
        """Read all that the store has about one key of a state, at one moment.

        :param state: number of the reader that is the state.
        :param hashed: the key's hash.
        :param cut: rows with a greater sequence are left out.
        :returns: what each open layout has; nothing if the state was removed.
        """

    def expire(self, connection: Handle) -> Swept:
        """Make transactions past their deadline invalid."""

    def prune(self, connection: Handle, *, limit: int) -> Swept:
        """Delete the rows of invalid transactions and forget their ids."""


class Administration(Protocol):
    """Creation of a store, and its source of ids."""

    def create(self, connection: Handle) -> None:
        """Create everything that this database needs besides the portable tables and their first rows; idempotent."""

    def last_id(self, connection: Handle) -> int:
        """Read the last number drawn from the id source, also by a SQL transaction that has not ended."""

    def set_floor(self, connection: Handle, floor: int) -> None:
        """Make all future ids greater than a number."""


class LockSteps(Protocol):
    """Locks of a database with several writers at a time."""

    def try_readers(self, connection: Handle, queue: int) -> bool:
        """Take the right to change the readers of a queue until the SQL transaction ends; wait a moment at most.

        Each commit that adds to the queue holds its readers unchanged, from before it reads them to its end.

        :returns: False where such commits were in progress.
        """

    def hold_readers(self, connection: Handle, queue: int) -> None:
        """Keep the readers and the layout of a queue unchanged until the SQL transaction ends, as commits do."""

    def brief_waits(self, connection: Handle, queue: str) -> AbstractContextManager[None]:
        """Limit the wait for each lock to a moment, from the start of a block to the end of the open SQL transaction.

        :param queue: the id of the queue whose readers are changed.
        :raises QueueBusy: a wait in the block took longer.
        """

    def lock_at_once(self, connection: Handle, call: LockCall) -> int | None:
        """Grant locks in one call, if no other lock or request needs a decision.

        :returns: their fence; None if the caller must decide the request step by step.
        """

    def release_locks(self, connection: Handle, held: Sequence[tuple[int, int]], queues: Sequence[int]) -> bool:
        """Remove locks, by fence and first bucket; return whether anybody requests locks of one of the queues."""


class Listener(Protocol):
    """Waits for the hints of queues, and shows those who commit that somebody does."""

    def wait(self, seconds: float) -> bool:
        """Wait until a hint comes or the time is over; False if none can come, since the connection has ended."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a hint comes or the connection ends."""

    def close(self) -> None:
        """Stop waiting."""


class WakeUps(Protocol):
    """Hints of commits that a database carries from process to process."""

    is_supported: bool
    """False once the server has refused: it speaks the protocol without these parts."""

    def send_hints(self, raw: object, channels: Collection[Channel]) -> bool:
        """Send hints to those that follow queues, in a SQL transaction that is not durable; return whether any does."""

    def listen(self, raw: object, channels: Collection[Channel]) -> Listener | None:
        """Start to listen for hints.

        :param raw: belongs to the listener from now on.
        :returns: None if none can come by this connection.
        """
