"""Draining one claimed range: the one piece of code that the local engine and Spark's tasks both run.

Three steps overlap. While the calling thread exports and applies chunk *n*, a second thread, which does
all that concerns the store, removes chunk *n − 1* and reads chunk *n + 1*: three chunks are in memory at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from export_queue.core.drain.batch import Batch
from export_queue.core.drain.exporters import Exporter, Failure
from export_queue.core.drain.patience import Patience
from export_queue.core.drain.report import Counts, Problem, RangeReport, total
from export_queue.core.drain.sending import Sender, Sent
from export_queue.core.errors import AmbiguousRecord, DrainError, EntryRejected, InvalidArgument, TooManyDeadLetters
from export_queue.core.locks import Lease, hold
from export_queue.core.queue import (
    DeadLetter,
    Entries,
    Position,
    Queue,
    bury,
    count_dead,
    read_entries,
    remove_span,
)
from export_queue.core.sinks import Operations, Sink
from export_queue.core.store import Database
from export_queue.core.transactions import Snapshot

OnError = Literal["dead_letter", "fail"]

CHUNK_ROWS = 10_000
CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a drain treats what goes wrong, and how much it holds in memory.

    :param drain: token of the drain; dead letters name it.
    :param on_error: set rejected entries aside, or stop at the first.
    :param max_dead: more rejected entries than this are a bug, not data.
    :param chunk_rows: most entries per chunk.
    :param chunk_bytes: about the most bytes per chunk.
    :param patience: how transient errors are met.
    """

    drain: str
    on_error: OnError = "dead_letter"
    max_dead: int = 1000
    chunk_rows: int = CHUNK_ROWS
    chunk_bytes: int = CHUNK_BYTES
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        if self.on_error not in ("dead_letter", "fail"):
            raise InvalidArgument(f"on_error is 'dead_letter' or 'fail', found {self.on_error!r}")
        if type(self.max_dead) is not int or self.max_dead < 0:
            raise InvalidArgument(f"max_dead is a whole number from 0, found {self.max_dead!r}")


OnChunk = Callable[[Counts], None]


def drain_range(
    database: Database,
    queue: Queue,
    lease: Lease,
    snapshot: Snapshot,
    sink: Sink,
    exporter: Exporter,
    rules: Rules,
    *,
    check: Callable[[], None],
    on_chunk: OnChunk | None = None,
) -> RangeReport:
    """Bring what a snapshot sees of a claimed range into a sink, and remove exactly that from the queue.

    :param database: the store.
    :param queue: the queue.
    :param lease: the right to remove from the range.
    :param snapshot: what is read.
    :param sink: where operations go, admitted and open.
    :param exporter: makes operations of entries, open.
    :param rules: what is done about rejected entries.
    :param check: called before each batch; raises LeaseLost if the lease is known to be lost.
    :param on_chunk: called with the counts of each chunk that has left the queue.
    :returns: what was done; an error is in it, never raised, so that its counts are not lost.
    """
    work = _RangeDrain(database, queue, lease, snapshot, exporter, rules, Sender(sink, rules.patience, check), on_chunk)
    return work.run()


@dataclass(frozen=True, slots=True)
class _Applied:
    """A chunk whose every entry is in the sink or dead, and is to be removed."""

    entries: Entries
    dead: list[DeadLetter]
    counts: Counts


