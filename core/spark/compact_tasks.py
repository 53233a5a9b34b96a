"""What the tasks of a compaction do in Spark's Python workers."""

from __future__ import annotations

import contextlib
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from export_queue.core.drain import Problem
from export_queue.core.errors import ExportQueueError
from export_queue.core.segments import Merge, Merged, UnitPlan
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.store import StoreSpec

if TYPE_CHECKING:
    from pyspark import Broadcast


def packed(plans: Sequence[UnitPlan]) -> bytes:
    """Compress a share: it may have many sources, and a task of Spark must be smaller than 128 MiB."""
    return zlib.compress(pickle.dumps(list(plans), pickle.HIGHEST_PROTOCOL), 1)


def merge_task(
    merge: Broadcast[Merge], store: StoreSpec, secrets: CarriedSecrets
) -> Callable[[Iterable[bytes]], Iterator[Merged | Problem]]:
    """Return the function of the Spark job, which merges shares that :func:`packed` compressed.

    :param store: the store, which each task opens to read rows.
    :param secrets: secrets that executors on other machines cannot look up.
    :returns: a function that yields the result of each share, as :func:`brief` shortens it, or the error. An error is
        returned as data, because Spark would repeat the task in vain.
    """

    def task(shares: Iterable[bytes]) -> Iterator[Merged | Problem]:
        secrets.unpack()
        for share in shares:
            plans: list[UnitPlan] = pickle.loads(zlib.decompress(share))
            try:
                with contextlib.closing(store.open()) as database:
                    found: Merged | Problem = brief(merge.value.run(database, plans, check=_unchecked))
            except ExportQueueError as error:
                found = Problem.of(error)
            yield found

    return task


def brief(merged: Merged) -> Merged:
    """Remove the sources, which the driver knows."""
    units = (replace(unit, plan=replace(unit.plan, segments=())) for unit in merged.units)
    return replace(merged, units=tuple(units))


def in_full(merged: Merged, plans: Sequence[UnitPlan]) -> Merged:
    """Restore what :func:`brief` removed.

    :param plans: the share that was merged.
    """
    units = (replace(unit, plan=plan) for unit, plan in zip(merged.units, plans, strict=True))
    return replace(merged, units=tuple(units))


def _unchecked() -> None:
    """Do nothing: the driver renews the locks, and ends the job if they are lost."""
