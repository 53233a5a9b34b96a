"""Creation of a store on PostgreSQL, and maintenance of its server."""

from __future__ import annotations

from importlib.resources import files
from typing import Any
from weakref import WeakKeyDictionary

import psycopg

from export_queue.core.errors import OtherCluster
from export_queue.core.postgresql_connection import LONGEST_SECONDS, BoundedConnection
from export_queue.core.store.postgresql import calls as calls
from export_queue.core.store.postgresql import errors as errors
from export_queue.core.store.postgresql import statements as sql
from export_queue.core.store.registration import (
    HOUR_OF_IDS,
    LAG_OF_IDS,
    LOCK_WINDOW,
    QUEUE_BIT,
    SLOW_MS,
    STAYED_MS,
    floor_refused,
)
from export_queue.core.store.seams import Administration, Handle, Server


class PostgresAdministration(Administration):
    """Creates the id source and the functions in ``sql/``."""

    def __init__(self, schema: str) -> None:
        self._schema = schema

    def create(self, connection: Handle) -> None:
        mask = calls.one(connection, sql.in_schema(self._schema, sql.MASK))[0]
        calls.run(connection, sql.in_schema(self._schema, sql.CREATE_SEQUENCE))
        for table in sql.WRITER_TABLES:
            named = {"s": sql.quoted(self._schema), "table": table}
            if not calls.one(connection, sql.HAS_WRITER.format(**named).encode())[0]:
                calls.run(connection, sql.ADD_WRITER.format(**named).encode())
        for name in ("ids_by_locks.sql", "servers.sql", "transactions.sql", "locks.sql"):
            self._run_file(connection, name, mask)

    def _run_file(self, connection: Handle, name: str, mask: int) -> None:
        text = (files("export_queue.core.store.postgresql") / "sql" / name).read_text("utf-8")
        values = {
            "{s}": sql.quoted(self._schema),
            "{mask}": f"'{mask}'::bigint",
            "{now}": sql.NOW,
            "{lock_window}": str(LOCK_WINDOW),
            "{hour}": str(HOUR_OF_IDS),
            "{stayed_ms}": str(STAYED_MS),
            "{slow_ms}": str(SLOW_MS),
            "{lag}": str(LAG_OF_IDS),
            "{queue_bit}": f"{QUEUE_BIT}::bigint",
            "{moment_ms}": str(sql.MOMENT_MS),
            "{bucket}": sql.BUCKET.format(hash="e.h", queue="q"),
            "{queues_of_tx}": sql.QUEUES_OF_TRANSACTION.replace("{s}", sql.quoted(self._schema)),
            "{bucket_of_staged}": sql.BUCKET.format(hash="s.hash", queue="r"),
        }
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        calls.raw(connection).execute(text.encode())

    def last_id(self, connection: Handle) -> int:
        return int(calls.one(connection, sql.in_schema(self._schema, sql.LAST_ID))[0])

    def set_floor(self, connection: Handle, floor: int) -> None:
        if not calls.one(connection, sql.in_schema(self._schema, sql.SET_FLOOR), (floor,))[0]:
            raise floor_refused(floor)


class PostgresServer(Server):
    """The server of a store. A life of a server ends when it crashes or another one takes its place.

    Numbers of SQL transactions are only valid during the life in which they were given.
    """

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._lives: WeakKeyDictionary[psycopg.Connection[Any], str] = WeakKeyDictionary()

    def life_of(self, connection: Handle) -> str:
        """Return the life of the server to which a connection leads, read once; empty on a standby.

        :raises OtherCluster: the store was copied into another cluster.
        """
        raw = calls.raw(connection)
        life = self._lives.get(raw)
        if life is None:
            stored, cluster, token = calls.one(connection, sql.in_schema(self._schema, sql.SERVER))
            if stored is not None and cluster is not None and stored != cluster:
                raise OtherCluster(f"store {self._schema}: expected a server of cluster {stored}, found {cluster}")
            if token is None:
                return ""  # a standby: the snapshot says so
            life = self._lives[raw] = f"{cluster}/{token}"
        return life

    def limit(self, raw: object, seconds: float) -> None:
        if isinstance(raw, BoundedConnection):
            raw.answer_seconds = min(seconds, LONGEST_SECONDS)

    def check(self, connection: Handle) -> None:
        self.life_of(connection)

    def adopt(self, connection: Handle) -> None:
        for statement in sql.ADOPT:
            calls.run(connection, sql.in_schema(self._schema, statement))
        self._lives.clear()

    def is_creation_met(self, error: Exception) -> bool:
        return errors.is_creation_met(error)

    def is_untidy(self, connection: Handle, *, removed: int, after: int) -> bool:
        # The server counts some seconds late. If it has counted the caller's rows, the vacuum only starts earlier.
        return removed + int(calls.one(connection, sql.in_schema(self._schema, sql.DEAD_ENTRIES))[0]) > after

    def tidy_entries(self, connection: Handle) -> None:
        calls.run(connection, sql.in_schema(self._schema, sql.VACUUM_ENTRIES))
