"""A test of exporters: however entries are delivered, the records must be those of delivery in order."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from export_queue.core.drain import Entry, Exporter, load_exporter
from export_queue.core.errors import AmbiguousRecord, InvalidArgument
from export_queue.core.queue import Entries, Queue
from export_queue.core.sinks import MemorySink, Operations, document_bytes

Record = tuple[str, bytes]
Records = Mapping[Record, bytes]

_MOST_SHRINKING = 2000
"""Maximum number of histories tried in search of a smaller one."""


@dataclass(frozen=True, slots=True)
class Step:
    """One delivery: entries that are exported and applied together."""

    entries: tuple[int, ...]
    """Positions among all entries."""
    cut: int | None = None
    """Number of operations that were applied before the process was killed; None if it was not killed."""
    fresh: bool = False
    """Whether a new process, with its own exporter, begins here."""


History = tuple[Step, ...]


def assert_converges(
    exporter: str | object,
    entries: Sequence[Entry | tuple[Any, Any]],
    *,
    expected: Mapping[tuple[str, str | bytes], Any] | None = None,
    queue_id: str = "queue",
    key: str = "str",
    value: str = "json",
    histories: int = 200,
    seed: int | None = None,
) -> None:
    """Check that an exporter leads to the same records however its entries are delivered.

    Entries are delivered out of order, repeatedly, in batches, and by processes that are killed. The records in the
    memory sink must be those of delivering each entry once and in order. A history that fails is made as small as
    possible before it is printed.

    :param exporter: an exporter as :func:`~export_queue.core.drain.drain` accepts it. Each process creates its own
        object of a class.
    :param entries: pairs of key and value in the order of their transactions, or whole entries.
    :param expected: the documents at the end, by collection and id.
    :param queue_id: the id of the queue that the exporter sees.
    :param key: codec of the queue's keys.
    :param value: codec of the queue's values.
    :param histories: number of random histories.
    :param seed: seed of the random numbers; a failure prints it.
    :raises AssertionError: with the smallest failing history, its records, and the entries whose export differs.
    """
    trial = _Trial(exporter, _queue(queue_id, key, value), _entries(entries))
    trial.deliver_in_order()
    if expected is not None:
        trial.compare_with({_record(*name): document_bytes(document) for name, document in expected.items()})
    chosen = random.randrange(1 << 32) if seed is None else seed
    generator = random.Random(chosen)
    for _ in range(histories):
        failure = trial.judge(_any_history(len(trial.entries), generator))
        if failure is not None:
            smallest = _shrink(trial, failure)
            raise AssertionError(f"{smallest.told}\nagain: seed={chosen}")


@dataclass(frozen=True, slots=True)
class _Failure:
    history: History
    told: str


class _Trial:
    """Delivers histories, and compares them with the first export of each entry."""

    def __init__(self, exporter: str | object, queue: Queue, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self._given = exporter
        self._queue = queue
        self._stored = [(queue.encode_key(e.key), queue.encode_value(e.value, key=e.key)) for e in entries]
        self._first: list[Operations] = []

    def deliver_in_order(self) -> None:
        """Export each entry once; all histories are compared with these exports."""
        exporter = self._opened()
        for i in range(len(self.entries)):
            operations, refusal = self._export(exporter, [i])
            if refusal:
                raise AssertionError(f"{self._shown(i)}\n  the exporter refuses it: {refusal}")
            self._first.append(operations)
        exporter.close()
        try:
            self._in_order(range(len(self.entries)))
        except AmbiguousRecord as error:
            raise AssertionError(f"two entries of one transaction: {error}") from None

    def compare_with(self, expected: Records) -> None:
        """Compare delivery in order with what the user expects."""
        everything = range(len(self.entries))
        found = self._in_order(everything)
        if found != expected:
            lines = ["delivered once and in order, the entries do not lead to what is expected"]
            lines += [*map(self._shown, everything), *_differences(found, "is", expected, "expected")]
            raise AssertionError("\n".join(lines))

    def judge(self, history: History) -> _Failure | None:
        """Deliver a history, and compare the records at the end; None if they are right."""
        sink, exporter = MemorySink(), self._opened()
        remarks: list[str] = []
        for number, step in enumerate(history, 1):
            if step.fresh:
                exporter = self._opened()
            operations, refusal = self._export(exporter, step.entries)
            if refusal:
                remarks.append(f"step {number}: the exporter refuses what it took before: {refusal}")
            remarks += self._other_than_first(number, step, operations)
            applied = operations if step.cut is None else operations.take(range(min(step.cut, len(operations))))
            try:
                sink.apply(applied)
            except AmbiguousRecord as error:
                remarks.append(f"step {number}: {error.message}")
            if step.cut is None:
                continue
            exporter = self._opened()  # the killed process did not close its exporter
        done = sorted({i for step in history if step.cut is None for i in step.entries})
        wanted, found = self._in_order(done), sink.records()
        if found == wanted:
            return None
        lines = ["the exporter does not converge; the smallest history found:", *map(self._shown, done)]
        lines += [f"  {number}. {_told(step, number)}" for number, step in enumerate(history, 1)]
        lines += _differences(found, "is", wanted, "in order")
        return _Failure(history, "\n".join(lines + remarks[:5]))

    def _opened(self) -> Exporter:
        exporter = load_exporter(self._given)
        exporter.open()
        return exporter

    def _export(self, exporter: Exporter, positions: Sequence[int]) -> tuple[Operations, str]:
        keys, values = zip(*(self._stored[i] for i in positions), strict=True)
        chunk = Entries([0] * len(positions), keys, [self.entries[i].seq for i in positions], values)
        exported = exporter.export(self._queue, chunk)
        refusals = [f"#{positions[i] + 1}: {failure.reason}" for i, failure in exported.failures.items()]
        return exported.operations, "; ".join(refusals)

    def _in_order(self, positions: Iterable[int]) -> Records:
        sink = MemorySink()
        parts = [self._first[i] for i in sorted(positions, key=lambda i: self.entries[i].seq)]
        columns = [list(chain.from_iterable(column)) for column in zip(*map(_columns, parts), strict=True)]
        origins = [i for i, part in enumerate(parts) for _ in range(len(part))]
        if origins:
            sink.apply(Operations(columns[0], columns[1], columns[2], columns[3], origins))
        return sink.records()

    def _other_than_first(self, number: int, step: Step, operations: Operations) -> Iterator[str]:
        for at, i in enumerate(step.entries):
            mine = operations.take([n for n, entry in enumerate(operations.entries) if entry == at])
            first = self._first[i]
            if _columns(mine) != _columns(first):
                yield f"step {number}: the export of #{i + 1} was {_listed(first)}\n         and is now {_listed(mine)}"

    def _shown(self, i: int) -> str:
        entry = self.entries[i]
        return f"  #{i + 1} seq {entry.seq}: {entry.key!r} {entry.value!r}"


def _any_history(count: int, generator: random.Random) -> History:
    """Draw a history that delivers every entry at least once."""
    order = list(range(count)) + generator.choices(range(count), k=generator.randint(0, count)) if count else []
    generator.shuffle(order)
    steps: list[Step] = []
    while order:
        size = generator.randint(1, min(len(order), generator.choice([1, 3, 10])))
        batch, order = tuple(order[:size]), order[size:]
        cut = generator.randint(0, 3 * size) if generator.random() < 0.3 else None
        steps.append(Step(batch, cut, generator.random() < 0.3))
        if cut is not None:
            order[generator.randint(0, len(order)) : 0] = batch  # delivered again, immediately or later
    return tuple(steps)


def _shrink(trial: _Trial, failure: _Failure) -> _Failure:
    """Remove everything that the failure does not need."""
    tries = 0
    while True:
        for smaller in _smaller(failure.history):
            tries += 1
            found = trial.judge(smaller)
            if found is not None:
                failure = found
                break
            if tries >= _MOST_SHRINKING:
                return failure
        else:
            return failure


def _smaller(history: History) -> Iterator[History]:
    for i in sorted({i for step in history for i in step.entries}):
        yield tuple(
            replace(step, entries=left) for step in history if (left := tuple(at for at in step.entries if at != i))
        )
    for n, step in enumerate(history):
        before, after = history[:n], history[n + 1 :]
        yield before + after
        if step.cut is not None:
            yield (*before, replace(step, cut=None), *after)
            if step.cut:
                yield (*before, replace(step, cut=step.cut - 1), *after)
        if step.fresh:
            yield (*before, replace(step, fresh=False), *after)
        if len(step.entries) > 1:
            for at in range(len(step.entries)):
                yield (*before, replace(step, entries=step.entries[:at] + step.entries[at + 1 :]), *after)


def _told(step: Step, number: int) -> str:
    which = " ".join(f"#{i + 1}" for i in step.entries)
    told = f"{which} delivered{' by a new process' if step.fresh and number > 1 else ''}"
    return told if step.cut is None else f"{told}, killed after {step.cut} operations"


def _differences(found: Records, one: str, wanted: Records, other: str) -> list[str]:
    names = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
    return [
        f"  {collection}/{record.decode('utf-8', 'backslashreplace')}: {other} {_document(wanted, collection, record)},"
        f" {one} {_document(found, collection, record)}"
        for collection, record in names[:10]
    ]


def _document(records: Records, collection: str, record: bytes) -> str:
    document = records.get((collection, record))
    return "nothing" if document is None else document.decode("utf-8", "backslashreplace") or "empty"


def _listed(operations: Operations) -> str:
    columns = zip(operations.collections, operations.ids, operations.documents, strict=True)
    shown = [
        f"Delete {collection}/{record!r}" if document is None else f"Put {collection}/{record!r} {document!r}"
        for collection, record, document in columns
    ]
    return ", ".join(shown) or "nothing"


def _columns(operations: Operations) -> tuple[list[Any], ...]:
    found = (operations.collections, operations.ids, operations.documents, operations.seqs)
    return tuple(map(list, found))


def _record(collection: str, record: str | bytes) -> Record:
    return collection, record.encode() if isinstance(record, str) else record


def _queue(queue_id: str, key: str, value: str) -> Queue:
    return Queue(
        id=queue_id,
        number=1,
        layout=1,
        buckets=1,
        buckets_per_range=1,
        key=key,
        value=value,
        max_value_bytes=64 << 20,
        exclusive=False,
        sink=None,
    )


def _entries(given: Sequence[Entry | tuple[Any, Any]]) -> list[Entry]:
    found = []
    for seq, one in enumerate(given, 1):
        if isinstance(one, Entry):
            found.append(one)
        elif isinstance(one, tuple) and len(one) == 2:
            found.append(Entry("", one[0], one[1], seq))
        else:
            raise InvalidArgument(f"entry {seq}: expected a pair of key and value, or an Entry, found {one!r}")
    if not found:
        raise InvalidArgument("there are no entries to deliver")
    return found
