"""The way of exporting that looks right and is not: out of the transaction, before it has committed.

Source: the broken observer of Fluo's export queue recipe.
"""

from __future__ import annotations

import json
import os
from typing import Any

NAIVE_DATABASE = 1
"""Number of the Redis database that the naive way writes to."""


class NaiveIndex:
    """The index "count → aircraft" as a program without an export queue writes it."""

    def __init__(self) -> None:
        self._client = redis_client(NAIVE_DATABASE)

    def move(self, moves: list[tuple[str, int, int]]) -> None:
        """Move aircraft from their old count to their new one, at once."""
        with self._client.pipeline(transaction=False) as pipe:
            for aircraft, old, new in moves:
                pipe.sadd(f"count:{new:06}", aircraft)
                pipe.srem(f"count:{old:06}", aircraft)
            pipe.execute()


def redis_client(database: int) -> Any:
    """Connect to the Redis server of the connection ``redis_default``."""
    import redis

    connection = json.loads(os.environ["AIRFLOW_CONN_REDIS_DEFAULT"])
    return redis.Redis(host=connection["host"], port=connection["port"], password=connection["password"], db=database)
