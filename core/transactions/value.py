"""A transaction as a value, and the levels at which it sees its own writes; no I/O."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from export_queue.core.errors import InvalidArgument
from export_queue.core.store import Snapshot, unpack_ids


class Level(StrEnum):
    """The own writes that a transaction sees.

    Source: Tephra's visibility levels.
    """

    SNAPSHOT = "snapshot"
    """The newest of its own versions."""
    SNAPSHOT_EXCLUDE_CURRENT = "snapshot_exclude_current"
    """Its own writes up to the last checkpoint."""
    SNAPSHOT_ALL = "snapshot_all"
    """All its own versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One snapshot and the right to write under one id; a value that may travel to other processes.

    Source: Tephra's transaction handle; the visibility rule is that of Cask's 2014 design.
    """

    id: int
    """Start timestamp and first write pointer: milliseconds since the epoch × 10⁶, or one above the last."""
    snapshot: Snapshot
    """All that was committed at its start."""
    write_pointers: tuple[int, ...]
    """Write pointers of this transaction, oldest first; more than one after checkpoints."""
    kind: Literal["read", "short", "long", "bound"]
    deadline_ms: int
    """By the store's clock; a later commit is refused."""
    request: str
    """The name under which the outcome can be asked for."""
    level: Level = Level.SNAPSHOT

    @property
    def read_pointer(self) -> int:
        """The newest id of others that it may see."""
        return self.snapshot.read_pointer

    @property
    def excluded(self) -> frozenset[int]:
        """Ids at or below the read pointer that were in progress or invalid at the start."""
        return self.snapshot.excluded_set

    def is_visible(self, version: int) -> bool:
        """Tell whether a version belongs to this snapshot (I1, I4)."""
        if version in self.write_pointers:
            return self.level is not Level.SNAPSHOT_EXCLUDE_CURRENT or version != self.write_pointers[-1]
        return self.snapshot.is_visible(version)

    @property
    def stored_snapshot(self) -> Snapshot:
        """The snapshot of its reads in the store, which holds own writes only of a long transaction."""
        if self.kind != "long":
            return self.snapshot
        is_current_excluded = self.level is Level.SNAPSHOT_EXCLUDE_CURRENT
        return replace(
            self.snapshot, write_pointers=self.write_pointers[:-1] if is_current_excluded else self.write_pointers
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; ids are strings, since they exceed 2⁵³."""
        return {
            "id": str(self.id),
            **self.snapshot.to_json(),
            "write_pointers": [str(i) for i in self.write_pointers],
            "kind": self.kind,
            "deadline_ms": self.deadline_ms,
            "request": self.request,
            "level": self.level.value,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Transaction:
        """Read the object that :meth:`to_json` gave.

        :raises InvalidArgument: a field is missing or no number.
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
            )
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise InvalidArgument(f"expected a transaction as to_json() gives it, found {error!r}") from error
