"""The model: what a store must show, kept in plain dictionaries that forget nothing.

A snapshot is the set of write pointers that had committed when it was taken. Of a cell it shows the version with
the greatest one; a commit is refused if a key's last writer is not among them. Nothing else is known here of ids in
progress, horizons, staged rows or locks than what somebody who asks the store can see of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from export_queue import (
    AlreadyCommitted,
    CommitRefused,
    ConflictError,
    Level,
    RegistrationLost,
    SnapshotTooOld,
    TransactionTimeout,
)
from export_queue.core.store.registration import SLOW_MS, STAYED_MS

Cell = tuple[str, bytes, bytes]
"""Table, row, column."""
Kind = Literal["read", "short", "long"]

CONFLICT = {"rows": "row", "cells": "cell", "free": "none", "brief": "row", "seen": "row"}
"""The tables and their conflict levels."""
STRONG, WEAK = ("rows", b"x"), ("cells", b"x")
"""The observed columns."""


@dataclass
class Layer:
    """What a transaction wrote under one write pointer."""

    cells: dict[Cell, bytes | None] = field(default_factory=dict)
    entries: dict[bytes, bytes | None] = field(default_factory=dict)
    notifications: set[Cell] = field(default_factory=set)
    keys: set[tuple[Any, ...]] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.cells or self.entries or self.notifications or self.keys)

    def take(self, other: Layer) -> None:
        """Write what another layer holds over this one."""
        self.cells |= other.cells
        self.entries |= other.entries
        self.notifications |= other.notifications
        self.keys |= other.keys


@dataclass
class Tx:
    """A transaction of the model."""

    number: int
    kind: Kind
    timeout_ms: int
    process: int | None = None
    """Who holds its writes; None for a long one, which is held by the store."""
    request: UUID | None = None
    idempotency_key: tuple[str, int] | None = None
    aged_from_ms: int | None = None
    """The time that ages count from."""
    pointers: list[int] = field(default_factory=list)
    snapshot: frozenset[int] | None = None
    low: int = 0
    deadline_ms: int = 0
    layers: list[Layer] = field(default_factory=lambda: [Layer()])
    """One a checkpoint; those of a long one are staged in the store."""
    buffer: Layer | None = None
    """What a long one has written and not yet staged."""
    acknowledged: set[Cell] = field(default_factory=set)
    level: Level = Level.SNAPSHOT
    refused_ms: int | None = None
    """When somebody first asked for its outcome, before it committed."""
    is_open: bool = True

    @property
    def writes_to(self) -> Layer:
        """Where the next write goes."""
        return self.layers[-1] if self.buffer is None else self.buffer

    def own(self) -> list[Layer]:
        """What it sees of its own writes, the oldest first."""
        layers = list(self.layers)
        if self.buffer is not None:
            last = Layer()
            last.take(layers[-1])
            last.take(self.buffer)
            layers[-1] = last
        return layers[:-1] if self.level is Level.SNAPSHOT_EXCLUDE_CURRENT else layers

    def has_written(self) -> bool:
        """Tell whether there is anything to commit."""
        return any(self.layers) or bool(self.acknowledged) or self.idempotency_key is not None


@dataclass
class Registered:
    """A write pointer in progress."""

    owner: int
    low: int
    deadline_ms: int
    is_long: bool
    is_slow: bool = False
    """Whether it has a time-out of hours: it is ended only if it was found late some minutes earlier, too."""
    late_ms: int | None = None
    """When it was first found late, if it is slow."""


@dataclass
class UnitOfWork:
    """One generation of an idempotency key."""

    result: Any
    committed_ms: int
    is_closed: bool = False


class Model:
    """A store.

    :param ttl_ms: time to live of the table ``brief``.
    """

    def __init__(self, *, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self.txs: dict[int, Tx] = {}
        self.committed: set[int] = set()
        self.versions: dict[Cell, dict[int, bytes | None]] = {}
        self.entries: dict[tuple[bytes, int], bytes | None] = {}
        self.notifications: set[tuple[Cell, int]] = set()
        self.writers: dict[tuple[Any, ...], int] = {}
        self.idempotency_keys: dict[tuple[str, int], UnitOfWork] = {}
        self.outcomes: dict[UUID, int | None] = {}
        """Of requests that have ended: the id that committed, or None."""
        self.forgotten_ms = 0
        """Outcomes of requests made before this may be forgotten."""
        self.active: dict[int, Registered] = {}
        self.invalid: set[int] = set()
        self.staged: dict[int, Layer] = {}
        """What is in the store under write pointers that have not committed."""

    # --- reading

    def value_of(self, tx: Tx, cell: Cell) -> bytes | None:
        """Read a cell: own writes first, then the snapshot."""
        for layer in reversed(tx.own()):
            if cell in layer.cells:
                return layer.cells[cell]
        return self.committed_value(tx, cell)

    def committed_value(self, tx: Tx, cell: Cell) -> bytes | None:
        """Read a cell of the snapshot."""
        assert tx.snapshot is not None
        seen = [version for version in self.versions.get(cell, ()) if version in tx.snapshot]
        if not seen or (cell[0] == "brief" and max(seen) <= ((tx.aged_from_ms or 0) - self.ttl_ms) * 1_000_000):
            return None
        return self.versions[cell][max(seen)]

    def versions_of(self, tx: Tx, cell: Cell) -> list[bytes | None]:
        """Read own versions of a cell and the committed one, the newest first, without deletes at the end."""
        own = [layer.cells[cell] for layer in reversed(tx.own()) if cell in layer.cells]
        found = [*own, self.committed_value(tx, cell)]
        found = found if tx.level is Level.SNAPSHOT_ALL else found[:1]
        while found and found[-1] is None:
            found.pop()
        return found

    def scan(self, tx: Tx, table: str) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Read a table in order."""
        cells = set(self.versions).union(*(layer.cells for layer in tx.own()))
        for cell in sorted(cell for cell in cells if cell[0] == table):
            value = self.value_of(tx, cell)
            if value is not None:
                yield cell[1], cell[2], value

    def entries_in(self, snapshot: frozenset[int]) -> dict[tuple[bytes, int], bytes | None]:
        """Read what waits in the queue."""
        return {(key, seq): value for (key, seq), value in self.entries.items() if seq in snapshot}

    def due(self) -> set[Cell]:
        """Read the cells with notifications of committed transactions."""
        return {cell for cell, version in self.notifications if version in self.committed}

    # --- writing

    def set(self, tx: Tx, cell: Cell, value: bytes | None) -> None:
        """Write a cell; None deletes it."""
        table, row, column = cell
        tx.writes_to.cells[cell] = value
        if CONFLICT[table] != "none":
            tx.writes_to.keys.add((table, row) if CONFLICT[table] == "row" else cell)
        if value is not None and (table, column) == STRONG:
            tx.writes_to.notifications.add(cell)

    def add(self, tx: Tx, key: bytes, value: bytes | None, *, exclusive: bool) -> None:
        """Add an entry. All have the id of their transaction, whatever its checkpoints."""
        layer = tx.layers[0] if tx.kind == "short" else tx.writes_to
        layer.entries[key] = value
        if exclusive:
            layer.keys.add(("queue", key))

    # --- beginning and ending

    def start(self, tx: Tx, own: int, now: int) -> None:
        """Take the snapshot and register the id."""
        tx.pointers = [own]
        tx.snapshot = frozenset(self.committed)
        tx.low = min([own, *self.active, *self.invalid])
        tx.deadline_ms = now + tx.timeout_ms
        self.register(own, own, tx)

    def take(self, tx: Tx, now: int, *, below: int | None = None) -> None:
        """Take the snapshot of a first read: nothing is registered.

        :param below: only of what has committed with smaller ids.
        """
        tx.snapshot = frozenset(one for one in self.committed if below is None or one < below)
        tx.deadline_ms = now + tx.timeout_ms

    def draw(self, tx: Tx, own: int, now: int) -> None:
        """Draw the id of a transaction that has read; its snapshot stays."""
        tx.pointers = [own]
        self.active[own] = Registered(own, min([own, *self.active, *self.invalid]), now + tx.timeout_ms, False)

    def register(self, pointer: int, owner: int, tx: Tx) -> None:
        """Add a write pointer in progress, for as long as the first one."""
        deadline_ms = tx.deadline_ms if pointer == owner else self.active[owner].deadline_ms
        is_long = tx.kind == "long"
        self.active[pointer] = Registered(owner, tx.low, deadline_ms, is_long, is_long and tx.timeout_ms >= SLOW_MS)
        if tx.kind == "long":
            self.staged[pointer] = tx.layers[-1]

    def checkpoint(self, tx: Tx, pointer: int | None) -> None:
        """Begin a layer over what was written so far; of a long transaction under a new pointer."""
        tx.layers.append(Layer())
        if pointer is not None:
            tx.pointers.append(pointer)
            self.register(pointer, tx.pointers[0], tx)

    def flush(self, tx: Tx) -> None:
        """Stage what a long transaction has buffered."""
        assert tx.buffer is not None
        tx.layers[0].entries |= tx.buffer.entries
        tx.buffer.entries = {}
        tx.layers[-1].take(tx.buffer)
        tx.buffer = Layer()

    def is_registered(self, tx: Tx) -> bool:
        """Tell whether the store still holds a transaction to be in progress."""
        return bool(tx.pointers) and tx.pointers[0] in self.active

    def reasons(self, tx: Tx, *, now: int, horizon: int) -> set[type[Exception]]:
        """Tell why a commit must fail, each by its error; none if it must not."""
        found: set[type[Exception]] = set()
        if tx.refused_ms is not None:
            found.add(CommitRefused)
        if tx.idempotency_key in self.idempotency_keys:
            found.add(AlreadyCommitted)
        if tx.snapshot is None:
            return found
        if tx.pointers and not self.is_registered(tx):
            found |= {RegistrationLost, CommitRefused}  # which of them depends on whether somebody has asked before
        if now > tx.deadline_ms:
            found.add(TransactionTimeout)
        writers = {self.writers.get(key, 0) for layer in tx.layers for key in layer.keys}
        # Ids must follow the commits of a key: one that was drawn early may be smaller than a writer that it sees.
        if writers - {0, *tx.snapshot} or (tx.pointers and max(writers, default=0) > tx.pointers[0]):
            found.add(ConflictError)
        if tx.low < horizon:
            found.add(SnapshotTooOld)
        return found

    def commit(self, tx: Tx, own: int, *, now: int, result: Any = None) -> None:
        """Make everything that was written visible, and nothing else."""
        pointers = tx.pointers or [own]
        if tx.kind == "long":
            layers = dict(zip(pointers, tx.layers, strict=True))
        else:
            layers = {own: Layer()}
            for layer in tx.layers:
                layers[own].take(layer)
        seen = tx.snapshot or frozenset()
        self.notifications = {
            (cell, at) for cell, at in self.notifications if cell not in tx.acknowledged or at not in seen
        }
        for pointer, layer in layers.items():
            for cell, value in layer.cells.items():
                self.versions.setdefault(cell, {})[pointer] = value
            self.entries |= {(key, pointer): value for key, value in layer.entries.items()}
            self.notifications |= {(cell, pointer) for cell in layer.notifications}
            self.writers |= dict.fromkeys(layer.keys, 0)
        for layer in layers.values():
            self.writers |= dict.fromkeys(layer.keys, pointers[-1])
        if tx.idempotency_key is not None:
            self.idempotency_keys[tx.idempotency_key] = UnitOfWork(result, now)
        self.committed |= set(pointers)
        self._end(tx, own)

    def end(self, tx: Tx) -> None:
        """Abort, or end without anything to commit: what it staged goes unless a sweep came first."""
        for pointer in tx.pointers:
            if pointer in self.active:
                self.staged.pop(pointer, None)
        self._end(tx, None)

    def _end(self, tx: Tx, outcome: int | None) -> None:
        tx.is_open = False
        for pointer in tx.pointers:
            self.active.pop(pointer, None)
        if outcome is not None:
            for pointer in tx.pointers:
                self.staged.pop(pointer, None)
        if tx.request is not None:
            self.outcomes[tx.request] = outcome

    def die(self, process: int) -> None:
        """A process has died: what it held is lost; ids that a row registers stay in progress to their deadline."""
        for tx in self.txs.values():
            if tx.is_open and tx.process == process:
                left = {pointer: self.active[pointer] for pointer in tx.pointers if pointer in self.active}
                self.end(tx)
                self.active |= left
            elif tx.is_open and tx.buffer is not None:
                tx.buffer = Layer()

    # --- clean-up

    def expire(self, now: int) -> int:
        """Make what is past its deadline invalid; a short one has left nothing."""
        owners = {own: one for own, one in self.active.items() if own == one.owner and one.deadline_ms < now}
        for one in owners.values():
            if one.is_slow and (one.late_ms is None or one.late_ms > now):
                one.late_ms = now
        ended = {own for own, one in owners.items() if not one.is_slow or (one.late_ms or now) <= now - STAYED_MS}
        late = {pointer: one for pointer, one in self.active.items() if one.owner in ended}
        for pointer, one in late.items():
            del self.active[pointer]
            if one.is_long:
                self.invalid.add(pointer)
        return sum(pointer == one.owner for pointer, one in late.items())

    def prune(self, limit: int) -> int:
        """Delete what invalid ids left, and forget them."""
        doomed = sorted(self.invalid)[:limit]
        for pointer in doomed:
            self.invalid.remove(pointer)
            self.staged.pop(pointer, None)
        return len(doomed)

    def forget_outcomes(self, before_ms: int) -> None:
        """Forget what became of old requests, but not that one in progress has been refused."""
        self.forgotten_ms = max(self.forgotten_ms, before_ms)
        for tx in self.txs.values():
            if tx.request is None or tx.refused_ms is None or self.is_registered(tx):
                continue
            if max(tx.request.int >> 80, tx.refused_ms) < before_ms:
                tx.refused_ms = None

    def forget_idempotency_keys(self, before_ms: int) -> int:
        """Forget work that was done before a time."""
        doomed = [
            key for key, idempotency_key in self.idempotency_keys.items() if idempotency_key.committed_ms < before_ms
        ]
        for key in doomed:
            del self.idempotency_keys[key]
        return len(doomed)

    def idempotency_state(self, name: str) -> tuple[int, bool, Any]:
        """Tell generation, whether the work has taken effect in it, and its result."""
        generation = max((g for known, g in self.idempotency_keys if known == name), default=0)
        idempotency_key = self.idempotency_keys.get((name, generation))
        if idempotency_key is None or idempotency_key.is_closed:
            return generation + 1, False, None
        return generation, True, idempotency_key.result

    def remove(self, snapshot: frozenset[int], keys: Iterable[tuple[bytes, int]]) -> int:
        """Remove entries that a snapshot shows."""
        doomed = [one for one in keys if one in self.entries and one[1] in snapshot]
        for one in doomed:
            del self.entries[one]
        return len(doomed)
