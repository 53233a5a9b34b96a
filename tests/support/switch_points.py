"""The points at which :mod:`tests.support.schedules` may switch, one hook for each kind, and the footprints of steps.

* SQL: where a SQL transaction begins and where a statement stands alone. In SQLite nobody sees a transaction before its
  commit, so nothing is lost by not switching inside of one. In PostgreSQL, where each statement of a transaction sees
  what was committed before it, ``every_statement`` makes points of them, too.
* Files: where one is created, gets its name, is read, listed or deleted.
* Sinks: each call, in :class:`PointSink`.

Threads that a single operation starts for itself have no part in a schedule: what they do is done at once instead, or
not at all (renewing leases, telling of progress, tidying up).

Footprints name the tables of the statements, those that triggers and functions of the database use included.
"""

from __future__ import annotations

import contextlib
import re
import select
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import waiting
from psycopg.pq import TransactionStatus
from tests.support.fenced_memory import FencedMemory
from tests.support.schedules import is_scheduled, point, touch, wait_for_others

from export_queue import ApplyResult, Claim, MemorySink, Operations
from export_queue.core.drain import pipeline
from export_queue.core.drain.progress import ProgressLog
from export_queue.core.locks import LeaseKeeper
from export_queue.core.postgresql_connection import BoundedConnection
from export_queue.core.segments import files, gathering
from export_queue.core.store.sqlite.file import StoreConnection
from export_queue.core.store.sqlite.filelock import FileLock

_NAME = re.compile(r"\bxq_\w+", re.IGNORECASE)
_WRITTEN = re.compile(
    r"\b(?:insert(?: or \w+)?\s+into|update|delete\s+from)\s+(?:\"\w+\"\.|\w+\.)?\"?(xq_\w+)", re.IGNORECASE
)
_IDS_DRAWN = re.compile(r"\bnextval\b")
_LOCKS_TAKEN = re.compile(r"\bpg_(?:try_)?advisory_(?!xact)\w+")
"""Locks of a SQL transaction are none that another operation could see at a point."""
_LOCKS_SEEN = re.compile(r"\bpg_locks\b")
FILES, SINK = frozenset({"files"}), frozenset({"sink"})


class Footprints:
    """What the statements of a store read and write, by their text.

    :param bodies: the text of each function and view, by its name.
    :param triggers: what the triggers of each table do, by its name.
    """

    def __init__(self, bodies: Mapping[str, str], triggers: Mapping[str, str]) -> None:
        self._bodies, self._triggers = bodies, triggers
        self._found: dict[str, tuple[frozenset[str], frozenset[str]]] = {}

    def of(self, statement: str) -> tuple[frozenset[str], frozenset[str]]:
        """Return the names that a statement reads, and those that it writes."""
        found = self._found.get(statement)
        if found is None:
            found = self._found[statement] = self._find(statement)
        return found

    def _find(self, statement: str) -> tuple[frozenset[str], frozenset[str]]:
        reads: set[str] = set()
        writes: set[str] = set()
        texts = [statement]
        while texts:
            text = texts.pop()
            named = {name.lower() for name in _NAME.findall(text)} - reads
            written = {name.lower() for name in _WRITTEN.findall(text)} - writes
            reads |= named | ({"locks"} if _LOCKS_SEEN.search(text) else set())
            writes |= written | ({"ids"} if _IDS_DRAWN.search(text) else set())
            writes |= {"locks"} if _LOCKS_TAKEN.search(text) else set()
            texts += [self._bodies[name] for name in named if name in self._bodies]
            texts += [self._triggers[name] for name in written if name in self._triggers]
        if "xq_id" in reads:  # the sequence, whose last value a snapshot reads
            reads.add("ids")
        return frozenset(reads), frozenset(writes)


_in_use = threading.local()


