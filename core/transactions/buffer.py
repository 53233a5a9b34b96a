"""Writes of a transaction that are not yet sent; no I/O."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping

from export_queue.core.errors import ChangeSetTooLarge
from export_queue.core.store import Cell, Limits, Writes
from export_queue.core.transactions.value import Level

EntryKey = tuple[int, int, bytes]
"""Queue number, hash of the key, key."""

log = logging.getLogger("export_queue.transactions")


class WriteBuffer:
    """Own writes: of each cell the last one since each checkpoint, of each entry the last one.

    :param limits: how many changes and bytes are warned of, and refused.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._warned = False
        self._few = min(self._limits.warn_changes, self._limits.max_changes)
        """With fewer changes and bytes than these no limit is near."""
        self._small = min(self._limits.warn_bytes, self._limits.max_bytes)
        self._reset()

    def _reset(self) -> None:
        self.keys: set[bytes] = set()
        self._layers: list[dict[Cell, bytes | None]] = [{}]  # one a checkpoint, the current one last
        self.entries: dict[EntryKey, bytes | None] = {}
        self.notifications: set[Cell] = set()
        """Notifications to set."""
        self.acknowledged: set[Cell] = set()
        """Notifications that this transaction has worked off."""
        self.bytes = 0
        self._puts = 0

    def __bool__(self) -> bool:
        return bool(self.keys or any(self._layers) or self.entries or self.notifications or self.acknowledged)

    @property
    def changes(self) -> int:
        """How many rows the commit will write."""
        return len(self.keys) + sum(map(len, self._layers)) + len(self.entries)

    def put_cell(self, cell: Cell, value: bytes | None) -> None:
        """Take a write; None is a delete.

        :raises ChangeSetTooLarge: the transaction would write more than it may.
        """
        layer = self._layers[-1]
        replaced = layer.get(cell)
        self._grow(len(value or b"") - len(replaced or b"") + (0 if cell in layer else len(cell[1]) + len(cell[2])))
        layer[cell] = value

    def put_entries(self, entries: Mapping[EntryKey, bytes | None], conflict_keys: Collection[bytes] = ()) -> None:
        """Take entries and conflict keys, all or none.

        :raises ChangeSetTooLarge: the transaction would write more than it may.
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
        """Count what is about to be taken.

        :param new: how many changes come at most.
        """
        self.bytes += size
        self._puts += new
        if len(self.keys) + self._puts < self._few and self.bytes <= self._small:
            return  # there are no more changes than that, which are dear to count
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
        """Begin a new layer over the writes so far."""
        self._layers.append({})

    def layers(self, level: Level) -> list[dict[Cell, bytes | None]]:
        """Return the layers that a level sees, the oldest first."""
        return self._layers[:-1] if level is Level.SNAPSHOT_EXCLUDE_CURRENT else self._layers

    def find(self, cell: Cell, level: Level) -> tuple[bool, bytes | None]:
        """Look an own write up: whether there is one, and its value."""
        for layer in reversed(self.layers(level)):
            if cell in layer:
                return True, layer[cell]
        return False, None

    def cells(self, level: Level = Level.SNAPSHOT) -> Mapping[Cell, bytes | None]:
        """Return the newest own write of each cell that a level sees."""
        layers = self.layers(level)
        if len(layers) == 1:
            return layers[0]
        merged: dict[Cell, bytes | None] = {}
        for layer in layers:
            merged |= layer
        return merged

    def versions(self, cell: Cell, level: Level) -> Iterator[bytes | None]:
        """Give each own write of a cell that a level sees, the newest first."""
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

        Acknowledgements wait for the commit, since they remove rows for good; notifications do not, since another
        process may commit.
        """
        acknowledged = self.acknowledged
        self._reset()
        self.acknowledged = acknowledged
