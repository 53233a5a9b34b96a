"""Locks of queues and their readers in PostgreSQL; the functions stand in ``sql/``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from export_queue.core.errors import QueueBusy
from export_queue.core.postgresql_arrays import BigintArray
from export_queue.core.store.postgresql import calls as calls
from export_queue.core.store.postgresql import errors as errors
from export_queue.core.store.postgresql import statements as sql
from export_queue.core.store.seams import Handle, LockCall, LockSteps


class PostgresLocks(LockSteps):
    """Advisory locks for readers, rows for locks of queues."""

    def __init__(self, schema: str) -> None:
        self._schema = schema

    def try_readers(self, connection: Handle, queue: int) -> bool:
        return bool(calls.one(connection, sql.in_schema(self._schema, sql.TRY_READERS), (queue,))[0])

    def hold_readers(self, connection: Handle, queue: int) -> None:
        calls.one(connection, sql.in_schema(self._schema, sql.HOLD_READERS), (BigintArray.of([queue]),))

    @contextlib.contextmanager
    def brief_waits(self, connection: Handle, queue: str) -> Iterator[None]:
        calls.run(connection, sql.in_schema(self._schema, sql.WAIT_BRIEFLY))
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
        (fence,) = calls.one(
            connection, sql.in_schema(self._schema, sql.LOCK_AT_ONCE), (*of_queue, firsts, ends, members, *of_task)
        )
        return None if fence is None else int(fence)

    def release_locks(self, connection: Handle, places: Sequence[tuple[int, int]], queues: Sequence[int]) -> bool:
        fences, firsts = ([place[i] for place in places] for i in range(2))
        return bool(
            calls.one(connection, sql.in_schema(self._schema, sql.RELEASE_LOCKS), (fences, firsts, list(queues)))[0]
        )
