"""The ways to bring records to a target: what is compared, and on which Spark each runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.environment import OLD, OWN


@dataclass(frozen=True, slots=True)
class Way:
    """One way.

    :param name: in tables.
    :param target: name of the target.
    :param how: the session's name of a peer; ``drain`` and ``sink`` are this library.
    :param guard: of the sink of this library.
    :param spark: the Spark that it runs on.
    :param options: what the peer is told beside the target's address.
    :param goals: of a drain: by name of another way, the least speed in the other's.
    """

    name: str
    target: str
    how: str
    guard: str | None = None
    spark: str = OWN
    options: Mapping[str, Any] = field(default_factory=dict)
    goals: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def is_drain(self) -> bool:
        """Whether it is a drain of a queue."""
        return self.how == "drain"


SPARK_REDIS, REDIS_LOOP = "spark-redis", "`foreachPartition` with a redis-py pipeline"
ELASTICSEARCH_SPARK, BULK_LOOP = "elasticsearch-spark", "`foreachPartition` with `streaming_bulk`"
EXTERNAL = "elasticsearch-spark, external versions"
JDBC, REWRITTEN = "JDBC append", "JDBC append, rewritten batches"
UPSERT_LOOP = "`foreachPartition` with `executemany` of upserts"
SEQ, FENCE, DRAIN = "drain, `seq`", "drain, `fence`", "drain"

WAYS = (
    Way(SEQ, "Redis", "drain", "seq", goals={SPARK_REDIS: 0.9, REDIS_LOOP: 2.7}),
    Way(FENCE, "Redis", "drain", "fence", goals={SPARK_REDIS: 1.3, REDIS_LOOP: 3.5}),
    Way("the sink by `mapInArrow`, `seq`", "Redis", "sink", "seq", goals={SPARK_REDIS: None}),
    Way("the sink by `mapInArrow`, `fence`", "Redis", "sink", "fence", goals={SPARK_REDIS: None}),
    Way(SPARK_REDIS, "Redis", "spark-redis", spark=OLD),
    Way(REDIS_LOOP, "Redis", "redis-py"),
    Way(DRAIN, "Elasticsearch", "drain", "seq", goals={ELASTICSEARCH_SPARK: 1.0, EXTERNAL: None, BULK_LOOP: 2.2}),
    Way("the sink by `mapInArrow`", "Elasticsearch", "sink", "seq", goals={ELASTICSEARCH_SPARK: None}),
    Way(ELASTICSEARCH_SPARK, "Elasticsearch", "elasticsearch-spark", spark=OLD),
    Way(EXTERNAL, "Elasticsearch", "elasticsearch-spark", spark=OLD, options={"external": True}),
    Way(BULK_LOOP, "Elasticsearch", "streaming_bulk"),
    Way(SEQ, "PostgreSQL", "drain", "seq", goals={JDBC: 1.0, REWRITTEN: 0.67, UPSERT_LOOP: 3.4}),
    Way(FENCE, "PostgreSQL", "drain", "fence", goals={JDBC: None, REWRITTEN: None, UPSERT_LOOP: None}),
    Way("the sink by `mapInArrow`, `seq`", "PostgreSQL", "sink", "seq", goals={JDBC: None, REWRITTEN: None}),
    Way(JDBC, "PostgreSQL", "jdbc"),
    Way(REWRITTEN, "PostgreSQL", "jdbc", options={"rewritten": True}),
    Way(UPSERT_LOOP, "PostgreSQL", "executemany"),
)


def ways_to(target: str) -> Iterable[Way]:
    """Give the ways to a target."""
    return (way for way in WAYS if way.target == target)
