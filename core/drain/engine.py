"""Engines, which drain claimed ranges: in this process or (in ``core/spark``) as the tasks of a Spark job."""

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
        """Tell whether the sink has no ranks, and relies on claims."""

    def binding(self) -> Binding:
        """Return the options of sink and exporter that decide which record is written."""

    @property
    def is_tallied(self) -> bool:
        """Tell whether what has left the queue is counted by tallies in the store, since reports may be lost."""

    @property
    def has_sent(self) -> bool:
        """Tell whether a batch may have reached the sink."""

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0) -> None:
        """Check sink and exporter once, before anything is claimed."""

    def claim(self, queue: Queue, leases: Sequence[Lease]) -> None:
        """Claim units in a fenced sink, before the snapshot is taken."""

    def work_off(
        self, queue: Queue, leases: Sequence[Lease], snapshot: Snapshot, keeper: LeaseKeeper
    ) -> Iterable[RangeReport]:
        """Drain leased ranges, one report for each; the report of a range that was not done has the problem."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Numbers of a drain so far."""

    read: int = 0
    acknowledged: int = 0
    dead: int = 0


OnProgress = Callable[[Progress], None]
