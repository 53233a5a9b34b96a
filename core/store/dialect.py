"""The seam to a database: the steps that differ between dialects, and the values that cross it.

A dialect implements the steps of a transaction, which each database can do in one round trip in its
own way. Everything else that the store says in SQL is portable and stands in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias
from uuid import UUID

from export_queue.core.store.hints import Channel, Listener
from export_queue.core.store.registration import Kind
from export_queue.core.store.snapshot import AnySnapshot, Snapshot

if TYPE_CHECKING:
    import sqlite3

    import psycopg
    from sqlalchemy import Connection

    from export_queue.core.errors import StoreError

Handle: TypeAlias = "Connection | sqlite3.Connection | psycopg.Connection[Any]"
"""A connection of the engine, or, in a transaction that is bound to its user's, the driver's own."""

Clock = Callable[[], int]
"""Milliseconds since the epoch."""


VersionKey = tuple[bytes, bytes, int]
"""Row, column and version: the order of one table's versions."""
EntryKey = tuple[int, bytes, int]
"""Bucket, key, seq: the order of entries."""

Cell = tuple[int, bytes, bytes]
"""Table number, row, column."""
Version = tuple[int | None, bytes | None]
"""Version and value of a cell: None and None if none is visible; with a version, None is a tombstone."""
NO_VERSION: Version = (None, None)


@dataclass(frozen=True, slots=True)
class Span:
    """A run of cells in the order of row and column."""

    first_row: bytes = b""
    end_row: bytes | None = None
    """The first row that is not in it; None for all to the end."""
    columns: tuple[bytes, ...] = ()
    """Only these columns; all if empty."""

    def holds(self, row: bytes, column: bytes) -> bool:
        """Tell whether a cell lies in the span."""
        return (
            row >= self.first_row
            and (self.end_row is None or row < self.end_row)
            and (not self.columns or column in self.columns)
        )


@dataclass(frozen=True, slots=True)
class Writes:
    """The rows that a commit or a staged flush writes."""

    keys: Sequence[bytes] = ()
    """Conflict keys, ascending and without repetition, so that two commits cannot deadlock."""
    cells: Sequence[tuple[int, bytes, bytes, bytes | None]] = ()
    """Table number, row, column, value; None is a tombstone."""
    entries: Sequence[tuple[int, int, bytes, bytes | None]] = ()
    """Number of the queue that is added to, the key's hash, key, value; the store finds the queue's readers."""
    notifications: Sequence[tuple[int, bytes, bytes]] = ()
    """Notifications to set: table number, row, column."""
    acknowledged: Sequence[tuple[int, bytes, bytes]] = ()
    """Notifications to remove, as far as the transaction's snapshot saw them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCall:
    """Everything that one commit needs; giving the same call again is safe."""

    kind: Kind
    request: UUID
    store_id: str
    """The store that its numbers of queues and tables are of."""
    transaction: int | None = None
    """Its id; None if nobody has needed it: the commit draws it."""
    snapshot: AnySnapshot | None = None
    """None if it never read."""
    deadline_ms: int = 0
    writes: Writes = field(default_factory=Writes)
    idempotency_key: str | None = None
    generation: int = 1
    result: str | None = None
    """JSON, stored with the idempotency key."""
    load: int | None = None
    """The number of the subscription whose first load this is: entries are added to it alone, and it has its load."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The snapshot of a short transaction, taken with its first read."""

    snapshot: AnySnapshot
    taken_ms: int
    """When, by the store's clock."""
    id: int | None = None
    """Its id, where a snapshot is told by the id at which it was taken."""
    found: Version | None = None
    """The version of the first cell, None if none was asked for."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that has taken effect, now or when it was first called."""

    id: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The decided outcome of a request to commit."""

    status: Literal["committed", "refused"]
    id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockCall:
    """A request for locks of a queue."""

    queue: int
    layout: int
    buckets_per_range: int
    """Buckets of one unit, as the requester knows the queue."""
    areas: Sequence[tuple[int, int, str | None]]
    """First bucket, end, and what is asked for there as locks have it."""
    mode: str
    priority: int
    task: str
    attempts: Sequence[str]
    """The requester's own, and others of its task that it does not take over."""
    lease_ms: int
    """How long the locks last."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep over transactions has done."""

    ended: int
    failed: str | None = None
    """The first error, where a transaction could not be ended; it keeps no other."""


