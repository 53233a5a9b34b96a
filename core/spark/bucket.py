"""The bucket of a key as a native Spark expression, so that partitioning costs no Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


def bucket_column(key: Column | str, buckets: int) -> Column:
    """Compute what :func:`export_queue.core.queue.bucket` computes (I8).

    :param key: a column of binaries, or of strings, which Spark hashes as their UTF-8 bytes.
    :param buckets: the queue's number of buckets.
    :returns: a column of integers.
    """
    from pyspark.sql import functions as f

    return f.pmod(f.xxhash64(key), f.lit(buckets)).cast("int")  # Spark's seed is 42, like ours