class Points:
    """The hooks, while a block lasts.

    :param footprints: of the store's statements.
    :param every_statement: whether statements inside of a SQL transaction are points, too.
    :param is_blocked: tells whether a session of PostgreSQL waits for a lock, by its process number.
    """

    def __init__(
        self,
        footprints: Footprints,
        *,
        every_statement: bool = False,
        is_blocked: Callable[[int], bool] = lambda pid: False,
    ) -> None:
        self._footprints = footprints
        self._every_statement = every_statement
        self._is_blocked = is_blocked

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        """Place the hooks."""
        with pytest.MonkeyPatch.context() as patch:
            self._place_on_sqlite(patch)
            self._place_on_postgresql(patch)
            _place_on_files(patch)
            _join_threads(patch)
            yield

    def _statement(self, text: str, *, stands_alone: bool) -> None:
        if stands_alone or self._every_statement:
            point(" ".join(text.split())[:110])
        reads, writes = self._footprints.of(text)
        touch(reads=reads, writes=writes)

    def _place_on_sqlite(self, patch: pytest.MonkeyPatch) -> None:
        told = self._statement

        class PointCursor(sqlite3.Cursor):
            def _tell(self, text: str) -> None:
                words = text.lstrip()[:16].lower()
                if is_scheduled() and not words.startswith(("pragma", "begin immediate", "commit", "rollback")):
                    told(text, stands_alone=not self.connection.in_transaction)

            def execute(self, sql: str, parameters: Any = ()) -> Any:
                self._tell(sql)
                return super().execute(sql, parameters)

            def executemany(self, sql: str, parameters: Any) -> Any:
                self._tell(sql)
                return super().executemany(sql, parameters)

        enter = FileLock.__enter__

        def queue_up(lock: FileLock) -> FileLock:
            point("begin immediate")
            return enter(lock)

        def wait_in_line(lock: FileLock, file: Any) -> None:
            if not is_scheduled():
                wait(lock, file)
                return
            while not file.lock(wait=False):
                wait_for_others()

        wait = FileLock._wait_in_line

        def cursor(connection: StoreConnection, factory: type[sqlite3.Cursor] = PointCursor) -> sqlite3.Cursor:
            return sqlite3.Connection.cursor(connection, factory)

        # The methods of a connection call no cursor's.
        def execute(connection: StoreConnection, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
            found: sqlite3.Cursor = connection.cursor().execute(sql, parameters)
            return found

        def executemany(connection: StoreConnection, sql: str, parameters: Any) -> sqlite3.Cursor:
            found: sqlite3.Cursor = connection.cursor().executemany(sql, parameters)
            return found

        for method in (cursor, execute, executemany):
            patch.setattr(StoreConnection, method.__name__, method, raising=False)
        patch.setattr(FileLock, "__enter__", queue_up)
        patch.setattr(FileLock, "_wait_in_line", wait_in_line)

    def _place_on_postgresql(self, patch: pytest.MonkeyPatch) -> None:
        execute, executemany = psycopg.Cursor.execute, psycopg.Cursor.executemany
        wait, call, is_readable = BoundedConnection.wait, BoundedConnection.call, BoundedConnection._is_readable

        def noted_execute(cursor: Any, query: Any, *arguments: Any, **options: Any) -> Any:
            with _noted(query):
                return execute(cursor, query, *arguments, **options)

        def noted_executemany(cursor: Any, query: Any, *arguments: Any, **options: Any) -> Any:
            with _noted(query):
                return executemany(cursor, query, *arguments, **options)

        def told_wait(connection: BoundedConnection, answer: Any, *arguments: Any, **options: Any) -> Any:
            if not is_scheduled():
                return wait(connection, answer, *arguments, **options)
            text, _in_use.statement = getattr(_in_use, "statement", None), None
            is_begin = answer.gi_code is psycopg.Transaction._enter_gen.__code__
            if text is not None or is_begin:
                is_alone = connection.pgconn.transaction_status == TransactionStatus.IDLE
                self._statement(text or "begin", stands_alone=is_alone)
            return waiting.wait(self._watched(connection, answer), connection.pgconn.socket, interval=0.02)

        def told_call(connection: BoundedConnection, statement: Any, values: Any) -> Any:
            if is_scheduled():
                self._statement(statement.text.decode(), stands_alone=True)
            return call(connection, statement, values)

        def watched_is_readable(connection: BoundedConnection, end: float, events: int) -> bool:
            while is_scheduled() and not connection._look(events, 0.02):
                if self._is_blocked(connection.info.backend_pid):
                    wait_for_others()
            return is_readable(connection, end, events)

        patch.setattr(psycopg.Cursor, "execute", noted_execute)
        patch.setattr(psycopg.Cursor, "executemany", noted_executemany)
        patch.setattr(BoundedConnection, "wait", told_wait)
        patch.setattr(BoundedConnection, "call", told_call)
        patch.setattr(BoundedConnection, "_is_readable", watched_is_readable)

    def _watched(self, connection: BoundedConnection, answer: Any) -> Any:
        """Let other operations continue while a statement waits for a lock that they hold."""
        try:
            awaited = next(answer)
            while True:
                ready = yield awaited
                if not ready and self._is_blocked(connection.info.backend_pid):
                    while not connection._look(select.POLLIN, 0):
                        wait_for_others()
                awaited = answer.send(ready)
        except StopIteration as ended:
            return ended.value


@contextlib.contextmanager
def _noted(query: Any) -> Iterator[None]:
    """Keep the text of a statement for the wait for its answer."""
    _in_use.statement = query.decode() if isinstance(query, bytes) else str(query)
    try:
        yield
    finally:
        _in_use.statement = None


def _place_on_files(patch: pytest.MonkeyPatch) -> None:
    filesystem, local_stream, publish = files._filesystem, files._local_stream, files._publish
    delete = files.delete_file

    def deleted(url: str) -> None:
        delete(url)
        touch(writes=FILES)

    def found(url: str) -> Any:
        point(f"file {Path(url).name}")
        touch(reads=FILES)
        return filesystem(url)

    def created(url: str) -> Any:
        point(f"create {Path(url).name}")
        touch(writes=FILES)
        return local_stream(url)

    def published(path: Path) -> None:
        point(f"name {path.name}")
        touch(writes=FILES)
        publish(path)

    patch.setattr(files, "_filesystem", found)
    patch.setattr(files, "_local_stream", created)
    patch.setattr(files, "_publish", published)
    for name, module in list(sys.modules.items()):  # who imports a function has a name of its own for it
        if name.startswith("export_queue.core.segments.") and getattr(module, "delete_file", None) is delete:
            patch.setattr(module, "delete_file", deleted)


class AtOnce:
    """An executor that runs what it is given at once, in the thread that gives it."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> AtOnce:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        """Run a function, and keep its result or its error."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except BaseException as error:
            future.set_exception(error)
        return future

    def map(self, function: Callable[..., Any], *many: Any) -> Iterator[Any]:
        """Run a function for each."""
        return map(function, *many)

    def shutdown(self, **_: Any) -> None:
        """Nothing is left to do."""


def _join_threads(patch: pytest.MonkeyPatch) -> None:
    for room in (pipeline, gathering):
        patch.setattr(room, "ThreadPoolExecutor", AtOnce)
    patch.setattr(LeaseKeeper, "_keep_until_stopped", lambda keeper: None)
    patch.setattr(ProgressLog, "_log_until_stopped", lambda progress: None)


class PointSink(MemorySink):
    """A sink with ranks, each call of which is a point."""

    def admit(self, **given: Any) -> None:
        """Take whoever is not stale."""
        point("the sink admits")
        touch(writes=SINK)
        super().admit(**given)

    def apply(self, operations: Operations) -> ApplyResult:
        """Apply a batch."""
        point(f"the sink takes {len(operations)}")
        touch(writes=SINK)
        return super().apply(operations)

    def held(self) -> dict[str, bytes]:
        """Return the documents by the ids of their records."""
        return {record.decode(): document for (_, record), document in self.records().items()}

    def copy(self) -> PointSink:
        """Return a sink with the same contents."""
        other, mine = PointSink(), self._contents
        theirs = other._contents
        theirs.ranks, theirs.documents, theirs.ttls = dict(mine.ranks), dict(mine.documents), dict(mine.ttls)
        theirs.control, theirs.floor = dict(mine.control), mine.floor
        return other


class FencedPointSink(FencedMemory):
    """A sink with fences and without ranks, each call of which is a point."""

    def __init__(self) -> None:
        super().__init__(before=self._take, on_claim=self._claim)

    def _take(self, operations: Operations) -> None:
        point(f"the sink takes {len(operations)}")
        touch(writes=SINK)

    def _claim(self, claims: Sequence[Claim]) -> None:
        point("the sink admits")
        touch(writes=SINK)

    def held(self) -> dict[str, bytes]:
        """Return the documents by the ids of their records."""
        return self.records()

    def copy(self) -> FencedPointSink:
        """Return a sink with the same contents."""
        other = FencedPointSink()
        other.documents, other.fences = dict(self.documents), dict(self.fences)
        return other