@dataclass(slots=True)
class _RangeDrain:
    database: Database
    queue: Queue
    lease: Lease
    snapshot: Snapshot
    exporter: Exporter
    rules: Rules
    sender: Sender
    on_chunk: OnChunk | None
    dead: int = 0
    removals: deque[tuple[_Applied, Future[None]]] = field(default_factory=deque)
    parts: list[Counts] = field(default_factory=list)
    """One for each chunk that was read: it has left the queue, or it is left."""

    def run(self) -> RangeReport:
        problem: Exception | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="export-queue-store") as store_thread:
            try:
                self._work_off(store_thread)
            except Exception as error:
                problem = error
            # What was acknowledged before an error is removed all the same.
            while self.removals:
                try:
                    self._settle_removal()
                except Exception as error:
                    problem = problem or error
        return RangeReport(
            range=self.lease.range,
            problem=Problem.of(problem) if problem else None,
            cause=problem,
            **total(self.parts),
        )

    def _work_off(self, store_thread: ThreadPoolExecutor) -> None:
        reading = store_thread.submit(self._read, None)
        while entries := reading.result():
            reading = store_thread.submit(self._read, entries.position(len(entries) - 1))
            try:
                applied = self._apply(entries)
            except BaseException:
                self._count_left(entries)
                raise
            self.removals.append((applied, store_thread.submit(self._remove, applied)))
            if len(self.removals) > 1:
                self._settle_removal()

    def _settle_removal(self) -> None:
        applied, removed = self.removals.popleft()
        try:
            removed.result()
        except BaseException:
            self._count_left(applied.entries)
            raise
        self.parts.append(applied.counts)
        if self.on_chunk is not None:
            self.on_chunk(applied.counts)

    def _count_left(self, entries: Entries) -> None:
        self.parts.append(Counts(read=len(entries), left=len(entries)))

    def _read(self, after: Position | None) -> Entries:
        def read() -> Entries:
            with self.database.read() as work:
                return read_entries(
                    work,
                    self.queue,
                    self.snapshot,
                    self.lease.range,
                    after=after,
                    rows=self.rules.chunk_rows,
                    size=self.rules.chunk_bytes,
                )

        return self.rules.patience.call(read)

    def _apply(self, entries: Entries) -> _Applied:
        refused: set[int] = set()

        def refuse(entry: int, failure: Failure) -> None:
            refused.add(entry)
            self._judge(entries, entry, failure, dead=self.dead + len(refused))

        patience, check = self.rules.patience, self.sender.check
        exported = patience.call(lambda: self.exporter.export(self.queue, entries), check=check)
        for entry, failure in exported.failures.items():
            refuse(entry, failure)
        batch = Batch(exported.operations, dict(exported.failures))
        try:
            while (operations := batch.next_round()) is not None:
                sent = self._send(operations, refuse)
                batch.settle(written=sent.written, stale=sent.stale, rejected=sent.rejected)
        except AmbiguousRecord as error:
            keys = [self._shown(entries, batch.operations.entries[i]) for i in error.positions]
            raise AmbiguousRecord(f"{error.message}: from {keys[0]} and {keys[1]}") from error
        self.dead += len(batch.dead)
        return _Applied(entries, self._dead_letters(entries, batch.dead), _counts(entries, batch))

    def _send(self, operations: Operations, refuse: Callable[[int, Failure], None]) -> Sent:
        return self.sender.send(operations, on_rejected=lambda i, failure: refuse(operations.entries[i], failure))

    def _judge(self, entries: Entries, entry: int, failure: Failure, *, dead: int) -> None:
        if self.rules.on_error == "fail":
            raise EntryRejected(f"{self._shown(entries, entry)}: {failure.error_class}: {failure.reason}")
        if dead > self.rules.max_dead:
            raise self._too_many(
                f"the last one: {self._shown(entries, entry)}: {failure.error_class}: {failure.reason}"
            )

    def _too_many(self, example: str) -> TooManyDeadLetters:
        return TooManyDeadLetters(
            f"more than max_dead={self.rules.max_dead} entries of {self.queue.id} were rejected; {example}"
        )

    def _shown(self, entries: Entries, entry: int) -> str:
        return f"entry {entries.keys[entry]!r} of {self.queue.id} (seq {entries.seqs[entry]})"

    def _dead_letters(self, entries: Entries, dead: dict[int, Failure]) -> list[DeadLetter]:
        return [
            DeadLetter(
                position=entries.position(i),
                value=entries.values[i],
                reason=failure.reason,
                error_class=failure.error_class,
                drain=self.rules.drain,
            )
            for i, failure in sorted(dead.items())
        ]

    def _remove(self, applied: _Applied) -> None:
        self.rules.patience.call(lambda: self._remove_once(applied))

    def _remove_once(self, applied: _Applied) -> None:
        entries, dead = applied.entries, applied.dead
        with self.database.begin() as work:
            hold(work, self.lease)
            first, last = entries.position(0), entries.position(len(entries) - 1)
            removed = remove_span(work, self.queue, self.snapshot, first, last)
            # Fewer is right: an attempt whose commit was in doubt had taken effect.
            if removed > len(entries):
                raise DrainError(f"{removed} entries would be removed, but only {len(entries)} were acknowledged")
            if dead:
                bury(work, self.queue, dead)
                # Other tasks of this drain bury too: only the store knows how many there are in all.
                if count_dead(work, self.queue, drain=self.rules.drain) > self.rules.max_dead:
                    raise self._too_many(f"the last one: {dead[-1].error_class}: {dead[-1].reason}")


def _counts(entries: Entries, batch: Batch) -> Counts:
    dead = len(batch.dead)
    return Counts(
        read=len(entries),
        acknowledged=len(entries) - dead,
        dead=dead,
        produced=len(batch.operations),
        written=batch.written,
        stale=batch.stale,
        collapsed=batch.collapsed,
        rejected=batch.rejected,
        bytes=entries.size,
        lowest_seq=min(entries.seqs),
        highest_seq=max(entries.seqs),
    )
