"""What a transaction has written and not yet sent; no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from export_queue.core.store import Writes

Cell = tuple[int, bytes, bytes]
"""Table number, row, column."""
EntryPlace = tuple[int, int, int, bytes]
"""Queue number, layout, bucket, key."""


@dataclass(slots=True)
class WriteBuffer:
    """Own writes, the last one of each cell and each entry."""

    keys: set[bytes] = field(default_factory=set)
    cells: dict[Cell, bytes | None] = field(default_factory=dict)
    entries: dict[EntryPlace, bytes | None] = field(default_factory=dict)
    notes: set[Cell] = field(default_factory=set)
    """Notifications to set."""
    acknowledged: set[Cell] = field(default_factory=set)
    """Notifications that this transaction has worked off."""

    def __bool__(self) -> bool:
        return bool(self.keys or self.cells or self.entries or self.notes or self.acknowledged)

    def writes(self) -> Writes:
        """Return the rows to send."""
        return Writes(
            keys=sorted(self.keys),
            cells=[(*cell, value) for cell, value in self.cells.items()],
            entries=[(*place, value) for place, value in self.entries.items()],
            notes=sorted(self.notes),
            acknowledged=sorted(self.acknowledged),
        )
