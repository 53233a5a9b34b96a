"""Anomalies by name, and which name a cycle of dependencies has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.support.histories.event_graph import Dependency, Edge


class AnomalyKind(StrEnum):
    """Names of anomalies, Adya's where there is one."""

    ABORTED_READ = "aborted read (G1a)"
    INTERMEDIATE_READ = "intermediate read (G1b)"
    UNWRITTEN_READ = "read of a value that nobody wrote"
    OWN_READ = "read that does not fit the transaction's own reads and writes"
    REPEATED_VALUE = "one value twice in a list"
    TORN_LIST = "two reads that disagree about the order of a list"
    IDS = "transaction ids against the order of transactions"
    WRITE_CYCLE = "write cycle (G0)"
    INFORMATION_CYCLE = "circular information flow (G1c)"
    LOST_UPDATE = "lost update"
    READ_SKEW = "read skew (G-single)"
    LONG_FORK = "long fork (cycle without two rw in a row)"
    STALE_READ = "stale read (a transaction acknowledged before the start is not seen)"
    REAL_TIME = "order against real time"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that snapshot isolation forbids, explained."""

    kind: AnomalyKind
    transactions: tuple[int, ...]
    """Positions in the history."""
    lines: tuple[str, ...]
    """Each dependency or observation in words, then each transaction."""

    def __str__(self) -> str:
        return "\n  ".join((f"{self.kind}:", *self.lines))


def classify(cycle: Sequence[Dependency]) -> AnomalyKind:
    """Name a cycle by the kinds of its dependencies."""
    kinds = [step.kind for step in cycle]
    in_time = Edge.TIME in kinds or Edge.SESSION in kinds
    match kinds.count(Edge.RW), in_time:
        case 0, True:
            return AnomalyKind.REAL_TIME
        case 0, False:
            return AnomalyKind.INFORMATION_CYCLE if Edge.WR in kinds else AnomalyKind.WRITE_CYCLE
        case _, True:
            return AnomalyKind.STALE_READ
        case 1, False:
            return AnomalyKind.READ_SKEW
        case _:
            return AnomalyKind.LONG_FORK
