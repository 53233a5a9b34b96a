"""One comparison: both sides are read once, and what differs is checked again until the reason is known."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, cast

from export_queue.core.drain import Exporter
from export_queue.core.errors import InvalidArgument
from export_queue.core.queue import KEPT, Entries, Queue, Range, bucket, join_ranges
from export_queue.core.sinks import (
    FencedSink,
    Operations,
    ScannableSink,
    Sink,
    collapse,
)
from export_queue.core.sources import Content, StateContent, opened_content
from export_queue.core.store import Database, queries
from export_queue.core.transactions import settled_snapshot
from export_queue.core.verify.judging import ABSENT, NO_LOADS, REPAIRABLE, Loads, Sighting, Verdict, Version, judge
from export_queue.core.verify.named_records import named_records
from export_queue.core.verify.rendering import Rendered, Renderer
from export_queue.core.verify.report import MOST_SAMPLES, Sample, VerifyReport
from export_queue.core.verify.request import VerifyRequest
from export_queue.core.verify.rows import digest_of
from export_queue.core.verify.spool import NO_TARGET, Candidate, Spool
from export_queue.core.verify.waiting import read_waiting

PAUSE = 0.2
"""Seconds before the second check; each later pause is longer by as much."""


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """How far a comparison is."""

    step: Literal["source", "sink", "check"]
    records: int
    """Records that this step has read."""


OnProgress = Callable[[VerifyProgress], object]


@dataclass(frozen=True, slots=True)
class Expected:
    """What the sink should have, at a cut."""

    cut: int
    is_ranked: bool
    pages: Callable[[], Iterable[Rendered]]
    content: Content | None
    """What the pages are made of; None if a function names the records."""


@dataclass(slots=True)
class Comparison:
    """The state of one comparison.

    :param reader: the queue or subscription that drains into the sink.
    :param queue: the queue to which entries are added.
    """

    database: Database
    reader: Queue
    queue: Queue
    sink: Sink | FencedSink
    exporter: Exporter
    request: VerifyRequest
    on_progress: OnProgress | None
    sleep: Callable[[float], None]
    spool: Spool = field(default_factory=Spool)
    cut: int = 0
    is_ranked: bool = True
    loads: Loads = NO_LOADS
    compared: int = 0
    scanned: int = 0
    collections: set[str] = field(default_factory=set)
    """The collections of the expected records, and those that the caller names."""
    counts: Counter[str] = field(default_factory=Counter)
    samples: defaultdict[str, list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def run(self, compare: Compare, seconds: Callable[[], float]) -> VerifyReport:
        """Compare, and return the report.

        :param compare: reads both sides, and fills the spool with the records that may differ.
        """
        if compare(self):
            self._settle()
        return VerifyReport(
            queue=self.reader.id,
            sink=self.request.sink_name,
            source=self.request.source_name,
            cut=self.cut,
            ranked=self.is_ranked,
            compared=self.compared,
            scanned=self.scanned,
            seconds=seconds(),
            samples=dict(self.samples),
            **self.counts,
        )

    def close(self) -> None:
        self.spool.close()

    @property
    def _scannable(self) -> ScannableSink:
        return cast(ScannableSink, self.sink)

    @property
    def renderer(self) -> Renderer:
        return Renderer(self.reader, self.sink, self.exporter, self.is_ranked)

    @property
    def copies(self) -> bool:
        """Whether the id of a record is the key of its entry."""
        return self.renderer.copies

    @contextlib.contextmanager
    def opened(self) -> Iterator[Expected]:
        """Open what the sink should have, and take its cut.

        :raises InvalidArgument: a repair was asked for, and the source does not know the sequences of its entries.
        """
        self.collections = {self.reader.source} if self.copies else set()
        self.collections.update(self.request.collections)
        with self._expected(self.units) as expected:
            if self.request.repair and not expected.is_ranked:
                raise InvalidArgument(
                    f"source {self.request.source_name!r} does not know the sequences of its entries: a repair could "
                    "not tell an old record from a new one",
                    hint="repair from the state of the queue, or add the content to the queue again",
                )
            self.cut = expected.cut
            self.spool.is_ranked = self.is_ranked = expected.is_ranked and not self.sink.capabilities.fenced
            yield expected

    def read_sides(self) -> int:
        """Read both sides in this process, and return the number of records that may differ."""
        with self.opened() as expected:
            for page in expected.pages():
                self.spool.add_expected(page.records, page.keys, page.expires)
                self.collections |= page.collections
                self.compared += len(page.records)
                self._progress("source", self.compared)
        for records in self._scannable.scan(self.collections):
            self.spool.add_found(records)
            self.scanned += len(records)
            self._progress("sink", self.scanned)
        self._read_loads()  # after records were read, which may be of a load
        return self.spool.compare(copies=self.copies, loads=self.loads)

    @contextlib.contextmanager
    def _expected(self, ranges: Callable[[], Sequence[Range]]) -> Iterator[Expected]:
        """Open what the sink should have.

        :param ranges: tells the buckets that are read; called when the source is open.
        """
        if self.request.records is not None:
            cut = settled_snapshot(self.database, self.queue.number).read_pointer  # before the function is called
            yield Expected(cut, False, self._named_records, None)
            return
        with self._content() as content:
            read = partial(self._pages, content, ranges())
            yield Expected(content.cut, content.is_ranked, lambda: map(self._records_of, read()), content)

    def _named_records(self) -> Iterator[Rendered]:
        for operations in named_records(self.request.records or ""):
            yield self.renderer.of_named(operations, self.request.source_name)

    @contextlib.contextmanager
    def _content(self) -> Iterator[Content]:
        """Open the source, and make sure that the queue's buckets were not altered until it was read."""
        with opened_content(self.database, self.reader.source, self.request.source) as (self.queue, content):
            self.loads = replace(self.loads, of_source=content.loaded if isinstance(content, StateContent) else 0)
            yield content

    def _read_loads(self) -> None:
        self.loads = read_loads(self.database, self.reader, of_source=self.loads.of_source)

    def _pages(self, content: Content, ranges: Iterable[Range]) -> Iterator[Entries]:
        for part in ranges:
            for page in content.pages(part):
                if len(page):
                    yield page

    def _records_of(self, page: Entries) -> Rendered:
        """Return the records that entries name. Those that are refused are noted in the spool."""
        found = self.renderer.of_entries(page)
        if found.refused is not None:
            self.spool.add_refused(found.refused)
        return found

    def _settle(self) -> None:
        """Check the candidates until each is decided, or the rounds are over."""
        for number in range(1, self.request.rounds + 1):
            self._check_all(is_last=number == self.request.rounds)
            if not self.spool.candidates() or number == self.request.rounds:
                return
            self.sleep(PAUSE * number)
            self.read_again()

    def _check_all(self, *, is_last: bool) -> None:
        self.read_waiting()
        checked = 0
        for page in self.spool.pages():
            judged, newest = self.judged(page)
            decided: list[Candidate] = []
            for one, found, verdict in judged:
                if verdict != "younger" or is_last:
                    self._count(verdict, one, found)
                    decided.append(one)
            self.spool.note(((one, found) for one, found, _ in judged), newest)
            self.spool.resolve(decided)
            checked += len(page)
            self._progress("check", checked)

    def read_waiting(self) -> None:
        """Read the pending entries and the dead letters, which explain differences."""
        read_waiting(self.database, self.reader, self.exporter, self._scannable, self.spool)

    def judged(self, page: Sequence[Candidate]) -> tuple[list[tuple[Candidate, Version, Verdict]], int]:
        """Look candidates up in the sink, and decide about each.

        :returns: for each what was found, and the decision; and an id that was drawn after that.
        """
        found, floors, newest = self._look_up(page)
        seen = [(one, found[one.number]) for one in page]
        return [(one, version, self._judge(one, version, floors[one.target], newest)) for one, version in seen], newest

    def expected_operations(self) -> Iterator[Operations]:
        """Read the content of the remaining candidates, and return what the exporter makes of each page."""
        with self._content() as content:
            for page in self._pages(content, self._ranges()):
                yield collapse(self.exporter.export(self.reader, page).operations)[0]

    def of_candidates(self, operations: Operations) -> Operations:
        """Return the operations that write candidates, with the sequences that they should have."""
        records, positions = self._scannable.render(operations)
        found = zip(positions, self.spool.seqs_of_candidates(records), strict=True)
        seqs = {at: seq for at, seq in found if seq is not None}
        return replace(operations.take(sorted(seqs)), seqs=[seqs[at] for at in sorted(seqs)])

    def tombstones(self) -> Iterator[Operations]:
        """Return deletes, at the cut, of the candidates that no entry names."""
        for page in self.spool.pages():
            extra = [one for one in page if one.expected is None and one.target != NO_TARGET]
            wanted = {(self.spool.target(one.target), one.id) for one in extra}
            for name in sorted(self.collections) if extra else ():
                deletes = _deletes(name, [one.id for one in extra], self.cut)
                records, positions = self._scannable.render(deletes)
                named = list(zip(records.targets, records.ids, strict=True))
                found = {at for at, record in zip(positions, named, strict=True) if record in wanted}
                wanted -= set(named)
                if found:
                    yield deletes.take(sorted(found))

    def _look_up(self, page: Sequence[Candidate]) -> tuple[dict[int, Version], dict[int, int], int]:
        """Read the records of candidates, then the floors of their targets, and draw an id of the store after that."""
        found, floors = {one.number: ABSENT for one in page}, {NO_TARGET: 0}
        by_target: defaultdict[int, list[Candidate]] = defaultdict(list)
        for one in page:
            by_target[one.target].append(one)
        for target, own in by_target.items():
            if target != NO_TARGET:
                records = self._scannable.look_up(self.spool.target(target), [one.id for one in own])
                for one, rank, document in zip(own, records.ranks, records.documents, strict=True):
                    found[one.number] = Version(rank, digest_of(document))
                floors[target] = self._scannable.floor_of(self.spool.target(target))
        self._read_loads()
        with self.database.connect() as connection:
            return found, floors, self.database.dialect.steps.draw(connection)

    def _judge(self, one: Candidate, found: Version, floor: int, newest: int) -> Verdict:
        was_settled = one.last is not None and self.cut >= one.last[2]
        if one.target == NO_TARGET:
            return _refused(one, self.loads, was_settled=was_settled)
        if one.expected is None and self.spool.is_refused(one):
            return "same"  # counted with its key
        digest = None if one.expected is None else one.expected.digest
        return judge(
            Sighting(
                expected=one.expected,
                found=found,
                expires=one.expires,
                cut=self.cut,
                newest=newest,
                floor=floor,
                queued=one.queued,
                dead=one.dead,
                loads=self.loads,
                is_ranked=self.is_ranked,
                is_confirmed=was_settled and one.last is not None and one.last[:2] == (found, digest),
            )
        )

    def _count(self, verdict: Verdict, one: Candidate, found: Version) -> None:
        if verdict == "same":
            return
        self.counts[verdict] += 1
        if verdict in REPAIRABLE and one.target != NO_TARGET:
            self.spool.keep(one)
        if verdict in ("queued", "younger") or len(self.samples[verdict]) == MOST_SAMPLES:
            return
        target = f"queue {self.reader.source}" if one.target == NO_TARGET else self.spool.target(one.target)
        expected = _seq(one.expected.rank) if one.expected is not None and self.is_ranked else None
        record = one.id.decode("utf-8", "backslashreplace")
        self.samples[verdict].append(Sample(target, record, expected, _seq(found.rank)))

    def read_again(self) -> None:
        """Read the content of the remaining candidates at a newer cut."""
        self.spool.forget_refused()
        with self._expected(self._ranges) as expected:
            self.cut = expected.cut
            for page in expected.pages():
                self.spool.add_fresh(page.records, page.keys, page.expires)
            self.spool.refresh()

    def units(self) -> Sequence[Range]:
        """Return the units of the queue, in its current layout."""
        return self.queue.units()

    def _ranges(self) -> Sequence[Range]:
        """Return the buckets that may name the candidates."""
        if not self.copies:
            return self.queue.units()
        found = {bucket(key or record, self.queue.buckets) for record, key in self.spool.ids_and_keys()}
        return join_ranges(Range(at, at + 1, self.queue.layout) for at in found)

    def _progress(self, step: Literal["source", "sink", "check"], records: int) -> None:
        if self.on_progress is not None:
            self.on_progress(VerifyProgress(step, records))


