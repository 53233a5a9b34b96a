"""A connection to PostgreSQL with a limit on every wait; the store and the SQL sink use it."""

from __future__ import annotations

import contextlib
import os
import select
import time
import weakref
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus
from psycopg.rows import tuple_row

from export_queue.core.postgresql_arrays import PLAIN

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

Value = TypeVar("Value")

LONGEST_SECONDS = 3600.0
"""Default limit for an answer, long enough for maintenance of large tables."""
LOOK_SECONDS = 0.1
"""Interval at which a wait checks for signals and reads the clock."""
_BINARY = [1] * 64


@dataclass(frozen=True, slots=True)
class Prepared:
    """A statement that a connection prepares once."""

    name: bytes
    """Derived from the text, because a session of a pooler may have statements of other stores' clients."""
    text: bytes
    """Uses the server's placeholders ``$1``, ``$2``, whose types the server infers."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed if an answer does not arrive in time.

    TCP does not detect every failure: a stopped server or a hanging pooler or firewall keeps its end open. The
    statement is not cancelled on the server, because that would also end a commit's wait for a synchronous standby.
    """

    answer_seconds: float = LONGEST_SECONDS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._prepared_names: set[bytes] = set()
        _all.add(self)

    @classmethod
    def open(cls, *arguments: Any, **options: Any) -> Self:
        """Connect, as :meth:`connect` does, with the plain adapters."""
        return cls.connect(*arguments, **{**options, "context": PLAIN})

    @cached_property
    def single(self) -> psycopg.Cursor[tuple[Any, ...]]:
        """The cursor for statements of one row. A new one each time would cost a third of such a call."""
        return self.cursor(binary=True, row_factory=tuple_row)

    def call(self, statement: Prepared, values: Sequence[bytes | None]) -> PGresult:
        """Run a prepared statement with encoded arguments, which is faster than a cursor.

        Call this only outside of a SQL transaction: the driver may have deallocated the statement, and an unknown
        statement would abort the transaction.

        :param values: the arguments in binary form.
        :returns: the result in binary form, after the server has ended the statement's SQL transaction.
        :raises psycopg.Error: as a cursor raises it. An interruption closes the connection, as in :meth:`wait`.
        """
        server = self.pgconn
        try:
            end = time.monotonic() + self.answer_seconds
            try:
                return self._run_prepared(statement, values, end)
            except psycopg.errors.InvalidSqlStatementName:  # the driver has run DEALLOCATE ALL
                # Only this statement is certainly gone; others may have been prepared since.
                self._prepared_names.discard(statement.name)
                return self._run_prepared(statement, values, end)
        except psycopg.Error:
            raise
        except BaseException:
            server.finish()
            raise

    def _run_prepared(self, statement: Prepared, values: Sequence[bytes | None], end: float) -> PGresult:
        server = self.pgconn
        if statement.name not in self._prepared_names:
            server.send_prepare(statement.name, statement.text)
            with contextlib.suppress(psycopg.errors.DuplicatePreparedStatement):  # it is the same text
                self._answer(end)
            self._prepared_names.add(statement.name)
        server.send_query_prepared(statement.name, list(values), _BINARY[: len(values)], 1)
        return self._answer(end)

    def _answer(self, end: float) -> PGresult:
        server = self.pgconn
        while server.flush():
            if self._is_readable(end, select.POLLIN | select.POLLOUT):
                server.consume_input()
        answer: PGresult | None = None
        try:
            while True:
                while server.is_busy():
                    self._is_readable(end, select.POLLIN)
                    server.consume_input()
                result = server.get_result()
                if result is None:
                    break
                # Read all results: a SQL transaction may fail at its end, after the result of its statement.
                if answer is None or answer.status != ExecStatus.FATAL_ERROR:
                    answer = result
        except psycopg.Error:
            if answer is None or answer.status != ExecStatus.FATAL_ERROR:
                raise  # otherwise the server has said why it closed the connection
        if answer is None:
            raise psycopg.OperationalError("the connection has ended without an answer")
        if answer.status == ExecStatus.FATAL_ERROR:
            encoding = self.info.encoding
            if answer.error_field(psycopg.pq.DiagnosticField.SQLSTATE) is None:
                # The message is the driver's, not the server's: the connection is broken.
                raise psycopg.OperationalError(answer.error_message.decode(encoding, "replace").strip())
            raise psycopg.errors.error_from_result(answer, encoding=encoding)
        return answer

    def has_input(self, seconds: float = 0) -> bool:
        """Wait some seconds for input, and return whether there is any. An idle session gets only its end."""
        return bool(self._look(select.POLLIN, seconds))

    def _look(self, events: int, seconds: float) -> list[tuple[int, int]]:
        self._poll.modify(self.pgconn.socket, events)
        return self._poll.poll(seconds * 1000)

    def _is_readable(self, end: float, events: int) -> bool:
        while not (ready := self._look(events, LOOK_SECONDS)):
            if time.monotonic() > end:
                self.pgconn.finish()
                raise psycopg.OperationalError(f"the server has not answered for {self.answer_seconds:g} s")
        return bool(ready[0][1] & ~select.POLLOUT)

    @cached_property
    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self.pgconn.socket)
        return poll

    def wait(self, gen: PQGen[Value], interval: float = LOOK_SECONDS, timeout: float | None = None) -> Value:
        """Wait for an answer.

        An interruption (Ctrl-C, or a signal handler that raises) closes the connection, and the answer is lost. The
        driver itself would cancel the statement, and with it a commit's wait for its standby.

        :raises psycopg.OperationalError: the answer did not arrive in time; the connection is closed.
        """
        try:
            return waiting.wait(self._in_time(gen), self.pgconn.socket, interval=interval, timeout=timeout)
        except psycopg.Error:
            raise
        except BaseException:
            self.pgconn.finish()
            raise

    def _in_time(self, answer: PQGen[Value]) -> Generator[Any, Any, Value]:
        seconds = self.answer_seconds
        end = time.monotonic() + seconds
        try:
            awaited = next(answer)
            while True:
                ready = yield awaited
                if not ready and time.monotonic() > end:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server has not answered for {seconds:g} s")
                awaited = answer.send(ready)
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]


_all: weakref.WeakSet[BoundedConnection] = weakref.WeakSet()


def _leave_sockets_to_parent() -> None:
    # If the parent dies, a copy of its socket in the child would keep its session and its locks. The file descriptors
    # stay in use, so that whatever still holds such a connection writes to nowhere.
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for connection in list(_all):
        with contextlib.suppress(psycopg.Error, OSError):
            os.dup2(nowhere, connection.pgconn.socket, inheritable=False)
    os.close(nowhere)


os.register_at_fork(after_in_child=_leave_sockets_to_parent)
