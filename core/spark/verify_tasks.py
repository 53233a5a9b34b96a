"""What the tasks of a verify do in Spark's Python workers: they read both sides, and compare the shares.

Everything that tasks pass on is a page of records as bytes, or a note for the driver. An error is a note, too, because
Spark would repeat the task in vain.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from export_queue.core.drain import DRAIN_RETRY, Problem, load_exporter, opened_exporter
from export_queue.core.errors import ExportQueueError
from export_queue.core.queue import Queue, Range
from export_queue.core.sinks import ScannableSink, SinkSpec, opened_sink
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.spark.differences import StateSetup
from export_queue.core.store import StoreSpec
from export_queue.core.verify import Divider, Page, Refused, Renderer, Spool, divided, read_loads

if TYPE_CHECKING:
    from pyspark import Broadcast


@dataclass(frozen=True, slots=True)
class Collections:
    """Collections that the expected records are, or were, in."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Compared:
    """How many records a share has on both sides."""

    expected: int
    found: int


Note = Collections | Refused | Compared | Problem
Divided = tuple[int, "bytes | Note"]
"""The number of a share, and a page of it; or any number, and a note."""


@dataclass(frozen=True, slots=True)
class VerifySetup:
    """What all tasks need. It holds no secret, because Spark may write it to files.

    :param store: the store; tasks open it.
    :param sink: the sink; likewise.
    :param exporter: import path of the exporter; None if there is none.
    :param reader: the queue or subscription that drains into the sink.
    :param state: the state that tasks read; None if the driver reads another source.
    :param loaded: sequence of the entries of the state's first load; 0 if there was none.
    :param is_ranked: whether ranks are compared.
    :param shares: number of shares.
    """

    store: StoreSpec
    sink: SinkSpec
    exporter: str | None
    reader: Queue
    state: StateSetup | None
    loaded: int
    is_ranked: bool
    shares: int

    def expected(self, ranges: Iterable[Range]) -> Iterator[Divided]:
        """Read ranges of the state, and divide the records that their entries name."""
        assert self.state is not None
        divider, collections = Divider(0, self.shares), set[str]()
        with (
            self.state.opened() as content,
            opened_sink(self.sink) as sink,
            opened_exporter(load_exporter(self.exporter), DRAIN_RETRY) as exporter,
        ):
            renderer = Renderer(self.reader, sink, exporter, self.is_ranked)
            for part in ranges:
                for page in content.pages(part):
                    if len(page):
                        found = renderer.of_entries(page)
                        collections |= found.collections
                        if found.refused is not None:
                            yield 0, found.refused
                        yield from divider.add(found.records, found.keys, found.expires)
        yield from divider.rest()
        yield 0, Collections(frozenset(collections))

    def found(self, collections: Sequence[str]) -> Iterator[Divided]:
        """Read collections of the sink, and divide their records."""
        with opened_sink(self.sink) as sink:
            yield from divided(1, self.shares, cast(ScannableSink, sink).scan(collections))

    def compared(self, pages: Iterable[bytes]) -> Iterator[bytes | Note]:
        """Compare the pages of one share, which come in any order; return the records that may differ."""
        counts = [0, 0]
        with (
            contextlib.closing(Spool()) as spool,
            contextlib.closing(self.store.open()) as database,
        ):
            spool.is_ranked = self.is_ranked
            for content in pages:
                page = Page.unpacked(content)
                counts[page.side] += len(page.rows.ids)
                spool.add_page(page)
            # after records were read, which may be of a load
            loads = read_loads(database, self.reader, of_source=self.loaded)
            spool.compare(copies=self.exporter is None, loads=loads)
            yield from spool.packed_candidates()
        yield Compared(*counts)


def read_state_task(
    sent: Broadcast[VerifySetup], secrets: CarriedSecrets
) -> Callable[[Iterable[Sequence[Range]]], Iterator[Divided]]:
    """Return the function of tasks that read ranges of the state."""

    def task(shares: Iterable[Sequence[Range]]) -> Iterator[Divided]:
        secrets.unpack()
        try:
            for ranges in shares:
                yield from sent.value.expected(ranges)
        except ExportQueueError as error:
            yield 0, Problem.of(error)

    return task


def read_sink_task(
    sent: Broadcast[VerifySetup], secrets: CarriedSecrets
) -> Callable[[Iterable[Sequence[str]]], Iterator[Divided]]:
    """Return the function of tasks that read collections of the sink."""

    def task(shares: Iterable[Sequence[str]]) -> Iterator[Divided]:
        secrets.unpack()
        try:
            for collections in shares:
                yield from sent.value.found(collections)
        except ExportQueueError as error:
            yield 0, Problem.of(error)

    return task


def compare_task(
    sent: Broadcast[VerifySetup], secrets: CarriedSecrets
) -> Callable[[Iterable[Divided]], Iterator[bytes | Note]]:
    """Return the function of tasks that compare one share each. They pass notes on."""

    def task(share: Iterable[Divided]) -> Iterator[bytes | Note]:
        secrets.unpack()
        notes: list[Note] = []

        def pages() -> Iterator[bytes]:
            for _, one in share:
                if isinstance(one, bytes):
                    yield one
                else:
                    notes.append(one)

        try:
            yield from sent.value.compared(pages())
        except ExportQueueError as error:
            yield Problem.of(error)
        yield from notes

    return task


def is_note(one: Divided) -> bool:
    """Return whether a part is a note."""
    return not isinstance(one[1], bytes)
