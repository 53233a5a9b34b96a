"""A sink in this process's memory: for tests, and as the shortest complete implementation of the protocol."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from export_queue.core.sinks.batch import apply_batch, refuse_seqs
from export_queue.core.sinks.control import (
    ControlRecord,
    FloorRecord,
    check_owner,
    raise_floor,
    register_store,
    stale_rank,
)
from export_queue.core.sinks.operations import MAX_SEQ, Operations
from export_queue.core.sinks.protocol import ApplyResult, Capabilities, StoredRecords

Record = tuple[str, bytes]
"""Collection and id."""


@dataclass(slots=True)
class _Contents:
    """The records of all memory sinks of one name."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    ranks: dict[Record, int] = field(default_factory=dict)
    documents: dict[Record, bytes] = field(default_factory=dict)
    ttls: dict[Record, float] = field(default_factory=dict)
    control: dict[str, ControlRecord] = field(default_factory=dict)
    floor: FloorRecord = field(default_factory=FloorRecord)


_shared: dict[str, _Contents] = {}
_shared_lock = threading.Lock()


class MemorySink:
    """Records in a dictionary, each with its rank.

    A time to live is stored for inspection, but records do not expire.

    :param name: sinks of the same name in one process share their records. A sink without a name has its own.
    """

    capabilities = Capabilities(batch_rows=10_000, batch_bytes=16 << 20, ttl=True)

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        if name is None:
            self._contents = _Contents()
        else:
            with _shared_lock:
                self._contents = _shared.setdefault(name, _Contents())

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        contents = self._contents
        with contents.lock:
            found = contents.control.get(queue_id)
            wanted = check_owner(found, queue_id=queue_id, store_id=store_id, fence=fence, sink=str(self), shown=shown)
            contents.floor = register_store(contents.floor, store_id=store_id, sink=str(self))
            contents.control[queue_id] = wanted

    def apply(self, operations: Operations) -> ApplyResult:
        reasons: dict[int, str] = {}
        refuse_seqs(operations, reasons)
        with self._contents.lock:
            return apply_batch(operations, reasons=reasons, write=self._write, ttl=True)

    def repair(self, operations: Operations) -> ApplyResult:
        reasons: dict[int, str] = {}
        refuse_seqs(operations, reasons)
        with self._contents.lock:
            return apply_batch(operations, reasons=reasons, write=partial(self._write, repairs=True), ttl=True)

    def _write(self, operations: Operations, *, repairs: bool = False) -> ApplyResult:
        ranks, documents, ttls = self._contents.ranks, self._contents.documents, self._contents.ttls
        stale = -1 if repairs else stale_rank(self._contents.floor.floor)
        written = 0
        for i, rank in enumerate(operations.ranks()):
            record = operations.collections[i], operations.ids[i]
            known = ranks.get(record, -1)
            if rank <= stale or rank < known or (rank == known and not repairs):
                continue
            written += 1
            ranks[record] = rank  # it remains after a delete, as the tombstone
            document = operations.documents[i]
            ttl = None if operations.ttls is None else operations.ttls[i]
            ttls.pop(record, None)
            if document is None:
                documents.pop(record, None)
            else:
                documents[record] = document
                if ttl is not None:
                    ttls[record] = ttl
        return ApplyResult(written, len(operations) - written)

    def sweep(self, *, store_id: str, floor: int) -> int:
        contents = self._contents
        with contents.lock:
            contents.floor = raise_floor(contents.floor, store_id=store_id, floor=floor, sink=str(self))
            stale = stale_rank(contents.floor.floor)
            gone = [record for record, rank in contents.ranks.items() if rank <= stale and rank % 2 == 0]
            for record in gone:
                del contents.ranks[record]
        return len(gone)

    def render(self, operations: Operations) -> tuple[StoredRecords, Sequence[int]]:
        seqs, kept = operations.seqs, operations
        fitting: Sequence[int] = range(len(operations))
        if seqs and not 0 <= min(seqs) <= max(seqs) <= MAX_SEQ:
            fitting = [i for i in fitting if 0 <= seqs[i] <= MAX_SEQ]
            kept = operations.take(fitting)
        return StoredRecords(kept.collections, kept.ids, kept.ranks(), kept.documents), fitting

    def scan(self, collections: Collection[str]) -> Iterator[StoredRecords]:
        with self._contents.lock:
            found = [record for record in self._contents.ranks if record[0] in collections]
        for start in range(0, len(found), self.capabilities.batch_rows):
            yield self._read(found[start : start + self.capabilities.batch_rows])

    def look_up(self, target: str, ids: Sequence[bytes]) -> StoredRecords:
        return self._read([(target, record) for record in ids])

    def floor_of(self, target: str) -> int:
        return self._contents.floor.floor

    def _read(self, records: Sequence[Record]) -> StoredRecords:
        with self._contents.lock:
            return StoredRecords(
                [collection for collection, _ in records],
                [record for _, record in records],
                [self._contents.ranks.get(record, -1) for record in records],
                [self._contents.documents.get(record) for record in records],
            )

    def records(self) -> dict[Record, bytes]:
        """Return the documents that a reader sees, by collection and id."""
        with self._contents.lock:
            return dict(self._contents.documents)

    def ttls(self) -> dict[Record, float]:
        """Return the time to live, in seconds, of the records that were put with one."""
        with self._contents.lock:
            return dict(self._contents.ttls)

    def ranks(self) -> dict[Record, int]:
        """Return the rank of every record, also of deleted ones: ``2·seq`` for a delete, ``2·seq + 1`` for a put."""
        with self._contents.lock:
            return dict(self._contents.ranks)

    def clear(self) -> None:
        """Forget everything, including the control records."""
        with self._contents.lock:
            self._contents.ranks.clear()
            self._contents.documents.clear()
            self._contents.ttls.clear()
            self._contents.control.clear()
            self._contents.floor = FloorRecord()

    def close(self) -> None:
        """Do nothing; the records remain."""

    def __str__(self) -> str:
        return f"memory:{self.name or 'unnamed'}"
