"""The loop that one writes by hand: ``foreachPartition`` with each client, in batches; a null value deletes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from pyspark.sql import DataFrame, Row

BATCH = 1000


def redis_py(frame: DataFrame, to: Mapping[str, Any], *, version: int, deletes: bool) -> None:
    """Set strings by pipelines of redis-py."""

    def loop(rows: Iterable[Row]) -> None:
        import redis

        client = redis.Redis(to["host"], to["port"], password=os.environ["PEERS_REDIS"])
        for batch in batches(rows):
            pipeline = client.pipeline(transaction=False)
            for row in batch:
                if row.value is None:
                    pipeline.delete(f"r:{row.key}")
                else:
                    pipeline.set(f"r:{row.key}", row.value)
            pipeline.execute()
        client.close()

    frame.foreachPartition(loop)


def streaming_bulk(frame: DataFrame, to: Mapping[str, Any], *, version: int, deletes: bool) -> None:
    """Index documents by the client's helper."""

    def loop(rows: Iterable[Row]) -> None:
        from elasticsearch import Elasticsearch, helpers

        from benchmarks.elasticsearch import Transport

        login = (to["user"], os.environ["PEERS_ELASTICSEARCH"])
        url = f"http://{to['host']}:{to['port']}"
        client = Elasticsearch(url, basic_auth=login, transport_class=Transport)
        index = to["index"]
        actions = (
            {"_op_type": "delete", "_index": index, "_id": row.key}
            if row.value is None
            else {"_index": index, "_id": row.key, "_source": row.value}
            for row in rows
        )
        for _ in helpers.streaming_bulk(client, actions, chunk_size=BATCH):
            pass
        client.close()

    frame.foreachPartition(loop)


def executemany(frame: DataFrame, to: Mapping[str, Any], *, version: int, deletes: bool) -> None:
    """Upsert rows by psycopg, a transaction a batch."""
    table = to["table"]
    upsert = f"INSERT INTO {table} VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET document = excluded.document"

    def loop(rows: Iterable[Row]) -> None:
        import psycopg

        address = {"host": to["host"], "port": to["port"], "user": to["user"], "dbname": to["database"]}
        with psycopg.connect(**address, password=os.environ["PEERS_POSTGRESQL"]) as connection:
            for batch in batches(rows):
                cursor = connection.cursor()
                cursor.executemany(upsert, [(row.key, row.value) for row in batch if row.value is not None])
                gone = [(row.key,) for row in batch if row.value is None]
                if gone:
                    cursor.executemany(f"DELETE FROM {table} WHERE id = %s", gone)
                connection.commit()

    frame.foreachPartition(loop)


def batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Cut rows into lists."""
    left = iter(rows)
    while batch := list(islice(left, BATCH)):
        yield batch
