"""Writes of a transaction that have not been sent yet; no I/O."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping

from export_queue.core.errors import ChangeSetTooLarge
from export_queue.core.store import Cell, Limits, Writes
from export_queue.core.transactions.value import Level

AddedKey = tuple[int, int, bytes]
"""Queue number, hash of the key, key."""

log = logging.getLogger("export_queue.transactions")


class WriteBuffer:
    """Own writes: the last write to each cell since each checkpoint, and the last entry of each key.

    :param limits: numbers of changes and bytes that cause a warning, and an error.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._warned = False
        self._few = min(limits.warn_changes, limits.max_changes)
        """Below this number of changes, and of bytes, no limit can be reached."""
        self._small = min(limits.warn_bytes, limits.max_bytes)
        self._reset()

    def _reset(self) -> None:
        self.keys: set[bytes] = set()
        self._layers: list[dict[Cell, bytes | None]] = [{}]  # one per checkpoint, the current one last
        self.entries: dict[AddedKey, bytes | None] = {}
        self.notifications: set[Cell] = set()
        """Cells on which the commit sets a notification."""
        self.acknowledged: set[Cell] = set()
        """Cells from which the commit removes notifications."""
        self.bytes = 0
        self._puts = 0

    def __bool__(self) -> bool:
        return bool(self.keys or any(self._layers) or self.entries or self.notifications or self.acknowledged)

    @property
    def changes(self) -> int:
        """Number of rows that the commit will write."""
        return len(self.keys) + sum(map(len, self._layers)) + len(self.entries)

    def put_cell(self, cell: Cell, value: bytes | None) -> None:
        """Add a write to a cell; None deletes it.

        :raises ChangeSetTooLarge: the transaction would exceed its limits.
        """
        layer = self._layers[-1]
        replaced = layer.get(cell)
        self._grow(len(value or b"") - len(replaced or b"") + (0 if cell in layer else len(cell[1]) + len(cell[2])))
        layer[cell] = value

    def put_entries(self, entries: Mapping[AddedKey, bytes | None], conflict_keys: Collection[bytes] = ()) -> None:
        """Add entries and conflict keys, all or none.

        :raises ChangeSetTooLarge: the transaction would exceed its limits.
        """
        known, size, new = self.entries, 0, sum(key not in self.keys for key in conflict_keys)
        for key, value in entries.items():
            size += len(value or b"")
            if key in known:
                size -= len(known[key] or b"")
            else:
                size += len(key[2])
                new += 1
        self._grow(size, new)
        known.update(entries)
        self.keys.update(conflict_keys)

    def _grow(self, size: int, new: int = 1) -> None:
        self.bytes += size
        self._puts += new
        if len(self.keys) + self._puts < self._few and self.bytes <= self._small:
            return  # an upper bound, because an exact count of the changes is expensive
        limits = self._limits
        changes, found = self.changes + new, self.bytes
        if changes > limits.max_changes or found > limits.max_bytes:
            self.bytes -= size
            raise ChangeSetTooLarge(
                f"expected at most {limits.max_changes} changes and {limits.max_bytes} bytes in one transaction, "
                f"found {changes} and {found}"
            )
        if not self._warned and (changes > limits.warn_changes or self.bytes > limits.warn_bytes):
            self._warned = True
            log.warning(
                "a transaction has %d changes and %d bytes that are not yet sent; at %d or %d it is refused",
                changes,
                self.bytes,
                limits.max_changes,
                limits.max_bytes,
            )

    def checkpoint(self) -> None:
        """Start a new layer; later writes do not replace earlier ones."""
        self._layers.append({})

    def layers(self, level: Level) -> list[dict[Cell, bytes | None]]:
        """Return the layers that are visible at a level, oldest first."""
        return self._layers[:-1] if level is Level.SNAPSHOT_EXCLUDE_CURRENT else self._layers

    def find(self, cell: Cell, level: Level) -> tuple[bool, bytes | None]:
        """Return whether a cell has an own write that is visible at a level, and its value."""
        for layer in reversed(self.layers(level)):
            if cell in layer:
                return True, layer[cell]
        return False, None

    def cells(self, level: Level = Level.SNAPSHOT) -> Mapping[Cell, bytes | None]:
        """Return the newest own write of each cell that is visible at a level."""
        layers = self.layers(level)
        if len(layers) == 1:
            return layers[0]
        merged: dict[Cell, bytes | None] = {}
        for layer in layers:
            merged |= layer
        return merged

    def versions(self, cell: Cell, level: Level) -> Iterator[bytes | None]:
        """Return all own writes of a cell that are visible at a level, newest first."""
        return (layer[cell] for layer in reversed(self.layers(level)) if cell in layer)

    def writes(self) -> Writes:
        """Return the rows to send."""
        return Writes(
            keys=sorted(self.keys),
            cells=[(*cell, value) for cell, value in self.cells().items()],
            entries=[(*key, value) for key, value in self.entries.items()],
            notifications=sorted(self.notifications),
            acknowledged=sorted(self.acknowledged),
        )

    def sent(self) -> None:
        """Forget the writes that have been staged.

        Acknowledgements stay, because only the commit may remove rows permanently.
        """
        acknowledged = self.acknowledged
        self._reset()
        self.acknowledged = acknowledged
