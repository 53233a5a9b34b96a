"""The ways of registering the ids of transactions in progress: every test of the battery runs on each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from export_queue import Store
from export_queue.core.store.creation import create
from export_queue.core.store.seams import Clock


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way, or a mixture of several on one store."""

    name: str
    database: Literal["sqlite", "postgresql"]
    options: tuple[Mapping[str, Any], ...] = ({},)
    """Arguments of ``Store.open``; processes take turns."""
    weight: float = 1.0
    """This way's part of all transactions; SQLite's cost less of the processor's time."""

    def open(self, url: str, *, number: int = 0, clock: Clock | None = None) -> Store:
        """Open a store as one of many processes does."""
        return Store.open(url, clock=clock, **self.options[number % len(self.options)])

    def create(self, url: str) -> None:
        """Create the store."""
        with self.open(url) as store:
            create(store.database)

    def part_of(self, transactions: int) -> int:
        """Give the number of transactions that this way runs of all."""
        return math.ceil(transactions * self.weight / sum(way.weight for way in WAYS))


WAYS = [
    Way(name="sqlite", database="sqlite", weight=1.5),
    Way(name="postgresql", database="postgresql"),
    Way(name="postgresql-mixed", database="postgresql", options=({}, {"behind_pooler": True}), weight=0.5),
]
