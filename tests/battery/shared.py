"""What the processes of one run share, and where the workload keeps its data."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export_queue import Store

fork = multiprocessing.get_context("fork")

SLOTS = 10
"""Lists in use at any time; even ones conflict by row, odd ones by cell."""
QUIET = (0, 1)
"""Slots to which only transactions append that others end: elsewhere newer versions soon cover what they leave."""
MARKS = 3
ACCOUNTS, TOTAL = 8, 800
QUEUE = "moves"
STAGES = ("reading", "staging", "committing")


def configure(store: Store) -> None:
    """Create the tables of the workload, its queue, and the accounts of its bank."""
    store.configure_table("rows", conflict="row")
    store.configure_table("cells", conflict="cell")
    store.configure_table("marks", conflict="cell")
    store.configure_table("bank", conflict="cell")
    store.configure_table("noted", conflict="none")
    store.observe("noted", "n", lambda tx, row, column: None)
    store.configure_queue(QUEUE, buckets=8, buckets_per_range=8)
    with store.transaction() as tx:
        for account in range(ACCOUNTS):
            tx.table("bank").set(f"a{account}", "balance", b"%d" % (TOTAL // ACCOUNTS))


@dataclass(frozen=True)
class Shared:
    """Arrays in shared memory, and a folder."""

    folder: Path
    done: Any
    """Transactions that each client has ended."""
    ended_late: Any
    """By client and stage: how often a transaction that others had ended was refused there."""
    generations: Any
    """By slot which of its lists is in use; a hint."""
    asleep_until: Any
    """By client when it is to be woken that has stopped itself; in monotonic nanoseconds, 0 if it is awake."""
    executed: Any
    """By client the last of its wills that somebody executed."""
    pruned: Any
    """Long transactions that were swept after their time-out and pruned."""
    stop: Any
    clock_offset: Any
    """Milliseconds that the host's clock seems to have been set forward; SQLite takes its time from there."""

    @classmethod
    def create(cls, folder: Path, clients: int) -> Shared:
        for name in ("wills", "taken"):
            (folder / name).mkdir()
        return cls(
            folder=folder,
            done=fork.RawArray("q", clients),
            ended_late=fork.RawArray("q", clients * len(STAGES)),
            generations=fork.RawArray("q", SLOTS),
            asleep_until=fork.RawArray("q", clients),
            executed=fork.RawArray("q", clients),
            pruned=fork.RawValue("q", 0),
            stop=fork.RawValue("b", 0),
            clock_offset=fork.RawValue("q", 0),
        )

    def clock(self) -> int:
        return time.time_ns() // 1_000_000 + int(self.clock_offset.value)


@dataclass(frozen=True)
class Place:
    """Where a list stands. Those of one generation stand in a row where cells conflict: scans take several pages."""

    slot: int
    generation: int

    @property
    def table(self) -> str:
        return "cells" if self.slot % 2 else "rows"

    @property
    def row(self) -> bytes:
        return b"%d" % self.generation if self.slot % 2 else b"%d-%d" % (self.slot, self.generation)

    @property
    def column(self) -> bytes:
        return b"%d" % self.slot

    @property
    def key(self) -> str:
        return f"l{self.slot}-{self.generation}"
