"""What the tasks of a compaction do in Spark's Python workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from export_queue.core.drain import Problem
from export_queue.core.errors import ExportQueueError
from export_queue.core.segments import Merge, Merged, UnitPlan
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.store import StoreSpec


class SharedMerge(Protocol):
    """What travels apart from the tasks, as Spark's broadcast variables do."""

    @property
    def value(self) -> Merge:
        """What all tasks need."""


def merge_task(
    merge: SharedMerge, store: StoreSpec, secrets: CarriedSecrets
) -> Callable[[Iterable[Sequence[UnitPlan]]], Iterator[Merged | Problem]]:
    """Make the function of the Spark job, which is given shares of units.

    :param store: the store, which each task opens, to read rows.
    :param secrets: secrets that executors of another machine cannot look up.
    :returns: a function that tells of each share what it has written, or why it could not: then a repetition by Spark
        would only meet the same.
    """

    def task(shares: Iterable[Sequence[UnitPlan]]) -> Iterator[Merged | Problem]:
        secrets.unpack()
        for plans in shares:
            try:
                with contextlib.closing(store.open()) as database:
                    found: Merged | Problem = merge.value.run(database, plans, check=_go_on)
            except ExportQueueError as error:
                found = Problem.of(error)
            yield found

    return task


def _go_on() -> None:
    """Go on: the driver, which keeps the locks, ends the job where they are lost."""
