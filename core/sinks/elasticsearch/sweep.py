"""The floor of an Elasticsearch cluster, and the removal of tombstones below it.

No transaction covers both the floor and a batch. Instead, the time that a request can take is bounded. A batch uses a
floor that was read at most :data:`FLOOR_SECONDS` ago, and each of its requests is abandoned after the sink's timeout.
The control record holds the longest timeout of all sinks that were admitted. A sweep raises the floor and waits until
every request that may have used the old floor has ended, with as much again for delays in the network and the server.
Only then it removes tombstones.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from export_queue.core.errors import SinkUnavailable
from export_queue.core.sinks import control
from export_queue.core.sinks.control import FloorRecord, stale_rank
from export_queue.core.sinks.elasticsearch import indices, scanning
from export_queue.core.sinks.elasticsearch.answers import whole
from export_queue.core.sinks.elasticsearch.connection import Connection
from export_queue.core.sinks.elasticsearch.indices import WholeRecord
from export_queue.core.sinks.error_table import Fate
from export_queue.core.sinks.naming import fill

FLOOR_SECONDS = 5.0
"""Maximum age of the floor that a batch uses."""
TIMEOUTS = 2.0
"""Maximum duration of a request, as a multiple of the longest timeout."""
PAGE = 1000
"""Tombstones that one request removes."""
REPORT_PAGES = 50
"""Pages between two lines of progress in the log."""
_PATH = indices.control_path(indices.WHOLE_SINK)

log = logging.getLogger("export_queue.sweep")


class Floor:
    """The record of the whole cluster: its floor, the stores that feed it, and the indices that were written to."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._known = 0
        self._read_at = float("-inf")

    def read(self) -> int:
        """Return the floor, read at most :data:`FLOOR_SECONDS` ago. Threads may call this."""
        with self._lock:  # of two concurrent reads, the older result could replace the newer one
            if self._connection.retry.clock() - self._read_at > FLOOR_SECONDS:
                begun = self._connection.retry.clock()
                self._known = self.whole_record().floor.floor
                self._read_at = begun
            return self._known

    def require(self, floor: int) -> None:
        """Check, right before a request of a batch, that the floor is still the one that the batch uses.

        :raises SinkUnavailable: it was raised; the batch may be given again.
        """
        if self.read() != floor:
            raise SinkUnavailable(f"{self._connection}: the sink is being swept at this moment", hint="try again")

    def register_store(self, store_id: str) -> None:
        """Record that a store feeds the cluster, and this sink's timeout.

        :raises SinkBelongsToAnother: another store has swept the cluster.
        """
        self._change_floor(lambda found: control.register_store(found, store_id=store_id, sink=str(self._connection)))

    def raise_floor(self, store_id: str, floor: int) -> int:
        """Raise the floor, wait until no request can use the old one, and return the new one.

        :raises SinkBelongsToAnother: other stores feed the cluster too.
        """
        found = self._change_floor(
            lambda found: control.raise_floor(found, store_id=store_id, floor=floor, sink=str(self._connection))
        )
        seconds = FLOOR_SECONDS + TIMEOUTS * found.longest_ms / 1000
        log.info("%s: floor %d; waiting %.0f s for requests under way", self._connection, found.floor.floor, seconds)
        self._connection.retry.sleep(seconds)
        self._read_at = float("-inf")
        return found.floor.floor

    def whole_record(self) -> WholeRecord:
        """Read the record."""
        return indices.read_whole(self._connection.read(_PATH)[0])

    def note_index(self, alias: str, identity: str) -> str:
        """Record the index behind an alias, unless one is recorded already; return the recorded one."""
        return self._change(lambda found: replace(found, known={alias: identity, **found.known})).known[alias]

    def forget_index(self, alias: str, *, fence: int) -> None:
        """Forget the lost index behind an alias, and record the loss: other queues may have written to it too.

        :param fence: fence of the queue that continues with the sink as it is.
        """
        self._change(
            lambda found: replace(
                found,
                known={name: identity for name, identity in found.known.items() if name != alias},
                lost={**found.lost, alias: fence},
            )
        )

    def _change_floor(self, decide: Callable[[FloorRecord], FloorRecord]) -> WholeRecord:
        own_ms = int(self._connection.timeout * 1000)
        return self._change(
            lambda found: replace(found, floor=decide(found.floor), longest_ms=max(found.longest_ms, own_ms))
        )

    def _change(self, decide: Callable[[WholeRecord], WholeRecord]) -> WholeRecord:
        wanted = WholeRecord()

        def change(source: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
            nonlocal wanted
            found = indices.read_whole(source)
            wanted = decide(found)
            return None if wanted == found else indices.write_whole(wanted)

        self._connection.change(_PATH, change, f"{self._connection}: the record of its floor changes all the time")
        return wanted


def sweep(connection: Connection, *, template: str, floor: int) -> int:
    """Remove the tombstones at or below a floor from all indices of a template, and return their number.

    :param floor: the raised floor. No request that has read a lower one may be under way.
    """
    pattern = fill(template, "*")
    status, answer = connection.ask("GET", f"/{pattern}", params={"filter_path": "*.aliases"})
    if status == 404:
        return 0
    if status != 200:
        raise whole(status, answer).explain(f"{connection}, {pattern}")
    return sum(_sweep_index(connection, index, floor) for index in indices.behind(template, answer))


def _sweep_index(connection: Connection, index: str, floor: int) -> int:
    query = [{"term": {f"{indices.RESERVED}.deleted": True}}, {"range": {f"{indices.RESERVED}.seq": {"lte": floor}}}]
    removed = 0
    for number, hits in enumerate(scanning.pages(connection, index, {"bool": {"filter": query}}, size=PAGE), 1):
        removed += _remove(connection, index, hits, floor)
        if number % REPORT_PAGES == 0:
            log.info("index %s: %d tombstones removed", index, removed)
    return removed


def _remove(connection: Connection, index: str, hits: Sequence[Mapping[str, Any]], floor: int) -> int:
    """Remove tombstones that have not changed since they were found.

    The delete carries the version that was found and the type ``external_gte``: it succeeds if the version is equal,
    and fails if the document is newer. It leaves that same version behind, so that every later write succeeds. Other
    guards would leave a higher version.
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
    items = connection.demand("POST", f"/{index}/_bulk", params=params, body=b"".join(lines))["items"]
    answers = [answer for item in items for answer in item.values()]
    for answer in answers:
        outcome = whole(answer["status"], answer)
        # 404: another sweep removed it; 409: it was put again; a busy server: the next sweep removes it
        if outcome.status not in (200, 404, 409) and outcome.meaning is not Fate.AGAIN:
            raise outcome.explain(f"{connection}, {index}")
    return sum(answer["status"] == 200 for answer in answers)
