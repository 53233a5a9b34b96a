"""Bulk entries in tests: a long transaction that writes segments, as Spark's tasks and their driver do together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from export_queue import Range, Store, TransactionContext, bucket
from export_queue.core.segments import (
    FileReport,
    UnitReader,
    begin_load,
    stage_segments,
    waiting_segments,
    write_segments,
)
from export_queue.core.store import Snapshot
from export_queue.core.transactions import take_snapshot


def batch(entries: Mapping[str, bytes | None], buckets: int) -> pa.RecordBatch:
    """Entries as a task gets them: sorted by bucket and key."""
    rows = sorted((bucket(key.encode(), buckets), key.encode(), value) for key, value in entries.items())
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    kinds = {"bucket": pa.int32(), "key": pa.binary(), "value": pa.binary()}
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), kind) for column, kind in zip(columns, kinds.values(), strict=True)], names=list(kinds)
    )


def write(
    store: Store, transaction: int, entries: Mapping[str, bytes | None], *, queue_id: str = "orders", tasks: int = 1
) -> list[FileReport]:
    """Write entries into files, as so many tasks."""
    queue = store.queue(queue_id)
    base = begin_load(store.database, transaction)
    reports: list[FileReport] = []
    for task in range(tasks):
        mine = {key: value for key, value in entries.items() if hash_of(key) % tasks == task}
        reports += write_segments(
            [batch(mine, queue.buckets)],
            base=base,
            store_id=store.id,
            transaction=transaction,
            name=f"{task:05d}-{task}",
            buckets_per_range=queue.buckets_per_range,
        )
    return reports


def hash_of(key: str) -> int:
    return sum(key.encode())


def add(
    tx: TransactionContext,
    store: Store,
    entries: Mapping[str, bytes | None],
    *,
    queue_id: str = "orders",
    tasks: int = 1,
) -> list[FileReport]:
    """Write entries into files, and stage them."""
    reports = write(store, tx.id, entries, queue_id=queue_id, tasks=tasks)
    stage_segments(store.database, tx.id, store.queue(queue_id), reports)
    return reports


def load(
    store: Store, entries: Mapping[str, bytes | None], *, queue_id: str = "orders", tasks: int = 1
) -> tuple[int, list[FileReport]]:
    """Commit entries in files; returns the transaction and the files."""
    with store.transaction(long=True) as tx:
        reports = add(tx, store, entries, queue_id=queue_id, tasks=tasks)
        return tx.id, reports


def many(number: int, value: bytes = b"bulk", *, start: int = 0) -> dict[str, bytes | None]:
    return {f"key-{i}": value for i in range(start, start + number)}


def put(store: Store, keys: Iterable[str], value: bytes | None, *, queue_id: str = "orders") -> int:
    """Commit entries that are rows; returns the transaction."""
    with store.transaction() as tx:
        for key in keys:
            tx.queue(queue_id).add(key, value)
        return tx.id


def waits(store: Store, snapshot: Snapshot | None = None) -> list[tuple[int, bytes, int, bytes | None]]:
    """Read all that a drain would bring, in its order."""
    queue = store.queue("orders")
    within = Range(0, queue.buckets)
    seen = snapshot or take_snapshot(store.database)
    found: list[tuple[int, bytes, int, bytes | None]] = []
    with store.database.read() as work:
        reader = UnitReader(queue, seen, within, waiting_segments(work, queue, seen, within), rows=1000, size=1 << 20)
        while chunk := reader.read(work).entries:
            found += zip(chunk.buckets, chunk.keys, chunk.seqs, chunk.values, strict=True)
    reader.close()
    return found
