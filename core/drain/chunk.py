"""Delivering one chunk of entries to the sink, and handling rejected entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from export_queue.core.drain.batch import Batch
from export_queue.core.drain.exporters import Exporter, Failure
from export_queue.core.drain.report import Counts
from export_queue.core.drain.request import DrainRequest
from export_queue.core.drain.sending import Sender, Sent
from export_queue.core.drain.transient import call_again
from export_queue.core.errors import AmbiguousRecord, EntryRejected, TooManyDeadLetters
from export_queue.core.queue import DeadLetter, Entries, Queue
from export_queue.core.sinks import Operations


@dataclass(frozen=True, slots=True)
class Applied:
    """A chunk that may leave the queue: each of its entries is in the sink or dead."""

    entries: Entries
    dead: list[DeadLetter]
    counts: Counts


@dataclass(slots=True)
class ChunkWriter:
    """Exports and applies chunks, and counts the dead.

    :param queue: the queue of the chunks.
    :param exporter: an open exporter.
    :param request: parameters of the drain.
    """

    queue: Queue
    exporter: Exporter
    request: DrainRequest
    _dead: int = 0

    def apply(self, entries: Entries, sender: Sender) -> Applied:
        """Deliver a chunk to the sink. It may be removed only after this returns (I7).

        :param sender: sends operations to the sink.
        :raises EntryRejected: an entry was rejected, and the request has ``on_error="fail"``.
        :raises TooManyDeadLetters: more entries were rejected than the request allows.
        :raises AmbiguousRecord: two entries of one transaction put different documents into one record.
        """
        refused: set[int] = set()

        def refuse(entry: int, failure: Failure) -> None:
            refused.add(entry)
            if self.request.on_error == "fail":
                raise EntryRejected(f"{self._shown(entries, entry)}: {failure.error_class}: {failure.reason}")
            if self._dead + len(refused) > self.request.max_dead:
                raise too_many(self.request, f"{self._shown(entries, entry)}: {failure.error_class}: {failure.reason}")

        exported = call_again(
            self.request.retry,
            lambda: self.exporter.export(self.queue, entries),
            whom="the exporter",
            check=sender.check,
        )
        for entry, failure in exported.failures.items():
            refuse(entry, failure)
        batch = Batch(exported.operations, dict(exported.failures))
        try:
            while (operations := batch.next_round()) is not None:
                sent = self._send(sender, operations, refuse)
                batch.record(written=sent.written, stale=sent.stale, rejected=sent.rejected)
        except AmbiguousRecord as error:
            one, other = (self._shown(entries, batch.operations.entries[i]) for i in error.positions)
            raise AmbiguousRecord(f"{error.message}: from {one} and {other}") from error
        self._dead += len(batch.dead)
        return Applied(entries, self._dead_letters(entries, batch.dead), _counts(entries, batch))

    @staticmethod
    def _send(sender: Sender, operations: Operations, refuse: Callable[[int, Failure], None]) -> Sent:
        return sender.send(operations, on_rejected=lambda i, failure: refuse(operations.entries[i], failure))

    def _shown(self, entries: Entries, entry: int) -> str:
        # without the value, which may be confidential
        return f"entry {entries.keys[entry]!r} of {self.queue.id} (seq {entries.seqs[entry]})"

    def _dead_letters(self, entries: Entries, dead: dict[int, Failure]) -> list[DeadLetter]:
        return [
            DeadLetter(
                position=entries.position(i),
                value=entries.values[i],
                reason=failure.reason,
                error_class=failure.error_class,
                drain_id=self.request.drain_id,
            )
            for i, failure in sorted(dead.items())
        ]


def too_many(request: DrainRequest, example: str) -> TooManyDeadLetters:
    """Return the error for more dead letters than allowed, with one of the reasons."""
    return TooManyDeadLetters(f"more than max_dead={request.max_dead} entries were rejected; the last one: {example}")


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
