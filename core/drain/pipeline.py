"""The draining of claimed ranges, which the local engine and Spark's tasks both run.

Three steps overlap. While the calling thread exports and applies chunk *n*, a second thread, which does
all that concerns the store, removes chunk *n − 1* and reads chunk *n + 1*, of the same range or of
the next one. Three chunks are in memory at most.

Where segments wait in a range, its chunks are merged from rows and files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from export_queue.core.drain.chunk import Applied, ChunkWriter, too_many
from export_queue.core.drain.exporters import Exporter
from export_queue.core.drain.fenced import sink_of_unit
from export_queue.core.drain.report import Counts, Problem, RangeReport, total
from export_queue.core.drain.request import DrainRequest
from export_queue.core.drain.sending import Sender
from export_queue.core.drain.transient import call_again
from export_queue.core.errors import DrainError
from export_queue.core.locks import Lease, hold
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
from export_queue.core.segments import Chunk, Part, Segment, UnitReader, by_range, mark_done, waiting_segments
from export_queue.core.sinks import FencedSink, Sink
from export_queue.core.store import Database
from export_queue.core.transactions import Snapshot

OnChunk = Callable[[Counts], None]
OnDone = Callable[[Sequence[Lease]], None]


def drain_ranges(
    database: Database,
    queue: Queue,
    leases: Sequence[Lease],
    snapshot: Snapshot,
    sink: Sink | FencedSink,
    exporter: Exporter,
    request: DrainRequest,
    *,
    check: Callable[[], None],
    on_chunk: OnChunk | None = None,
    on_done: OnDone | None = None,
) -> list[RangeReport]:
    """Bring the entries that a snapshot sees in claimed ranges into a sink, and remove exactly these from the queue.

    :param database: the store.
    :param queue: the queue.
    :param leases: the right to remove, range by range.
    :param snapshot: decides which entries are read.
    :param sink: where operations go, admitted and open.
    :param exporter: makes operations of entries, open.
    :param request: parameters of the drain.
    :param check: called before each batch; raises LeaseLost if a lease is known to be lost.
    :param on_chunk: called with the counts of each chunk that has left the queue.
    :param on_done: called with leases whose ranges are done, in the store's thread, as soon as they are.
    :returns: one report a lease, in their order. An error, and an interruption too, is in the reports of the
        ranges that were not done because of it; it is never raised here, so that no counts are lost (I13).
    """
    writer = ChunkWriter(queue, exporter, request)
    senders = [Sender(sink_of_unit(sink, queue, lease), request.retry, check) for lease in leases]
    whole_keys = sink.capabilities.fenced
    return _Pipeline(database, queue, leases, snapshot, request, writer, senders, whole_keys, on_chunk, on_done).run()


@dataclass(slots=True)
class _Pipeline:
    database: Database
    queue: Queue
    leases: Sequence[Lease]
    snapshot: Snapshot
    request: DrainRequest
    writer: ChunkWriter
    senders: Sequence[Sender]
    """By lease."""
    whole_keys: bool
    on_chunk: OnChunk | None
    on_done: OnDone | None
    removals: deque[tuple[Counts, Future[None]]] = field(default_factory=deque)
    """Chunks on their way out of the queue, each with what it will have counted."""
    parts: list[dict[int, Counts]] = field(default_factory=list)
    """By lease, and number of the chunk that was read: left, until the store's thread has removed it."""
    segments: Sequence[Segment] | None = None
    """Those that wait in the ranges; None until they have been asked for."""
    readers: dict[int, UnitReader] = field(default_factory=dict)
    """By lease, where segments wait."""
    noted: dict[tuple[int, int, int], Part] = field(default_factory=dict)
    """By lease, and transaction and number of a segment: what is noted as drained, up to its newest part."""
    chunks: int = 0
    read_out: int = 0
    """Leases whose ranges were read to their end; their chunks are in ``parts`` by then."""
    done: int = 0
    """Leases that ``on_done`` has been called with."""

    def run(self) -> list[RangeReport]:
        self.parts = [{} for _ in self.leases]
        trouble: BaseException | None = None
        try:
            # Leaving the block waits for the removals: what was acknowledged before an error leaves all the same.
            with ThreadPoolExecutor(1, thread_name_prefix="export-queue-store") as store_thread:
                self._work_off(store_thread)
        except BaseException as error:  # an interruption, too, ends in a report with the right counts
            trouble = error
        for reader in self.readers.values():
            reader.close()
        for _, removed in self.removals:
            failure = removed.exception()  # waits, where an interruption has ended the waiting above
            trouble = trouble or failure
        return self._report(trouble)

    def _work_off(self, store_thread: ThreadPoolExecutor) -> None:
        reading = store_thread.submit(self._read, 0, None)
        while (found := reading.result()) is not None:
            at, chunk = found
            entries = chunk.entries
            self.chunks += 1
            self.parts[at][self.chunks] = Counts(read=len(entries), left=len(entries))
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

    def _tell_done(self) -> None:
        """Name the ranges that are done since, up to one of which something could not be removed."""
        end = self.done
        while self._is_done(end):
            end += 1
        if self.on_done is not None and end > self.done:
            self.on_done(self.leases[self.done : end])
        self.done = end

    def _is_done(self, at: int) -> bool:
        return at < self.read_out and not any(chunk.left for chunk in self.parts[at].values())

    def _report(self, trouble: BaseException | None) -> list[RangeReport]:
        reports = []
        for at, lease in enumerate(self.leases):
            cause = None if self._is_done(at) else trouble
            problem = None if cause is None else Problem.of(cause)
            counts = total(self.parts[at].values())
            reports.append(RangeReport(range=lease.range, problem=problem, cause=cause, **counts))
        if trouble is not None and not any(report.problem for report in reports):
            reports[-1] = replace(reports[-1], problem=Problem.of(trouble), cause=trouble)
        return reports

    def _read(self, at: int, after: Position | None) -> tuple[int, Chunk] | None:
        """Read the next chunk that is not empty, from a position in the range of one lease on."""
        if self.segments is None and self.leases:
            self.segments = call_again(self.request.retry, self._find_segments)
        while True:
            self.read_out = at
            if at == len(self.leases):
                return None
            chunk = call_again(self.request.retry, lambda: self._read_once(at, after))  # noqa: B023
            if chunk.entries:
                return at, chunk
            at, after = at + 1, None

    def _find_segments(self) -> list[Segment]:
        """Ask once for all ranges: chunks of rows alone cost what they cost where there are no segments."""
        ranges = [lease.range for lease in self.leases]
        within = Range(min(one.first for one in ranges), max(one.end for one in ranges))
        with self.database.read() as work:
            return waiting_segments(work, self.queue, self.snapshot, within)

    def _read_once(self, at: int, after: Position | None) -> Chunk:
        request, lease = self.request, self.leases[at]
        if at not in self.readers and (found := by_range(self.segments or (), lease.range)):
            self.readers[at] = UnitReader(
                self.queue,
                self.snapshot,
                lease.range,
                found,
                rows=request.chunk_rows,
                size=request.chunk_bytes,
                whole_keys=self.whole_keys,
            )
        with self.database.read() as work:
            if at in self.readers:
                return self.readers[at].read(work)
            entries = read_entries(
                work,
                self.queue,
                self.snapshot,
                lease.range,
                after=after,
                rows=request.chunk_rows,
                size=request.chunk_bytes,
                whole_keys=self.whole_keys,
            )
        return Chunk(entries, len(entries))

    def _remove(self, at: int, number: int, applied: Applied, chunk: Chunk) -> None:
        noted = call_again(self.request.retry, lambda: self._remove_once(at, applied, chunk))
        # In this thread, which no signal interrupts between the removal and the note of it.
        self.noted |= noted
        self.parts[at][number] = applied.counts
        self._tell_done()

    def _remove_once(self, at: int, applied: Applied, chunk: Chunk) -> dict[tuple[int, int, int], Part]:
        """Remove a chunk in a critical section: the lease cannot be taken over before it is gone (I10)."""
        entries, dead = applied.entries, applied.dead
        noted: dict[tuple[int, int, int], Part] = {}
        with self.database.begin() as work:
            hold(work, self.leases[at])
            if chunk.rows:
                first, last = entries.position(0), entries.position(len(entries) - 1)
                removed = remove_span(work, self.queue, self.snapshot, first, last)
                # Fewer is right: an attempt whose commit was in doubt had taken effect.
                if removed > chunk.rows:
                    raise DrainError(f"{removed} entries would be removed, but only {chunk.rows} were acknowledged")
            for part in chunk.parts:
                key = (at, part.segment.transaction, part.segment.number)
                noted[key] = mark_done(work, self.queue, part, self.noted.get(key))
            if dead:
                dead_letter(work, self.queue, dead)
                # Other tasks of this drain set entries aside, too: only the store knows the sum.
                of_drain = DeadLetterFilter(drain_id=self.request.drain_id)
                if count_dead_letters(work, self.queue, of_drain) > self.request.max_dead:
                    raise too_many(self.request, f"{dead[-1].error_class}: {dead[-1].reason}")
        return noted
