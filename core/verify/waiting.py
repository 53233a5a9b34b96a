"""What explains differences: the entries that a snapshot sees pending, and the dead letters."""

from __future__ import annotations

from collections.abc import Iterator

from export_queue.core.drain import Exporter
from export_queue.core.queue import Entries, Queue, find_reader, list_dead_letters, waiting_ranges
from export_queue.core.segments import UnitReader, waiting_segments
from export_queue.core.sinks import ScannableSink
from export_queue.core.store import Database, queries
from export_queue.core.transactions import Snapshot, take_snapshot
from export_queue.core.verify.spool import Spool

_ROWS = 10_000
_BYTES = 16 << 20
_LETTERS = 1000
_READS = 5
"""Maximum number of reads between which entries move. What any of them finds, was pending or dead."""


def read_waiting(database: Database, reader: Queue, exporter: Exporter, sink: ScannableSink, spool: Spool) -> None:
    """Take a snapshot, and read what is pending in it, and then the dead letters, into the spool.

    An entry that the snapshot sees and that is in neither was acknowledged: it was removed before it was looked for,
    or became neither dead nor pending again meanwhile. Moves from rows into files, and retries of dead letters, would
    hide entries from a single read; then it is repeated.
    """
    spool.forget_waiting()
    snapshot = take_snapshot(database)
    for _ in range(_READS):
        with database.read() as work:  # after the snapshot, so that it has all layouts of what the snapshot sees
            queue = find_reader(work, reader.id)
            before = queries.acts.count_retries(work, queue.id), queries.compactions.stamp(work, queue.number)
        for kind, pages in (("queued", _pending(database, queue, snapshot)), ("dead", _dead(database, queue))):
            for page in pages:
                _add(kind, page, queue, exporter, sink, spool)
        with database.read() as work:
            if before == (queries.acts.count_retries(work, queue.id), queries.compactions.stamp(work, queue.number)):
                return


def _add(kind: str, page: Entries, queue: Queue, exporter: Exporter, sink: ScannableSink, spool: Spool) -> None:
    records, _ = sink.render(exporter.export(queue, page).operations)
    keys = ((key, 2 * seq + 1) for key, seq in zip(page.keys, page.seqs, strict=True))
    spool.add_waiting(kind, keys, records)


def _pending(database: Database, queue: Queue, snapshot: Snapshot) -> Iterator[Entries]:
    with database.read() as work:
        units = waiting_ranges(work, queue, snapshot)
    for of, of_layout in queue.by_layout(units):
        for unit in of_layout:
            with database.read() as work:
                segments = waiting_segments(work, of, snapshot, unit)
            entries = UnitReader(of, snapshot, unit, segments, rows=_ROWS, size=_BYTES)
            try:
                while True:
                    with database.read() as work:
                        chunk = entries.read(work)
                    if not len(chunk.entries):
                        break
                    yield chunk.entries
            finally:
                entries.close()


def _dead(database: Database, queue: Queue) -> Iterator[Entries]:
    after = None
    while True:
        with database.read() as work:
            letters = list_dead_letters(work, queue, after=after, limit=_LETTERS, values=True)
        if not letters:
            return
        yield Entries(
            [one.position.bucket for one in letters],
            [one.position.key for one in letters],
            [one.position.seq for one in letters],
            [one.value for one in letters],
        )
        after = letters[-1].id
