"""What works off claimed ranges: this process, or (in ``core/spark``) the tasks of a Spark job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from export_queue.core.drain.chunk import Rules
from export_queue.core.drain.exporters import Exporter
from export_queue.core.drain.fencing import check_rules, claim_units
from export_queue.core.drain.leases import LeaseKeeper
from export_queue.core.drain.pipeline import drain_ranges
from export_queue.core.drain.report import Counts, RangeReport
from export_queue.core.drain.transient import call_again
from export_queue.core.locks import Lease
from export_queue.core.queue import Queue
from export_queue.core.sinks import FencedSink, Sink
from export_queue.core.store import Database
from export_queue.core.transactions import Snapshot


class Engine(Protocol):
    """Works off what a drain has claimed."""

    @property
    def is_fenced(self) -> bool:
        """Whether the sink has no ranks, and relies on claims."""

    def admit(self, *, queue_id: str, store_id: str, fence: int, drained: bool = False) -> None:
        """Check sink and exporter once, before anything is claimed."""

    def claim(self, queue: Queue, leases: Sequence[Lease]) -> None:
        """Claim units in a fenced sink, before the snapshot is taken."""

    def work_off(
        self, queue: Queue, leases: Sequence[Lease], snapshot: Snapshot, keeper: LeaseKeeper
    ) -> Iterator[RangeReport]:
        """Drain leased ranges, one report for each; a range that was not done says why."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a drain has done so far."""

    read: int = 0
    acknowledged: int = 0
    dead: int = 0


OnProgress = Callable[[Progress], None]


@dataclass(slots=True)
class LocalEngine:
    """Drains one range after the other in this process.

    :param database: the store.
    :param sink: open sink.
    :param exporter: open exporter.
    :param rules: what is done about rejected entries.
    :param on_progress: called after each chunk.
    """

    database: Database
    sink: Sink | FencedSink
    exporter: Exporter
    rules: Rules
    on_progress: OnProgress | None = None
    _progress: Progress = Progress()

    def admit(self, *, queue_id: str, store_id: str, fence: int, drained: bool = False) -> None:
        """Ask the sink."""
        check_rules(self.sink, self.rules)
        call_again(
            self.rules.retry,
            lambda: self.sink.admit(queue_id=queue_id, store_id=store_id, fence=fence, drained=drained),
        )

    @property
    def is_fenced(self) -> bool:
        """Ask the sink."""
        return self.sink.capabilities.fenced

    def claim(self, queue: Queue, leases: Sequence[Lease]) -> None:
        """Ask the sink."""
        claim_units(self.sink, queue, leases, self.rules.retry)

    def work_off(
        self, queue: Queue, leases: Sequence[Lease], snapshot: Snapshot, keeper: LeaseKeeper
    ) -> Iterator[RangeReport]:
        """Drain the ranges in their order; each is given back as soon as it is done."""
        reports = drain_ranges(
            self.database,
            queue,
            leases,
            snapshot,
            self.sink,
            self.exporter,
            self.rules,
            check=keeper.check,
            on_chunk=self._tell,
        )
        for lease, report in zip(leases, reports, strict=True):
            if report.problem is None:
                keeper.give_back(lease)
            yield report

    def _tell(self, counts: Counts) -> None:
        before = self._progress
        self._progress = Progress(
            before.read + counts.read, before.acknowledged + counts.acknowledged, before.dead + counts.dead
        )
        if self.on_progress is not None:
            self.on_progress(self._progress)
