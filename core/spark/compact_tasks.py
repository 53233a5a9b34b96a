"""What the tasks of a compaction do in Spark's Python workers."""

from __future__ import annotations

import contextlib
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
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


def packed(plans: Sequence[UnitPlan]) -> bytes:
    """Write a share as few bytes: a task of Spark must be smaller than 128 MiB, and sources are many."""
    return zlib.compress(pickle.dumps(list(plans), pickle.HIGHEST_PROTOCOL), 1)


def merge_task(
    merge: SharedMerge, store: StoreSpec, secrets: CarriedSecrets
) -> Callable[[Iterable[bytes]], Iterator[Merged | Problem]]:
    """Make the function of the Spark job, which is given shares of units as :func:`packed` wrote them.

    :param store: the store, which each task opens, to read rows.
    :param secrets: secrets that executors of another machine cannot look up.
    :returns: a function that tells of each share what it has written, with units as :func:`brief` has them, or why it
        could not: then a repetition by Spark would only meet the same.
    """

    def task(shares: Iterable[bytes]) -> Iterator[Merged | Problem]:
        secrets.unpack()
        for share in shares:
            plans: list[UnitPlan] = pickle.loads(zlib.decompress(share))
            try:
                with contextlib.closing(store.open()) as database:
                    found: Merged | Problem = brief(merge.value.run(database, plans, check=_go_on))
            except ExportQueueError as error:
                found = Problem.of(error)
            yield found

    return task


def brief(merged: Merged) -> Merged:
    """Leave out the sources, which the driver knows."""
    units = (replace(unit, plan=replace(unit.plan, segments=())) for unit in merged.units)
    return replace(merged, units=tuple(units))


def in_full(merged: Merged, plans: Sequence[UnitPlan]) -> Merged:
    """Put back what :func:`brief` has left out.

    :param plans: the share that was merged.
    """
    units = (replace(unit, plan=plan) for unit, plan in zip(merged.units, plans, strict=True))
    return replace(merged, units=tuple(units))


def _go_on() -> None:
    """Go on: the driver, which keeps the locks, ends the job where they are lost."""
