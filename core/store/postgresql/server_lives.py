"""Which life of which server a connection leads to: numbers of SQL transactions mean nothing to another one."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import psycopg

from export_queue.core.errors import OtherCluster
from export_queue.core.store.postgresql import calls as calls
from export_queue.core.store.postgresql import statements as sql
from export_queue.core.store.seams import Handle


class ServerLives:
    """The lives of the servers that connections lead to; each connection is asked once."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._statement = sql.in_schema(schema, sql.SERVER)
        self._known: WeakKeyDictionary[psycopg.Connection[Any], str] = WeakKeyDictionary()

    def of(self, connection: Handle) -> str:
        """Return the life of the server that a connection leads to; empty on a standby.

        :raises OtherCluster: the store was copied into another cluster.
        """
        raw = calls.raw(connection)
        origin = self._known.get(raw)
        if origin is None:
            stored, cluster, life = calls.one(connection, self._statement)
            if stored is not None and cluster is not None and stored != cluster:
                raise OtherCluster(f"store {self._schema}: expected a server of cluster {stored}, found {cluster}")
            if life is None:
                return ""  # a standby: the snapshot says so
            origin = self._known[raw] = f"{cluster}/{life}"
        return origin

    def clear(self) -> None:
        """Ask again: the store has changed its cluster."""
        self._known.clear()