Compare = Callable[[Comparison], int]
"""Reads both sides of a comparison into its spool, and returns the number of records that may differ."""


def read_loads(database: Database, reader: Queue, *, of_source: int) -> Loads:
    """Find a reader's first load and beginning; to be called after records were read, which may be of a load.

    :param of_source: sequence of the entries of the source's own first load; 0 if there was none.
    """
    with database.read() as work:
        loaded = queries.exports.first_load_seq(work, reader.number) or 0
        emptied = queries.acts.since(work, reader.id, KEPT, reader.number)
    began = max((act["id"] for act in emptied), default=reader.number)
    return Loads(of_reader=loaded, of_source=of_source, began=began)


def _deletes(collection: str, ids: Sequence[bytes], seq: int) -> Operations:
    count = len(ids)
    return Operations([collection] * count, ids, [None] * count, [seq] * count, range(count))


def _refused(one: Candidate, loads: Loads, *, was_settled: bool) -> Verdict:
    """Decide about an entry that cannot be delivered: it is pending, a dead letter, or was dropped."""
    rank = one.expected.rank if one.expected is not None and not loads.is_unknown(one.expected.rank) else -1
    if one.queued is not None and one.queued >= rank:
        return "queued"
    if one.dead is not None and one.dead >= rank:
        return "dead"
    return "missing" if was_settled else "younger"


def _seq(rank: int) -> str | None:
    return None if rank < 0 else str(rank >> 1)
