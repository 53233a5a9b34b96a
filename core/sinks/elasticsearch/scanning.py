"""Reading documents back: all of an index at one point in time, and some by their ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from export_queue.core.errors import SinkUnavailable
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
    # a scroll, and no point in time, whose requests Elasticsearch and OpenSearch name and sort in different ways
    body = {"size": size, "query": query, "sort": ["_doc"], "version": True, "_source": source}
    found = connection.demand("POST", f"/{index}/_search", params={"scroll": _KEEP_ALIVE}, body=body)
    try:
        while hits := _hits(connection, index, found):
            yield hits
            found = connection.demand(
                "POST", "/_search/scroll", body={"scroll": _KEEP_ALIVE, "scroll_id": found["_scroll_id"]}
            )
    finally:
        connection.ask("DELETE", "/_search/scroll", body={"scroll_id": found["_scroll_id"]})


def _hits(connection: Connection, index: str, found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the hits of a page. The server answers with those that it has, also if it cannot read all shards."""
    if found.get("timed_out") or found["_shards"]["failed"]:
        raise SinkUnavailable(f"{connection}, {index}: a shard cannot be read", hint="see the cluster's health")
    hits: list[Mapping[str, Any]] = found["hits"]["hits"]
    return hits


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
