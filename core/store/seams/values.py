"""The values that cross the seams to a database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from uuid import UUID

from export_queue.core.store.registration import Kind
from export_queue.core.store.snapshot import AnySnapshot

if TYPE_CHECKING:
    import sqlite3

    import psycopg
    from sqlalchemy import Connection

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
        """Return whether a cell lies in the span."""
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
    """Notifications to remove, if the transaction's snapshot saw them."""


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
    """The subscription whose first load this is: entries are added to it alone, and its load is complete."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The snapshot of a short transaction, taken with its first read."""

    snapshot: AnySnapshot
    taken_ms: int
    """When, by the store's clock."""
    id: int | None = None
    """Its id, where a snapshot is known by the id at which it was taken."""
    found: Version | None = None
    """The version of the first cell, None if none was asked for."""


class Started(NamedTuple):
    """A transaction that was registered under an id."""

    id: int
    excluded: tuple[int, ...]
    """The smaller ids that its snapshot excludes, ascending."""
    deadline_ms: int
    """By the store's clock."""
    found: Version | None
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


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of one sweep over transactions."""

    ended: int
    failed: str | None = None
    """The first error, where a transaction could not be ended; the others were ended nevertheless."""
