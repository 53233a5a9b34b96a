"""A transaction as a value, its states and its visibility levels; no I/O."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from export_queue.core.errors import InvalidArgument
from export_queue.core.store import Snapshot, unpack_ids


class State(StrEnum):
    """The state of a transaction, as the process that runs it knows it."""

    NEW = "new"
    """It has read nothing, and nobody has asked for its id."""
    IN_PROGRESS = "in progress"
    """It has a snapshot or an id. Later snapshots do not include it."""
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTED = "aborted"
    """It was refused, aborted or failed, and never takes effect."""
    UNKNOWN = "unknown"
    """The commit got no answer, and the store cannot be asked."""


TRANSITIONS: dict[State, frozenset[State]] = {
    State.NEW: frozenset({State.IN_PROGRESS, State.COMMITTING, State.ABORTED}),
    State.IN_PROGRESS: frozenset({State.COMMITTING, State.ABORTED}),
    State.COMMITTING: frozenset({State.COMMITTED, State.ABORTED, State.UNKNOWN}),
    State.COMMITTED: frozenset(),
    State.ABORTED: frozenset(),
    State.UNKNOWN: frozenset(),
}
"""All transitions between states; ``docs/transaction-ids.md`` draws them."""

OPEN = frozenset({State.NEW, State.IN_PROGRESS})
"""The states in which a transaction can read and write."""


class Level(StrEnum):
    """Which of its own writes a transaction reads.

    Source: Tephra's visibility levels.
    """

    SNAPSHOT = "snapshot"
    """The newest own version of each cell."""
    SNAPSHOT_EXCLUDE_CURRENT = "snapshot_exclude_current"
    """Own writes up to the last checkpoint."""
    SNAPSHOT_ALL = "snapshot_all"
    """All own versions of each cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A snapshot and the right to write under one id. The value can be sent to other processes.

    Source: Tephra's transaction handle; the visibility rule is that of Cask's 2014 design.
    """

    id: int
    """Start timestamp and first write pointer: milliseconds since the epoch × 10⁶, or the last id + 1."""
    snapshot: Snapshot
    """Everything that was committed when the transaction started."""
    write_pointers: tuple[int, ...]
    """Ids under which the transaction writes, oldest first. Each checkpoint adds one."""
    kind: Literal["read", "short", "long", "bound"]
    deadline_ms: int
    """Time by the store's clock after which the commit is refused, in milliseconds since the epoch."""
    request: str
    """Identifies the commit, so that its outcome can be queried."""
    level: Level = Level.SNAPSHOT
    queues: tuple[str, ...] | None = None
    """The only queues that it may add to; None: all."""

    @property
    def read_pointer(self) -> int:
        """The highest id of another transaction that can be visible."""
        return self.snapshot.read_pointer

    @property
    def excluded(self) -> frozenset[int]:
        """Ids up to the read pointer that were in progress or invalid at the start."""
        return self.snapshot.excluded_set

    def is_visible(self, version: int) -> bool:
        """Return whether this snapshot contains a version (I1, I4)."""
        if version in self.write_pointers:
            return self.level is not Level.SNAPSHOT_EXCLUDE_CURRENT or version != self.write_pointers[-1]
        return self.snapshot.is_visible(version)

    @property
    def stored_snapshot(self) -> Snapshot:
        """The snapshot for reads from the store, which holds own writes only if the transaction is long."""
        if self.kind != "long":
            return self.snapshot
        is_current_excluded = self.level is Level.SNAPSHOT_EXCLUDE_CURRENT
        return replace(
            self.snapshot, write_pointers=self.write_pointers[:-1] if is_current_excluded else self.write_pointers
        )

    def to_json(self) -> dict[str, Any]:
        """Return the transaction as a JSON object. Ids are strings, because they exceed 2⁵³."""
        return {
            "id": str(self.id),
            **self.snapshot.to_json(),
            "write_pointers": [str(i) for i in self.write_pointers],
            "kind": self.kind,
            "deadline_ms": self.deadline_ms,
            "request": self.request,
            "level": self.level.value,
            "queues": self.queues,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Transaction:
        """Read the object that :meth:`to_json` returned.

        :raises InvalidArgument: a field is missing or malformed.
        """
        try:
            return cls(
                id=int(value["id"]),
                snapshot=Snapshot(int(value["read_pointer"]), unpack_ids(value["excluded"])),
                write_pointers=tuple(int(i) for i in value["write_pointers"]),
                kind=value["kind"],
                deadline_ms=int(value["deadline_ms"]),
                request=value["request"],
                level=Level(value["level"]),
                queues=None if value["queues"] is None else tuple(value["queues"]),
            )
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise InvalidArgument(f"expected a transaction as to_json() gives it, found {error!r}") from error
