"""Creation, locks and maintenance of a store on PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any
from weakref import WeakKeyDictionary

import psycopg

from export_queue.core.errors import OtherCluster, QueueBusy
from export_queue.core.postgresql_arrays import BigintArray
from export_queue.core.postgresql_connection import LONGEST_SECONDS, BoundedConnection
from export_queue.core.store.facts import Rights, ServerFacts
from export_queue.core.store.postgresql import calls as calls
from export_queue.core.store.postgresql import errors as errors
from export_queue.core.store.postgresql import statements as sql
from export_queue.core.store.postgresql.connection import may_prepare
from export_queue.core.store.registration import (
    HOUR_OF_IDS,
    LAG_OF_IDS,
    LOCK_WINDOW,
    QUEUE_BIT,
    SLOW_MS,
    STAYED_MS,
    floor_refused,
)
from export_queue.core.store.roles import CHECKED, DEFINERS, Right
from export_queue.core.store.seams import Administration, Handle, LockCall, LockSteps


class _InSchema:
    def __init__(self, schema: str) -> None:
        self._schema = schema

    def _one(self, connection: Handle, statement: str, arguments: Sequence[Any] = ()) -> tuple[Any, ...]:
        return calls.one(connection, sql.in_schema(self._schema, statement), arguments)

    def _run(self, connection: Handle, statement: str) -> None:
        calls.run(connection, sql.in_schema(self._schema, statement))


class PostgresAdministration(_InSchema, Administration):
    """Creates the id source and the functions in ``sql/``."""

    def create(self, connection: Handle) -> None:
        mask = self._one(connection, sql.MASK)[0]
        self._run(connection, sql.CREATE_SEQUENCE)
        for table in sql.WRITER_TABLES:
            named = {"s": sql.quoted(self._schema), "table": table}
            if not calls.one(connection, sql.HAS_WRITER.format(**named).encode())[0]:
                calls.run(connection, sql.ADD_WRITER.format(**named).encode())
        for name in ("ids_by_locks.sql", "servers.sql", "transactions.sql", "locks.sql", "rights.sql"):
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
        return int(self._one(connection, sql.LAST_ID)[0])

    def set_floor(self, connection: Handle, floor: int) -> None:
        if not self._one(connection, sql.SET_FLOOR, (floor,))[0]:
            raise floor_refused(floor)


class PostgresServer(_InSchema):
    """The server of a store. A life of a server ends when it crashes or another one takes its place.

    Numbers of SQL transactions are only valid during the life in which they were given.
    """

    def __init__(self, schema: str) -> None:
        super().__init__(schema)
        self.schema = schema
        self._lives: WeakKeyDictionary[psycopg.Connection[Any], str] = WeakKeyDictionary()

    def life_of(self, connection: Handle) -> str:
        """Return the life of the server to which a connection leads, read once; empty on a standby.

        :raises OtherCluster: the store was copied into another cluster.
        """
        raw = calls.raw(connection)
        life = self._lives.get(raw)
        if life is None:
            stored, cluster, token = self._one(connection, sql.SERVER)
            if stored is not None and cluster is not None and stored != cluster:
                raise OtherCluster(f"store {self._schema}: expected a server of cluster {stored}, found {cluster}")
            if token is None:
                return ""  # a standby: the snapshot says so
            life = self._lives[raw] = f"{cluster}/{token}"
        return life

    def limit(self, raw: object, seconds: float) -> None:
        """Limit the wait for each answer on a driver's connection until it is returned to its pool."""
        if isinstance(raw, BoundedConnection):
            raw.answer_seconds = min(seconds, LONGEST_SECONDS)

    def check(self, connection: Handle) -> None:
        """Check that the store lives in the cluster of servers that gave its numbers of SQL transactions.

        :raises OtherCluster: it was copied into another one.
        """
        self.life_of(connection)

    def adopt(self, connection: Handle) -> None:
        """Let a store that was copied into another cluster of servers live there."""
        for statement in sql.ADOPT:
            self._run(connection, statement)
        self._lives.clear()

    def is_creation_met(self, error: Exception) -> bool:
        """Return whether a creation failed because another one was at work; repeating it finds what that one left."""
        return errors.is_creation_met(error)

    def facts(self, connection: Handle) -> ServerFacts:
        """Read what the server says about itself, from counters and settings that every role may read."""
        is_own = may_prepare(calls.raw(connection))
        return ServerFacts._make((*calls.one(connection, sql.FACTS), is_own))

    def rights(self, connection: Handle) -> Rights:
        """Read which rights of a store the role of this session has, from the catalogue, which every role may read."""
        (role,) = calls.one(connection, b"select session_user::text")
        owners = calls.rows(connection, sql.OWNER, (self._schema,))
        owner, is_owner, is_open = owners[0] if owners else (None, False, False)
        wanted = [[*column] for column in zip(*sorted(CHECKED), strict=True)]
        found = {Right(*row[:3]): row[3] for row in calls.rows(connection, sql.RIGHTS, (self._schema, *wanted))}
        held, lacking = (frozenset(one for one, has in found.items() if has is it) for it in (True, False))
        public = calls.rows(connection, sql.PUBLIC_DEFINERS, (self._schema, [*DEFINERS]))
        names = tuple(sorted(name for (name,) in public))
        return Rights(self._schema, role, owner, is_owner, held, lacking, names, is_open)

    def is_untidy(self, connection: Handle, *, removed: int, after: int) -> bool:
        """Return whether reclaiming the space of removed entries is worth its cost.

        :param removed: entries that the caller has just removed.
        :param after: the number of dead entries above which it is worth it. Entries that others have removed since the
            last time count too.
        """
        # The server counts some seconds late. If it has counted the caller's rows, the vacuum only starts earlier.
        return removed + int(self._one(connection, sql.DEAD_ENTRIES)[0]) > after

    def tidy_entries(self, connection: Handle) -> None:
        """Reclaim the space of removed entries; without the owner's rights nothing happens.

        A drain that reads past many dead rows has half the speed.
        """
        self._run(connection, sql.VACUUM_ENTRIES)


