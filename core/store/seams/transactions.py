"""The seam of transactions: their steps, which each kind of database does in one round trip in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol
from uuid import UUID

from export_queue.core.store.registration import Kind
from export_queue.core.store.seams.values import (
    Begun,
    Cell,
    CommitCall,
    Committed,
    EntryKey,
    Handle,
    Outcome,
    Span,
    Started,
    Swept,
    Version,
    VersionKey,
    Writes,
)
from export_queue.core.store.snapshot import AnySnapshot, Snapshot


class TransactionSteps(Protocol):
    """The steps of a transaction; each is one SQL transaction of its own unless one is open."""

    def now(self, connection: Handle) -> int:
        """Read the store's clock, in milliseconds since the epoch."""

    def transaction(self, connection: Handle, *, durable: bool = True) -> AbstractContextManager[None]:
        """Open a SQL transaction for the length of a block."""

    def draw(self, connection: Handle) -> int:
        """Draw a number from the id source, greater than all before it (I5)."""

    def check_bound(self, raw: object) -> None:
        """Check that a driver's own connection can carry a transaction of this store and has a SQL transaction open.

        :raises InvalidArgument: it is another driver's, each statement would commit by itself, or texts would be lost.
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
    ) -> Started:
        """Draw an id and register it: every smaller id is now listed or finished (I1).

        :param client: the name under which monitoring shows the transaction.
        :param first: a cell that is read in the new snapshot, at the cost of no further call.
        :param load: of a first load the number of its subscription, noted with the registration; it reads no cell here.
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
    ) -> list[tuple[int, bytes, int, bytes | None]]:
        """Read visible entries of a bucket interval in the order of their keys, in the driver's own rows.

        :param first: the first bucket.
        :param end: the first bucket that is not in the interval.
        :param after: the position after which reading starts.
        :param rows: the maximum number of entries.
        :returns: bucket, key, seq and value.
        """

    def expire(self, connection: Handle) -> Swept:
        """Make transactions past their deadline invalid."""

    def prune(self, connection: Handle, *, limit: int) -> Swept:
        """Delete the rows of invalid transactions and forget their ids."""
