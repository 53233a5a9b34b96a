"""Draining claimed units; the local engine and Spark's tasks both run this.

Three steps overlap. While the calling thread exports and applies chunk *n*, a second thread removes chunk *n − 1* from
the store and reads chunk *n + 1*, of the same part or of the next one. At most three chunks are in memory.

If a part has pending segments, its chunks are merged from rows and files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from export_queue.core.drain.chunk import Applied, ChunkWriter, too_many
from export_queue.core.drain.exporters import Exporter
from export_queue.core.drain.fenced import sink_of_unit
from export_queue.core.drain.parts import Part, locked
from export_queue.core.drain.report import Counts, Problem, RangeReport, total
from export_queue.core.drain.request import DrainRequest
from export_queue.core.drain.sending import Sender
from export_queue.core.drain.tally import Tally, newly_removed
from export_queue.core.drain.transient import call_again
from export_queue.core.errors import DrainError, SegmentLost, SegmentRefused
from export_queue.core.locks import Lease, hold, serialise
from export_queue.core.queue import (
    DeadLetterFilter,
    Position,
    Queue,
    Range,
    count_dead_letters,
    dead_letter,
    read_entries,
    remove_span,
)
from export_queue.core.segments import (
    Chunk,
    Run,
    Segment,
    UnitReader,
    leave_out_drained,
    mark_done,
    waiting_segments,
)
from export_queue.core.sinks import FencedSink, Sink
from export_queue.core.store import Database, acknowledgements_of, identity_of
from export_queue.core.transactions import Snapshot

OnChunk = Callable[[Counts], None]
OnDone = Callable[[Sequence[Lease]], None]


def drain_ranges(
    database: Database,
    queue: Queue,
    parts: Sequence[Part],
    snapshot: Snapshot,
    sink: Sink | FencedSink,
    exporter: Exporter,
    request: DrainRequest,
    *,
    check: Callable[[], None],
    on_sent: Callable[[], None] | None = None,
    on_chunk: OnChunk | None = None,
    on_done: OnDone | None = None,
    tally: Tally | None = None,
) -> list[RangeReport]:
    """Deliver the entries that a snapshot sees in claimed units to a sink, and remove exactly these from the queue.

    :param parts: parts of units, each with the claim that gives the right to remove entries.
    :param snapshot: decides which entries are read.
    :param sink: an open sink that admitted the drain.
    :param exporter: an open exporter.
    :param request: parameters of the drain.
    :param check: called before each batch; raises LeaseLost if a lease is known to be lost.
    :param on_sent: called after each batch that may have reached the sink.
    :param on_chunk: called with the counts of each chunk that left the queue.
    :param on_done: called in the store's thread with the leases of parts as soon as they are done.
    :param tally: counts in the store what left the queue; by default nothing is counted there.
    :returns: one report per part, in their order. An error or interruption is in the reports of the parts that it left
        unfinished; it is never raised, so that no counts are lost (I13).
    """
    writer = ChunkWriter(queue, exporter, request)
    senders = [Sender(sink_of_unit(sink, queue, part.lease), request.retry, check, on_sent) for part in parts]
    whole_keys = sink.capabilities.fenced
    return _Pipeline(
        database, queue, parts, snapshot, request, writer, senders, whole_keys, on_chunk, on_done, tally
    ).run()


@dataclass(slots=True)
class _Pipeline:
    database: Database
    queue: Queue
    parts: Sequence[Part]
    snapshot: Snapshot
    request: DrainRequest
    writer: ChunkWriter
    senders: Sequence[Sender]
    """By part."""
    whole_keys: bool
    on_chunk: OnChunk | None
    on_done: OnDone | None
    tally: Tally | None
    removals: deque[tuple[Counts, Future[None]]] = field(default_factory=deque)
    """Chunks that are being removed, each with its counts."""
    counts: list[dict[int, Counts]] = field(default_factory=list)
    """By part and number of the chunk: counted as left until the store's thread has removed the chunk."""
    segments: Sequence[Segment] | None = None
    """Pending segments of the units; None until they are queried."""
    readers: dict[int, UnitReader] = field(default_factory=dict)
    """By part, for parts with segments."""
    noted: dict[tuple[int, int, int], Run] = field(default_factory=dict)
    """The newest run that is noted as drained, by part and by transaction and number of a segment."""
    chunks: int = 0
    read_out: int = 0
    """Number of parts that were read to their end; all their chunks are in ``counts``."""
    done: int = 0
    """Number of parts that were reported to ``on_done``."""

    def run(self) -> list[RangeReport]:
        self.counts = [{} for _ in self.parts]
        trouble: BaseException | None = None
        try:
            # leaving the block waits for removals: entries acknowledged before an error are removed
            with ThreadPoolExecutor(1, thread_name_prefix="export-queue-store") as store_thread:
                self._work_off(store_thread)
        except BaseException as error:  # an interruption also ends in a report with the right counts
            trouble = error
        for reader in self.readers.values():
            reader.close()
        for _, removed in self.removals:
            failure = removed.exception()  # waits, if an interruption ended the wait above
            trouble = trouble or failure
        return self._report(trouble)

    def _work_off(self, store_thread: ThreadPoolExecutor) -> None:
        reading = store_thread.submit(self._read, 0, None)
        while (found := reading.result()) is not None:
            at, chunk = found
            entries = chunk.entries
            self.chunks += 1
            self.counts[at][self.chunks] = Counts(read=len(entries), left=len(entries))
            follows = (at + 1, None) if entries.is_last else (at, entries.position(len(entries) - 1))
            reading = store_thread.submit(self._read, *follows)
            applied = self.writer.apply(entries, self.senders[at])
            self.removals.append((applied.counts, store_thread.submit(self._remove, at, self.chunks, applied, chunk)))
            if len(self.removals) > 1:
                self._await_removal()
        while self.removals:
            self._await_removal()

    def _await_removal(self) -> None:
        counts, removed = self.removals[0]
        removed.result()
        self.removals.popleft()
        if self.on_chunk is not None:
            self.on_chunk(counts)

    def _report_done(self) -> None:
        """Report the parts that are done, up to the first one with entries that were not removed."""
        end = self.done
        while self._is_done(end):
            end += 1
        if self.on_done is not None and end > self.done:
            self.on_done([part.lease for part in self.parts[self.done : end]])
        self.done = end

    def _is_done(self, at: int) -> bool:
        return at < self.read_out and not any(chunk.left for chunk in self.counts[at].values())

    def _report(self, trouble: BaseException | None) -> list[RangeReport]:
        reports = []
        for at, part in enumerate(self.parts):
            cause = None if self._is_done(at) else trouble
            problem = None if cause is None else Problem.of(cause)
            counts = total(self.counts[at].values())
            reports.append(RangeReport(range=part.lease.range, problem=problem, cause=cause, **counts))
        if trouble is not None and not any(report.problem for report in reports):
            reports[-1] = replace(reports[-1], problem=Problem.of(trouble), cause=trouble)
        return reports

    def _read(self, at: int, after: Position | None) -> tuple[int, Chunk] | None:
        """Read the next chunk that is not empty, starting after a position in a part; None for its beginning."""
        if self.segments is None and self.parts:
            self.segments = call_again(self.request.retry, self._find_segments)
        while True:
            self.read_out = at
            if at == len(self.parts):
                return None
            chunk = call_again(self.request.retry, lambda: self._read_once(at, after))  # noqa: B023
            if self.whole_keys and chunk.runs:
                chunk = call_again(self.request.retry, lambda: self._checked_again(at, chunk))  # noqa: B023
            if chunk.entries:
                return at, chunk
            if chunk.runs and not chunk.entries.is_last:
                continue
            at, after = at + 1, None

    def _find_segments(self) -> list[Segment]:
        """Query the segments once for all parts, so that chunks of rows cost nothing extra."""
        ranges = [part.buckets for part in self.parts]
        within = Range(min(one.first for one in ranges), max(one.end for one in ranges))
        with self.database.read() as work:
            return waiting_segments(work, self.queue, self.snapshot, within)

    def _read_once(self, at: int, after: Position | None) -> Chunk:
        request, part = self.request, self.parts[at]
        found = [] if at in self.readers else locked(self.segments or (), part.lease, part.buckets)
        if found or not (at in self.readers or part.lease.has_rows):
            self.readers[at] = UnitReader(
                self.queue,
                self.snapshot,
                part.buckets,
                found,
                after=part.after,
                until=part.until,
                rows=request.chunk_rows,
                size=request.chunk_bytes,
                whole_keys=self.whole_keys,
                has_rows=part.lease.has_rows,
            )
        if at in self.readers:
            return self._read_merged(self.readers[at])
        with self.database.read() as work:
            entries = read_entries(
                work,
                self.queue,
                self.snapshot,
                part.buckets,
                after=after or part.after,
                rows=request.chunk_rows,
                size=request.chunk_bytes,
                whole_keys=self.whole_keys,
            )
        entries = part.trim(entries)
        return Chunk(entries, len(entries))

    def _read_merged(self, reader: UnitReader) -> Chunk:
        try:
            with self.database.read() as work:
                return reader.read(work)
        except (SegmentLost, SegmentRefused):
            # Other tasks may have drained the rest of the file, and clean-up may have deleted it. An object store
            # refuses access to a missing object if the user may not list the bucket.
            if not reader.end_drained(self._find_segments()):
                raise
        with self.database.read() as work:
            return reader.read(work)

    def _checked_again(self, at: int, chunk: Chunk) -> Chunk:
        """After reading rows, remove what was drained from files meanwhile: a fenced sink cannot reject it as older."""
        with self.database.read() as work:
            return leave_out_drained(work, self.queue, self.snapshot, self.parts[at].buckets, chunk)

    def _remove(self, at: int, number: int, applied: Applied, chunk: Chunk) -> None:
        noted = call_again(self.request.retry, lambda: self._remove_once(at, applied, chunk))
        if self.tally is not None:
            self.tally.committed()
        self.database.hints.tell(identity_of(self.database).store_id, [acknowledgements_of(self.queue.number)])
        # in this thread: no signal can interrupt it between the removal and the note
        self.noted |= noted
        self.counts[at][number] = applied.counts
        self._report_done()

    def _remove_once(self, at: int, applied: Applied, chunk: Chunk) -> dict[tuple[int, int, int], Run]:
        """Remove a chunk in a critical section: the lease cannot be taken over before the removal commits (I10)."""
        entries, dead = applied.entries, applied.dead
        noted: dict[tuple[int, int, int], Run] = {}
        removed = fresh = 0
        with self.database.begin() as work:
            if dead:
                serialise(
                    work, self.request.owner
                )  # otherwise tasks that add dead letters at the same time would not see each other's
            now_ms = hold(work, self.parts[at].lease)
            # Before the removal: a letter keeps what its row stands for.
            if dead:
                fresh = dead_letter(work, self.queue, dead)
                # other tasks of this drain also create dead letters: only the store knows the sum
                of_drain = DeadLetterFilter(drain_id=self.request.drain_id)
                if count_dead_letters(work, self.queue, of_drain) > self.request.max_dead:
                    raise too_many(self.request, f"{dead[-1].error_class}: {dead[-1].reason}")
            if chunk.rows:
                first, last = entries.position(0), entries.position(len(entries) - 1)
                removed = remove_span(work, self.queue, self.snapshot, first, last)
                # fewer is correct: an earlier try may have committed without an answer
                if removed > chunk.rows:
                    raise DrainError(f"{removed} entries would be removed, but only {chunk.rows} were acknowledged")
            for run in chunk.runs:
                key = (at, run.segment.transaction, run.segment.number)
                noted[key], done = mark_done(work, self.queue, run, self.noted.get(key))
                removed += done
            if self.tally is not None:
                self.tally.add(work, newly_removed(applied.counts, removed=removed, dead=fresh), now_ms=now_ms)
        return noted
