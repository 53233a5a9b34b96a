"""Tombstones of an Elasticsearch cluster: their removal, page by page, below a floor that is raised already."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from export_queue.core.sinks.control import stale_rank
from export_queue.core.sinks.elasticsearch import indices
from export_queue.core.sinks.elasticsearch.answers import Meaning, whole
from export_queue.core.sinks.elasticsearch.connection import Connection
from export_queue.core.sinks.naming import fill

PAGE = 1000
"""Tombstones that one request removes."""
REPORT_PAGES = 50
"""Pages after which the log says how far the sweep is."""
_KEEP_ALIVE = "2m"

log = logging.getLogger("export_queue.sweep")


def sweep(connection: Connection, *, template: str, floor: int) -> int:
    """Remove the tombstones at or below a floor from all indices of a template.

    :param floor: no request that has read a lower one is under way any more.
    :returns: how many were removed.
    """
    pattern = fill(template, "*")
    status, answer = connection.ask("GET", f"/{pattern}", params={"filter_path": "*.aliases"})
    if status == 404:
        return 0
    if status != 200:
        raise whole(status, answer).explain(f"{connection}, {pattern}")
    return sum(_sweep_index(connection, index, floor) for index in indices.behind(template, answer))


def _sweep_index(connection: Connection, index: str, floor: int) -> int:
    # tombstones that are not refreshed yet are not found; where the user may not refresh, the next sweep finds them
    connection.ask("POST", f"/{index}/_refresh")
    query = [{"term": {f"{indices.RESERVED}.deleted": True}}, {"range": {f"{indices.RESERVED}.seq": {"lte": floor}}}]
    pit = _ask(connection, "POST", f"/{index}/_pit", params={"keep_alive": _KEEP_ALIVE})["id"]
    removed, pages, after = 0, 0, None
    try:
        while True:
            body = {
                "size": PAGE,
                "pit": {"id": pit, "keep_alive": _KEEP_ALIVE},
                "query": {"bool": {"filter": query}},
                "sort": ["_shard_doc"],
                "version": True,
                "_source": False,
                "track_total_hits": False,
            }
            found = _ask(
                connection, "POST", "/_search", body=body if after is None else {**body, "search_after": after}
            )
            hits = found["hits"]["hits"]
            if not hits:
                return removed
            pit, after = found.get("pit_id", pit), hits[-1]["sort"]
            removed += _remove(connection, index, hits, floor)
            pages += 1
            if pages % REPORT_PAGES == 0:
                log.info("index %s: %d tombstones removed", index, removed)
    finally:
        connection.ask("DELETE", "/_pit", body={"id": pit})


def _remove(connection: Connection, index: str, hits: Sequence[Mapping[str, Any]], floor: int) -> int:
    """Remove tombstones that have not changed since they were found.

    The delete has the version that was found, and the type ``external_gte``: an equal version is deleted, a newer
    document refuses. The delete leaves behind that version, which lets every later write in; another guard would leave
    a greater one.
    """
    lines = [
        orjson.dumps({"delete": {"_id": hit["_id"], "version": hit["_version"], "version_type": "external_gte"}})
        + b"\n"
        for hit in hits
        if hit["_version"] <= stale_rank(floor)
    ]
    if not lines:
        return 0
    params = {"filter_path": "items.*.status,items.*.error.type"}
    items = _ask(connection, "POST", f"/{index}/_bulk", params=params, body=b"".join(lines))["items"]
    answers = [answer for item in items for answer in item.values()]
    for answer in answers:
        outcome = whole(answer["status"], answer)
        # 404: another sweep was there; 409: it was put again; a busy server: the next sweep removes it
        if outcome.status not in (200, 404, 409) and outcome.meaning is not Meaning.BUSY:
            raise outcome.explain(f"{connection}, {index}")
    return sum(answer["status"] == 200 for answer in answers)


def _ask(connection: Connection, method: str, path: str, **arguments: Any) -> Any:
    status, answer = connection.ask(method, path, **arguments)
    if status not in (200, 201):
        raise whole(status, answer).explain(f"{connection}, {path}")
    return answer
