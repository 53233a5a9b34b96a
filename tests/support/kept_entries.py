"""A source with sequences, for tests: a subscription that is never drained has every entry since it was added."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from export_queue import Range
from export_queue.core.queue import Entries, Queue, find_reader
from export_queue.core.segments import UnitReader, waiting_segments
from export_queue.core.store import Database
from export_queue.core.transactions import take_snapshot


@dataclass(frozen=True)
class KeptContent:
    """The latest entry of each key up to a cut."""

    cut: int
    latest: dict[tuple[int, bytes], tuple[int, bytes | None]]
    page_rows: int
    is_ranked: bool = True

    def pages(self, within: Range) -> Iterator[Entries]:
        rows = sorted((at, key, *entry) for (at, key), entry in self.latest.items() if within.first <= at < within.end)
        for start in range(0, len(rows), self.page_rows):
            page = rows[start : start + self.page_rows]
            yield Entries(*([row[n] for row in page] for n in range(4)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class KeptEntries:
    """The content of a queue by one of its subscriptions, which nobody drains."""

    reader: str
    page_rows: int = 7

    @contextlib.contextmanager
    def open(self, database: Database, queue: Queue) -> Iterator[KeptContent]:
        snapshot = take_snapshot(database)
        cut = snapshot.low - 1
        latest: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}
        with database.read() as work:
            kept = find_reader(work, self.reader)
            assert not kept.older, "this source knows one layout"
            for unit in kept.units():
                segments = waiting_segments(work, kept, snapshot, unit)
                with contextlib.closing(UnitReader(kept, snapshot, unit, segments, rows=1000, size=1 << 20)) as entries:
                    while len(found := entries.read(work).entries):
                        for row in zip(found.buckets, found.keys, found.seqs, found.values, strict=True):
                            if row[2] <= cut:  # ascending by sequence
                                latest[row[:2]] = row[2:]
        yield KeptContent(cut, latest, self.page_rows)