class PostgresLocks(_InSchema, LockSteps):
    """Advisory locks for readers, rows for locks of queues."""

    def try_readers(self, connection: Handle, queue: int) -> bool:
        return bool(self._one(connection, sql.TRY_READERS, (queue,))[0])

    def hold_readers(self, connection: Handle, queue: int) -> None:
        self._one(connection, sql.HOLD_READERS, (BigintArray.of([queue]),))

    @contextlib.contextmanager
    def brief_waits(self, connection: Handle, queue: str) -> Iterator[None]:
        self._run(connection, sql.WAIT_BRIEFLY)
        try:
            yield
        except Exception as error:
            if not errors.is_lock_timeout(error):
                raise
            raise QueueBusy(
                f"rows of queue {queue!r} or of its readers are in use",
                hint="try again; a drain that stands still inside of a SQL transaction holds them, or somebody who "
                "alters the queue",
            ) from error

    def lock_at_once(self, connection: Handle, call: LockCall) -> int | None:
        firsts, ends, members = ([area[i] for area in call.areas] for i in range(3))
        of_queue = (call.queue, call.layout, call.buckets_per_range)
        of_task = (call.mode, call.priority, call.task, list(call.attempts), call.lease_ms)
        (fence,) = self._one(connection, sql.LOCK_AT_ONCE, (*of_queue, firsts, ends, members, *of_task))
        return None if fence is None else int(fence)

    def release_locks(self, connection: Handle, held: Sequence[tuple[int, int]], queues: Sequence[int]) -> bool:
        fences, firsts = ([one[i] for one in held] for i in range(2))
        return bool(self._one(connection, sql.RELEASE_LOCKS, (fences, firsts, list(queues)))[0])
