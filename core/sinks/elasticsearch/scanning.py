"""Reading documents back: all of an index at one point in time, and some by their ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from export_queue.core.sinks.elasticsearch import indices
from export_queue.core.sinks.elasticsearch.connection import Connection
from export_queue.core.sinks.protocol import StoredRecords

PAGE = 1000
"""Documents that one request reads."""
_KEEP_ALIVE = "2m"


def pages(
    connection: Connection, index: str, query: Mapping[str, Any], *, size: int, source: bool = False
) -> Iterator[list[Mapping[str, Any]]]:
    """Read the hits of a query page by page, each with its version, as of the beginning.

    :param source: whether to read the documents, too.
    """
    # a search misses what is not refreshed; a user who may not refresh gets the rest the next time
    connection.ask("POST", f"/{index}/_refresh")
    pit = connection.demand("POST", f"/{index}/_pit", params={"keep_alive": _KEEP_ALIVE})["id"]
    after = None
    try:
        while True:
            body = {
                "size": size,
                "pit": {"id": pit, "keep_alive": _KEEP_ALIVE},
                "query": query,
                "sort": ["_shard_doc"],
                "version": True,
                "_source": source,
                "track_total_hits": False,
                **({} if after is None else {"search_after": after}),
            }
            found = connection.demand("POST", "/_search", body=body)
            hits = found["hits"]["hits"]
            if not hits:
                return
            pit, after = found.get("pit_id", pit), hits[-1]["sort"]
            yield hits
    finally:
        connection.ask("DELETE", "/_pit", body={"id": pit})


def scan(connection: Connection, alias: str, index: str) -> Iterator[StoredRecords]:
    """Read all documents and tombstones of an index."""
    for hits in pages(connection, index, {"match_all": {}}, size=PAGE, source=True):
        yield _records(alias, hits)


def look_up(connection: Connection, alias: str, index: str, ids: Sequence[bytes]) -> StoredRecords:
    """Read the newest versions of some documents, refreshed or not."""
    found: list[Mapping[str, Any]] = []
    for start in range(0, len(ids), PAGE):
        body = {"ids": [record.decode() for record in ids[start : start + PAGE]]}
        found += connection.demand("POST", f"/{index}/_mget", body=body)["docs"]
    return _records(alias, found)


def _records(alias: str, hits: Sequence[Mapping[str, Any]]) -> StoredRecords:
    return StoredRecords(
        [alias] * len(hits),
        [hit["_id"].encode() for hit in hits],
        [hit.get("_version", -1) for hit in hits],
        [_document(hit.get("_source")) for hit in hits],
    )


def _document(source: Mapping[str, Any] | None) -> bytes | None:
    return None if source is None or indices.RESERVED in source else _written(source)


def normal(document: bytes) -> bytes:
    """Return the normal form of a document. Numbers are compared as doubles, as which the client reads them."""
    try:
        return _written(orjson.loads(document))
    except orjson.JSONDecodeError:
        return _written(json.loads(document))  # lone surrogates


def _written(source: Any) -> bytes:
    try:
        return orjson.dumps(source, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return json.dumps(source, sort_keys=True).encode()