class StoreDialect(Protocol):
    """One kind of database under the store; each method is one SQL transaction of its own.

    All of them raise the errors of :mod:`export_queue.core.errors`.
    """

    name: str
    driver_error: ClassVar[type[Exception]]
    """Base of the driver's own errors."""
    is_file: bool
    """Whether the store is a file, whose locks no process may inherit."""
    has_hints: bool
    """Whether a commit may wake those that follow its queues."""

    def is_missing_table(self, error: BaseException) -> bool:
        """Tell whether a driver's error says that the store's tables are not there."""

    def explain(self, error: BaseException, url: str) -> StoreError | None:
        """Turn a driver's error about the database as a whole into one that names it; None for all others."""

    def create_place(self) -> None:
        """Create where the tables will be, if this database has such a thing: a file in its folder; idempotent."""

    def require_in_place(self) -> None:
        """Check, without a question to a server, that the store still is where this process found it.

        :raises StoreError: its file was deleted or replaced.
        """

    def forget_place(self) -> None:
        """Let the next connection find the store anew."""

    def refusal_in_child(self, url: str, *, was_in_use: bool) -> StoreError | None:
        """Tell why a process that was forked a moment ago may not use the store; None if it may.

        :param url: the store's, as it may be shown.
        :param was_in_use: whether another thread of its parent may have been in a step.
        """

    def is_idle(self, raw: object) -> bool:
        """Tell whether a driver's connection is open and in no SQL transaction, without asking the server."""

    def is_alive(self, raw: object) -> bool:
        """Tell the same of a connection that has been idle: its server may have ended it meanwhile."""

    def limit(self, raw: object, seconds: float) -> None:
        """Wait no longer than this for each answer on a driver's connection, until it goes back to its pool."""

    def now(self, connection: Handle) -> int:
        """Read the store's clock, in milliseconds since the epoch."""

    def transaction(self, connection: Handle, *, durable: bool = True) -> AbstractContextManager[None]:
        """Open a SQL transaction for the length of a block."""

    def create(self, connection: Handle) -> None:
        """Create all that this database needs beside the portable tables and their first rows; idempotent."""

    def check_server(self, connection: Handle) -> None:
        """Check that the store lives in the cluster of servers that gave its numbers of SQL transactions.

        :raises OtherCluster: it was copied into another one.
        """

    def try_readers(self, connection: Handle, queue: int) -> bool:
        """Take the right to change the readers of a queue until the SQL transaction ends, waiting for a moment at most.

        Each commit that adds to the queue holds its readers as they are, from before it reads them to its end.

        :returns: False where such commits were under way.
        """

    def hold_readers(self, connection: Handle, queue: int) -> None:
        """Keep the readers and the layout of a queue as they are until the SQL transaction ends, as commits do."""

    def brief_waits(self, connection: Handle, queue: str) -> AbstractContextManager[None]:
        """Wait for no lock longer than a moment, from the begin of a block to the end of the open SQL transaction.

        :param queue: the id of the queue whose readers are changed.
        :raises QueueBusy: in the block, a row was held for longer.
        """

    def last_id(self, connection: Handle) -> int:
        """Read the last number that was drawn from the id source, by any SQL transaction that has ended or has not."""

    def adopt(self, connection: Handle) -> None:
        """Let a store that was copied into another cluster of servers live there."""

    def is_creation_met(self, error: Exception) -> bool:
        """Tell whether a creation failed since another one was at work; the same again finds what that one left."""

    def set_floor(self, connection: Handle, floor: int) -> None:
        """Make all ids to come greater than a number."""

    def draw(self, connection: Handle) -> int:
        """Draw a number from the id source, greater than all before it (I5)."""

    def lock_at_once(self, connection: Handle, call: LockCall) -> int | None:
        """Grant locks in one call, where nothing that needs a decision is in their way.

        :returns: their fence; None where the request is to be decided step by step.
        """

    def release_locks(self, connection: Handle, places: Sequence[tuple[int, int]], queues: Sequence[int]) -> bool:
        """Remove locks, by fence and first bucket; tell whether anybody waits for locks of one of the queues."""

    def check_bound(self, raw: object) -> None:
        """Check that a driver's own connection can carry a transaction of this store and has a SQL transaction open.

        :raises InvalidArgument: it is another driver's, each statement would commit by itself, or texts would be lost.
        """

    def plainly(self, raw: object) -> AbstractContextManager[None]:
        """Have a user's own connection give values as its driver does by itself, for a block."""

    def lend(self, raw: object) -> AbstractContextManager[Connection] | None:
        """Lend a user's own connection, for a write which on any other connection would wait for the user's commit.

        :returns: None where it would not wait.
        """

    def store_id(self, connection: Handle) -> str:
        """Read the identity of the store that a user's own connection leads to.

        :raises InvalidArgument: the connection changes values that it reads.
        """

    def begin(
        self,
        connection: Handle,
        *,
        kind: Literal["read", "short"],
        request: UUID,
        timeout_ms: int,
        client: str,
        first: Cell | None = None,
    ) -> Begun:
        """Take the snapshot of a short transaction; nothing is registered or written unless only ids can tell it (I1).

        :param kind: ``read`` never has an id.
        :param first: a cell that is read in the new snapshot, at the cost of no further call.
        """

    def start(
        self,
        connection: Handle,
        *,
        kind: Kind,
        request: UUID,
        timeout_ms: int,
        client: str,
        first: Cell | None = None,
        load: int | None = None,
    ) -> tuple[int, tuple[int, ...], int, Version | None]:
        """Draw an id and register it: every smaller id is now listed or finished (I1).

        :param client: the name under which monitoring shows the transaction.
        :param first: a cell that is read in the new snapshot, at the cost of no further call.
        :param load: of a first load the number of its subscription, noted with the registration; it reads no cell here.
        :returns: the id; the smaller ones that its snapshot excludes, ascending; the deadline in milliseconds by the
            store's clock; the version of the first cell, None if none was asked for.
        """

    def checkpoint(self, connection: Handle, transaction: int) -> int:
        """Draw one more write pointer for a transaction with an active row; it is in progress as long as that.

        :raises RegistrationLost: the transaction has ended.
        """

    def take_snapshot(self, connection: Handle) -> Snapshot:
        """Take a snapshot without an id and without a durable write."""

    def read_cell(self, connection: Handle, snapshot: AnySnapshot, table: int, row: bytes, column: bytes) -> Version:
        """Read the newest visible version of one cell.

        :raises SnapshotTooOld: clean-up may have overtaken the snapshot.
        """

    def read_cells(
        self, connection: Handle, snapshot: AnySnapshot, table: int, cells: Sequence[tuple[bytes, bytes]]
    ) -> list[Version]:
        """Read many cells of one table, each (row, column), one at least.

        :returns: what :meth:`read_cell` does, in the order of the cells.
        :raises SnapshotTooOld: clean-up may have overtaken the snapshot.
        """

    def scan_versions(
        self,
        connection: Handle,
        snapshot: AnySnapshot,
        table: int,
        span: Span,
        *,
        after: VersionKey,
        limit: int,
        expired: int | None = None,
        newest: bool = False,
    ) -> list[tuple[bytes, bytes, bytes | None]]:
        """Read the first visible versions of a span in the order of row, column and version, tombstones included.

        By default all versions: that is the order of the index. Grouping on the server costs several times as much
        where cells have few versions, as they do when clean-up runs.

        :param after: only what lies behind this row, column and version.
        :param expired: up to this version, and with it, all count as deleted.
        :param newest: only the newest version of each cell.
        :returns: row, column and value; None is a tombstone.
        :raises SnapshotTooOld: clean-up may have overtaken the snapshot.
        """

    def pointers(self, connection: Handle, transaction: int) -> tuple[int, ...]:
        """Read the write pointers of a long transaction, in every process that works for it, ascending.

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

        Entries of a queue with subscriptions wait under the queue's own number for the commit, which finds its readers.

        :param flush: a number that was drawn before the call. A call that arrives behind a younger one, or behind a
            checkpoint, changes nothing: its process may be gone, and the younger one its repetition.
        :param store_id: the store that the numbers of queues and tables are of.
        :param load: the number of the subscription whose first load this is.
        :returns: all its write pointers, ascending: another process may have made a checkpoint; empty if the call
            came too late.
        :raises RegistrationLost: it has ended.
        :raises StoreReplaced: this store is another one, or does not have these numbers any more.
        """

    def hold_long(self, connection: Handle, transaction: int, queues: Sequence[int], *, store_id: str) -> None:
        """Keep a long transaction in progress, and its queues' readers as they are, until the SQL transaction ends.

        :param queues: numbers of queues for which it stages what the calling SQL transaction writes itself.
        :param store_id: the store that these numbers are of.
        :raises RegistrationLost: the transaction has ended.
        :raises StoreReplaced: this store is another one, or does not have these numbers any more.
        """

    def end_long(self, connection: Handle, transaction: int) -> None:
        """End a long transaction that stays without an outcome, in the SQL transaction that publishes its work.

        :raises RegistrationLost: it has ended.
        """

    def commit(self, connection: Handle, call: CommitCall) -> Committed:
        """Check, write and publish in one SQL transaction (I2, I3).

        A bound transaction is written under a number of its own, drawn after the keys of its entries have been locked
        until the user's SQL transaction ends: the order of a key's entries is that of these ends.

        :raises StoreReplaced: this store is another one, or does not have the numbers of queues and tables any more.
        """

    def abort(
        self, connection: Handle, *, kind: Kind, transaction: int, kept: Sequence[int] = (), left_to: str = ""
    ) -> None:
        """Remove the staged rows and forget the id.

        :param kept: write pointers that become invalid for good, in the same SQL transaction.
        :param left_to: the participants that could not undo what they wrote under these.
        """

    def decide(self, connection: Handle, request: UUID) -> Outcome:
        """Tell the outcome of a request; an undecided request is refused from now on."""

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
    ) -> list[tuple[int, bytes, int, bytes | None]] | None:
        """Read entries as :func:`queries.entries.select_entries` does; None where nothing is quicker than that."""

    def send_hints(self, raw: object, channels: Collection[Channel]) -> bool:
        """Send hints to those that follow queues, in a SQL transaction that is not durable; tell whether any does.

        :param raw: the driver's connection.
        """

    def listen(self, raw: object, channels: Collection[Channel]) -> Listener | None:
        """Begin to listen for hints.

        :param raw: a driver's connection, which is the listener's from now on.
        :returns: None where none can come by this connection.
        """

    def is_untidy(self, connection: Handle, *, removed: int, after: int) -> bool:
        """Tell whether it pays to have the database tidy up; never where it does so by itself in time.

        :param removed: entries that the caller has just removed.
        :param after: entries from which on it is worth it, with those that others removed since the last time.
        """

    def tidy_entries(self, connection: Handle) -> None:
        """Let the database reclaim the space of removed entries.

        A drain behind many dead rows reads at half the speed. Needs the owner's rights; without them nothing happens.
        """

    def shrink_log(self, connection: Handle) -> int:
        """Cut a log that readers have made grow, where the database does not do so by itself in time.

        :returns: the bytes of a log that could not be cut, since somebody still reads what was before; else 0.
        """

    def back_up(self, target: Path, on_progress: Callable[[int, int], None]) -> int:
        """Copy everything that is committed at this moment into a new file, and return its bytes.

        :param on_progress: told, again and again, how many bytes are copied, and of how many.
        :raises InvalidArgument: the database has tools of its own for that.
        :raises StoreError: the file exists, or cannot be written.
        """

    def expire(self, connection: Handle) -> Swept:
        """Make transactions past their deadline invalid."""

    def prune(self, connection: Handle, *, limit: int) -> Swept:
        """Delete the rows of invalid transactions and forget their ids."""
