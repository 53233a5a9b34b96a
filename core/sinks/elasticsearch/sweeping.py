"""Floor and sweep of an Elasticsearch cluster, which has no transaction that spans a floor and a batch.

In its place an attempt's life is bounded. A batch goes by a floor that was read :data:`FLOOR_SECONDS` ago at most, and
each of its requests is given up after the sink's timeout. The control record keeps the longest timeout of all sinks
that were admitted. A sweep raises the floor, waits until every attempt that may have gone by the old one is over, with
as much again for what the network and the server hold back, and only then removes tombstones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import orjson

from export_queue.core.errors import SinkUnavailable
from export_queue.core.sinks.control import FloorRecord, join_feeders, raise_floor, stale_rank
from export_queue.core.sinks.elasticsearch import indices
from export_queue.core.sinks.elasticsearch.answers import Meaning, whole
from export_queue.core.sinks.elasticsearch.connection import Connection

FLOOR_SECONDS = 5.0
"""How long a floor that was read may be gone by."""
TIMEOUTS = 2.0
"""How many times the longest timeout a request may take to end."""
PAGE = 1000
"""Tombstones that one request removes."""
REPORT_PAGES = 50
"""After how many pages the log says how far the sweep is."""
_TRIES = 8
_KEEP_ALIVE = "2m"
_PATH = f"/{indices.CONTROL}/_doc/{quote(indices.WHOLE_SINK, safe='')}"

log = logging.getLogger("export_queue.sweep")
sleep = time.sleep
clock = time.monotonic


class Floor:
    """The floor of a cluster, read anew whenever what is known of it is too old.

    :param connection: to the cluster.
    :param timeout: seconds that the sink waits for an answer.
    """

    def __init__(self, connection: Connection, *, timeout: float) -> None:
        self._connection = connection
        self._timeout_ms = int(timeout * 1000)
        self._known = 0
        self._read_at = float("-inf")

    def read(self) -> int:
        """Return the floor as it was a moment ago."""
        if clock() - self._read_at > FLOOR_SECONDS:
            begun = clock()
            self._known = self._get()[0].floor
            self._read_at = begun
        return self._known

    def require(self, floor: int) -> None:
        """Make sure, right before a request of a batch, that the floor is still the one that the batch goes by.

        :raises SinkUnavailable: it was raised; the batch may be given again.
        """
        if self.read() != floor:
            raise SinkUnavailable(f"{self._connection}: the sink is being swept at this moment", hint="try again")

    def join(self, store_id: str) -> None:
        """Note that a store feeds the cluster, and how long this sink waits for answers.

        :raises SinkBelongsToAnother: another store has swept it.
        """
        self._change(lambda found: join_feeders(found, store_id=store_id, sink=str(self._connection)))

    def lift(self, store_id: str, floor: int) -> int:
        """Raise the floor, wait until nobody can go by the old one, and return where it is.

        :raises SinkBelongsToAnother: another store feeds the cluster, too.
        """
        found, longest_ms = self._change(
            lambda found: raise_floor(found, store_id=store_id, floor=floor, sink=str(self._connection))
        )
        seconds = FLOOR_SECONDS + TIMEOUTS * longest_ms / 1000
        log.info("%s: floor %d; waiting %.0f s for requests under way", self._connection, found.floor, seconds)
        sleep(seconds)
        self._read_at = float("-inf")
        return found.floor

    def _change(self, decide: Callable[[FloorRecord], FloorRecord]) -> tuple[FloorRecord, int]:
        for _ in range(_TRIES):
            found, longest_ms, guard = self._get()
            wanted, needed_ms = decide(found), max(longest_ms, self._timeout_ms)
            if (wanted, needed_ms) == (found, longest_ms):
                return found, longest_ms
            body = indices.write_floor(wanted, needed_ms)
            status, answer = self._connection.ask("PUT", _PATH, params=guard, body=body)
            if status in (200, 201):
                return wanted, needed_ms
            outcome = whole(status, answer)
            if outcome.meaning not in (Meaning.STALE, Meaning.BUSY):
                raise outcome.explain(f"{self._connection}, {indices.CONTROL}")
            sleep(0.05)
        raise SinkUnavailable(f"{self._connection}: the record of its floor changes all the time")

    def _get(self) -> tuple[FloorRecord, int, Mapping[str, str]]:
        """Read the record, and on what condition it may be replaced."""
        for attempt in range(_TRIES):
            status, answer = self._connection.ask("GET", _PATH)
            if status == 200:
                guard = {"if_seq_no": str(answer["_seq_no"]), "if_primary_term": str(answer["_primary_term"])}
                return *indices.read_floor(answer["_source"]), guard
            if status == 404:
                return FloorRecord(), 0, {"op_type": "create"}
            outcome = whole(status, answer)
            if outcome.type != "no_shard_available_action_exception" or attempt == _TRIES - 1:
                raise outcome.explain(f"{self._connection}, {indices.CONTROL}")
            sleep(0.1 * 2**attempt)  # somebody has created the index just now
        raise AssertionError("the loop returns or raises")


def sweep(connection: Connection, *, template: str, floor: int) -> int:
    """Remove the tombstones at or below a floor that nobody goes below any more, from all indices of a template."""
    pattern = template.replace("{collection}", "*")
    status, answer = connection.ask("GET", f"/{pattern}", params={"filter_path": "*.aliases"})
    if status == 404:
        return 0
    if status != 200:
        raise whole(status, answer).explain(f"{connection}, {pattern}")
    return sum(_sweep_index(connection, index, floor) for index in indices.behind(template, answer))


def _sweep_index(connection: Connection, index: str, floor: int) -> int:
    # what is not refreshed yet is not found; where that is not allowed, the next sweep finds it
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
    """Remove tombstones that are still what was found.

    ``external_gte`` with the version that was found: an equal one is deleted, a newer document refuses, and the version
    that the delete leaves behind lets every later write in. Another guard leaves one that is greater.
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
        # 404: another sweep was there; 409: it was put again; what a busy server refuses is left to the next sweep
        if answer["status"] not in (200, 404, 409, 429):
            raise whole(answer["status"], answer).explain(f"{connection}, {index}")
    return sum(answer["status"] == 200 for answer in answers)


def _ask(connection: Connection, method: str, path: str, **arguments: Any) -> Any:
    status, answer = connection.ask(method, path, **arguments)
    if status not in (200, 201):
        raise whole(status, answer).explain(f"{connection}, {path}")
    return answer
