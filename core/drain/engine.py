"""The engine of a drain: it drains claimed ranges in this process or, in ``core/spark``, by tasks of a Spark job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from export_queue.core.drain.binding import Binding
from export_queue.core.drain.report import RangeReport
from export_queue.core.locks import Lease, LeaseKeeper
from export_queue.core.queue import Queue
from export_queue.core.transactions import Snapshot


class Engine(Protocol):
    """Drains claimed ranges."""

    @property
    def is_fenced(self) -> bool:
        """Whether the sink has no ranks and relies on claims."""

    def binding(self) -> Binding:
        """Return the options of sink and exporter that decide which records are written."""

    @property
    def is_tallied(self) -> bool:
        """Whether tallies in the store count what left the queue, because reports may be lost."""

    @property
    def has_sent(self) -> bool:
        """Whether a batch may have reached the sink."""

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0) -> None:
        """Check sink and exporter once, before anything is claimed."""

    def claim(self, queue: Queue, leases: Sequence[Lease]) -> None:
        """Claim units in a fenced sink, before the snapshot is taken."""

    def work_off(
        self, queue: Queue, leases: Sequence[Lease], snapshot: Snapshot, keeper: LeaseKeeper
    ) -> Iterable[RangeReport]:
        """Drain leased ranges, with one report for each; the report of an unfinished range has the problem."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Numbers of a drain so far."""

    read: int = 0
    acknowledged: int = 0
    dead: int = 0


OnProgress = Callable[[Progress], None]
