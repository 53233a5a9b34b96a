"""The floor of an Elasticsearch cluster, which has no transaction that spans a floor and a batch.

In its place an attempt's life is bounded. A batch goes by a floor that was read at most :data:`FLOOR_SECONDS` ago, and
each of its requests is given up after the sink's timeout. The control record keeps the longest timeout of all sinks
that were admitted. A sweep raises the floor, waits until every attempt that may have gone by the old one is over, with
as much again for delays in the network and the server, and only then removes tombstones.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import quote

from export_queue.core.errors import SinkUnavailable
from export_queue.core.sinks import control
from export_queue.core.sinks.control import FloorRecord
from export_queue.core.sinks.elasticsearch import indices
from export_queue.core.sinks.elasticsearch.answers import Answer, Meaning, whole
from export_queue.core.sinks.elasticsearch.connection import Connection, PutOff
from export_queue.core.sinks.elasticsearch.indices import WholeRecord

FLOOR_SECONDS = 5.0
"""How old a floor may be that a batch goes by."""
TIMEOUTS = 2.0
"""How many times the longest timeout a request may take to end."""
_PATH = f"/{indices.CONTROL}/_doc/{quote(indices.WHOLE_SINK, safe='')}"

log = logging.getLogger("export_queue.sweep")


class Floor:
    """The floor of a cluster, read anew when the known one is too old.

    :param connection: to the cluster.
    :param timeout: seconds that the sink waits for an answer.
    """

    def __init__(self, connection: Connection, *, timeout: float) -> None:
        self._connection = connection
        self._timeout_ms = int(timeout * 1000)
        self._lock = threading.Lock()
        self._known = 0
        self._read_at = float("-inf")

    def read(self) -> int:
        """Return the floor as it was a moment ago; any thread may ask."""
        with self._lock:  # of two readings at once the older one could pass for the newer one
            if self._connection.retry.clock() - self._read_at > FLOOR_SECONDS:
                begun = self._connection.retry.clock()
                self._known = self._get()[0].floor.floor
                self._read_at = begun
            return self._known

    def require(self, floor: int) -> None:
        """Make sure, right before a request of a batch, that the floor is still the one that the batch goes by.

        :raises SinkUnavailable: it was raised; the batch may be given again.
        """
        if self.read() != floor:
            raise SinkUnavailable(f"{self._connection}: the sink is being swept at this moment", hint="try again")

    def register_store(self, store_id: str) -> None:
        """Note that a store feeds the cluster, and how long this sink waits for answers.

        :raises SinkBelongsToAnother: another store has swept it.
        """
        self._change_floor(lambda found: control.register_store(found, store_id=store_id, sink=str(self._connection)))

    def raise_floor(self, store_id: str, floor: int) -> int:
        """Raise the floor, wait until no request can go by the old one, and return where it is.

        :raises SinkBelongsToAnother: another store feeds the cluster, too.
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
        """Return what is known of the whole cluster."""
        return self._get()[0]

    def known_indices(self) -> Mapping[str, str]:
        """Return the identities of all indices that were written to, by alias."""
        return self._get()[0].known

    def note_index(self, alias: str, identity: str) -> str:
        """Note the index that stands behind an alias, where none is noted.

        :returns: the one that is noted.
        """
        return self._change(lambda found: replace(found, known={alias: identity, **found.known})).known[alias]

    def forget_index(self, alias: str, *, fence: int) -> None:
        """Forget the index behind an alias that was lost, and note the loss: other queues may have written to it, too.

        :param fence: of the queue that goes on with the sink as it is.
        """
        self._change(
            lambda found: replace(
                found,
                known={name: identity for name, identity in found.known.items() if name != alias},
                lost={**found.lost, alias: fence},
            )
        )

    def _change_floor(self, decide: Callable[[FloorRecord], FloorRecord]) -> WholeRecord:
        return self._change(
            lambda found: replace(found, floor=decide(found.floor), longest_ms=max(found.longest_ms, self._timeout_ms))
        )

    def _change(self, decide: Callable[[WholeRecord], WholeRecord]) -> WholeRecord:
        def change() -> WholeRecord:
            found, guard = self._get()
            wanted = decide(found)
            if wanted == found:
                return found
            body = indices.write_whole(wanted)
            status, answer = self._connection.ask("PUT", _PATH, params=guard, body=body)
            if status in (200, 201):
                return wanted
            outcome = whole(status, answer)
            if outcome.meaning not in (Meaning.STALE, Meaning.BUSY):
                raise outcome.explain(f"{self._connection}, {indices.CONTROL}")
            raise PutOff(SinkUnavailable(f"{self._connection}: the record of its floor changes all the time"))

        return self._connection.repeat(change)

    def _get(self) -> tuple[WholeRecord, Mapping[str, str]]:
        """Read the record, and on what condition it may be replaced."""

        def get() -> tuple[WholeRecord, Mapping[str, str]]:
            status, answer = self._connection.ask("GET", _PATH)
            if status == 200:
                guard = {"if_seq_no": str(answer["_seq_no"]), "if_primary_term": str(answer["_primary_term"])}
                return indices.read_whole(answer["_source"]), guard
            if status == 404:
                return WholeRecord(), {"op_type": "create"}
            raise unreadable(whole(status, answer), f"{self._connection}, {indices.CONTROL}")

        return self._connection.repeat(get)


def unreadable(outcome: Answer, target: str) -> Exception:
    """Make the error of a control record that cannot be read; its index may have been created a moment ago.

    :param target: the sink and what was read.
    """
    error = outcome.explain(target)
    return PutOff(error) if outcome.type == "no_shard_available_action_exception" else error
