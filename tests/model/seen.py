"""What a store shows, and how it differs from a model."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
import sqlalchemy as sa
from tests.model.expected import CONFLICT, Cell, Layer, Model, Registered, Tx
from tests.support.contexts import catalogue_of, opened_by

from export_queue import Range, Store
from export_queue.core.queue import Queue, read_entries
from export_queue.core.store import Work, schema
from export_queue.core.store.conflict_keys import cell_key, entry_key, row_key
from export_queue.core.store.queries import cleanup
from export_queue.core.store.registration import SLOW_MS
from export_queue.core.transactions import Snapshot, take_snapshot


@dataclass(frozen=True)
class Seen:
    """Everything that a store shows at one moment, to its users and in its rows."""

    aged_from_ms: int
    """The id that the ages of the cells were counted back from."""
    cells: dict[Cell, bytes]
    queued: dict[tuple[bytes, int], bytes | None]
    excluded: set[int]
    active: dict[int, Registered]
    invalid: set[int]
    outcomes: dict[UUID, int | None]
    idempotency_keys: dict[tuple[str, int], tuple[Any, bool]]
    versions: dict[tuple[Cell, int], bytes | None]
    entries: dict[tuple[bytes, int], bytes | None]
    notifications: set[tuple[Cell, int]]
    staged_keys: dict[int, set[bytes]]
    horizon: int


def entries_of(store: Store, snapshot: Snapshot, queue: Queue) -> dict[tuple[bytes, int], bytes | None]:
    """Read what waits in a snapshot, in chunks."""
    found: dict[tuple[bytes, int], bytes | None] = {}
    after = None
    with store.database.read() as work:
        while chunk := read_entries(work, queue, snapshot, Range(0, 7), after=after, rows=3, size=1 << 20):
            found |= {(chunk.keys[i], chunk.seqs[i]): chunk.values[i] for i in range(len(chunk))}
            after = chunk.position(len(chunk) - 1)
    return found


def look(store: Store) -> Seen:
    """Read everything."""
    names = {catalogue_of(store).table(name).number: name for name in CONFLICT}
    snapshot = take_snapshot(store.database)
    with store.transaction(read_only=True) as tx:
        cells = {(table, row, column): value for table in CONFLICT for row, column, value in tx.table(table).scan()}
        aged_from_ms = opened_by(tx).aged_from_ms
    queued = entries_of(store, snapshot, catalogue_of(store).queue("q"))

    with store.database.read() as work:

        def rows(table: sa.Table) -> list[Any]:
            return list(work.connection.execute(sa.select(table)))

        keys = defaultdict(set)
        for row in rows(schema.staged_key):
            keys[row.id].add(bytes(row.key))
        return Seen(
            aged_from_ms=aged_from_ms,
            cells=cells,
            queued=queued,
            excluded=set(snapshot.excluded),
            active={
                row.id: Registered(row.owner, row.low, row.deadline_ms, row.kind == "long", _is_slow(row), row.late_ms)
                for row in rows(schema.active)
            },
            invalid={row.id for row in rows(schema.invalid)},
            outcomes={row.request: row.id for row in rows(schema.outcome)},
            idempotency_keys={
                (row.idempotency_key, row.generation): (orjson.loads(row.result), row.closed_ms is not None)
                for row in rows(schema.idempotency)
            },
            versions={
                ((names[row.table_number], row.row_key, row.column_key), row.version): row.value
                for row in rows(schema.cell)
            },
            entries={(row.key, row.seq): row.value for row in rows(schema.entry)},
            notifications={
                ((names[row.table_number], row.row_key, row.column_key), row.version)
                for row in rows(schema.notification)
            },
            staged_keys=dict(keys),
            horizon=cleanup.horizon(work),
        )


def all_rows(work: Work) -> dict[str, list[Any]]:
    """Read all rows but the notes that clean-up makes for itself."""
    tables = [table for table in schema.metadata.sorted_tables if table.name not in ("xq_low_watermark", "xq_cleaning")]
    return {table.name: sorted(map(repr, work.connection.execute(sa.select(table)))) for table in tables}


def differences(model: Model, seen: Seen, store: Store) -> dict[str, tuple[Any, Any]]:
    """Tell where a store differs from a model: what is expected, what is found."""
    reader = Tx(0, "read", 0, snapshot=frozenset(model.committed), aged_from_ms=seen.aged_from_ms)
    staged = {pointer: layer for pointer, layer in model.staged.items() if layer}
    hidden: dict[int, Layer] = defaultdict(Layer)
    for (cell, version), value in seen.versions.items():
        if version not in model.committed:
            hidden[version].cells[cell] = value
    for (key, seq), value in seen.entries.items():
        if seq not in model.committed:
            hidden[seq].entries[key] = value
    for cell, version in seen.notifications:
        if version not in model.committed:
            hidden[version].notifications.add(cell)
    known = {((cell), at): value for cell, values in model.versions.items() for at, value in values.items()}
    committed_rows = {place: value for place, value in seen.versions.items() if place[1] in model.committed}
    undecided = {
        tx.request: tx.refused_ms is not None
        for tx in model.txs.values()
        if tx.is_open and tx.request is not None and (tx.snapshot is None or model.is_registered(tx))
    }
    lasting = {request: own for request, own in model.outcomes.items() if request.int >> 80 >= model.forgotten_ms}
    pairs: dict[str, tuple[Any, Any]] = {
        "cells": (
            {(table, row, column): value for table in CONFLICT for row, column, value in model.scan(reader, table)},
            seen.cells,
        ),
        "entries that wait": (model.entries_in(frozenset(model.committed)), seen.queued),
        "entries": (model.entries, {one: value for one, value in seen.entries.items() if one[1] in model.committed}),
        "notifications": (model.notifications, {one for one in seen.notifications if one[1] in model.committed}),
        "idempotency_keys": (
            {
                key: (idempotency_key.result, idempotency_key.is_closed)
                for key, idempotency_key in model.idempotency_keys.items()
            },
            seen.idempotency_keys,
        ),
        "commits that took effect": (
            {request: own for request, own in lasting.items() if own is not None},
            {request: own for request, own in seen.outcomes.items() if own is not None and request in lasting},
        ),
        "commits nobody knows of": (
            set(),
            {request for request, own in seen.outcomes.items() if own is not None} - set(model.outcomes),
        ),
        "refused beforehand": (undecided, {request: seen.outcomes.get(request, 0) is None for request in undecided}),
        "ids out of sight": (set(model.active) | model.invalid, seen.excluded),
        "invalid ids": (model.invalid, seen.invalid),
        "what is staged": (
            {pointer: (layer.cells, layer.entries, layer.notifications) for pointer, layer in staged.items()},
            {pointer: (layer.cells, layer.entries, layer.notifications) for pointer, layer in hidden.items()},
        ),
        "staged conflict keys": (
            {pointer: {_as_bytes(store, key) for key in layer.keys} for pointer, layer in staged.items() if layer.keys},
            seen.staged_keys,
        ),
        "who is below the horizon": (set(), {one.owner for one in seen.active.values() if one.low < seen.horizon}),
        "versions nobody wrote": ({place: known.get(place) for place in committed_rows}, committed_rows),
        "owners of ids in progress": (
            {pointer: (one.owner, one.is_long, one.deadline_ms) for pointer, one in model.active.items()},
            {pointer: (one.owner, one.is_long, one.deadline_ms) for pointer, one in seen.active.items()},
        ),
    }
    return {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}


def _as_bytes(store: Store, key: tuple[Any, ...]) -> bytes:
    if key[0] == "queue":
        return entry_key(catalogue_of(store).queue("q").number, key[1])
    number = catalogue_of(store).table(key[0]).number
    return row_key(number, key[1]) if len(key) == 2 else cell_key(number, key[1], key[2])


def _is_slow(row: Any) -> bool:
    return bool(row.kind == "long" and row.deadline_ms - row.started_ms >= SLOW_MS)
