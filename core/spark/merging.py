"""Merging by the tasks of a Spark that runs already; importing this needs no PySpark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.store import StoreSpec

if TYPE_CHECKING:
    from pyspark import SparkContext

    from export_queue.core.spark.compact_merger import SparkMerger


def merge_by_tasks(context: SparkContext, store: StoreSpec) -> SparkMerger:
    """Make the merger of a compaction whose driver is the caller's own program.

    :param context: its connection to Spark, whose executors find the library.
    :param store: the store; each task opens it, and follows its references by itself.
    """
    from export_queue.core.spark.compact_merger import SparkMerger

    return SparkMerger(context, store, CarriedSecrets())
