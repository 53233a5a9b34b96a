"""A connection to PostgreSQL on which no answer is waited for without end; the store and the SQL sink share it."""

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
"""How long any answer is waited for where nobody says less; maintenance of large tables takes its time."""
LOOK_SECONDS = 0.1
"""How often a wait looks up: for signals, and at the clock."""
_BINARY = [1] * 64


@dataclass(frozen=True, slots=True)
class Prepared:
    """A statement that a connection prepares once."""

    name: bytes
    """Made from the text: a pooler's session may have statements of another store's clients."""
    text: bytes
    """With the server's own placeholders, whose types it finds itself: ``$1``, ``$2``."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when an answer does not come in time.

    TCP alone does not see everything: a stopped server, a hanging pooler or firewall keeps its end alive.
    The statement is not cancelled in the server: that would end the wait for a synchronous standby, too.
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
        """The cursor for statements of one row; making one each time would cost a third of such a call."""
        return self.cursor(binary=True, row_factory=tuple_row)

    def call(self, statement: Prepared, values: Sequence[bytes | None]) -> PGresult:
        """Run a statement with arguments that are packed already: a cursor looks at each of them anew.

        To be called outside of a SQL transaction: the driver, too, may forget what is prepared, and one statement that
        is not known would end the transaction.

        :param values: the arguments in binary form.
        :returns: its result, in binary form, once the server has ended the statement's SQL transaction.
        :raises psycopg.Error: as a cursor raises it; an interruption closes the connection, as in :meth:`wait`.
        """
        server = self.pgconn
        try:
            end = time.monotonic() + self.answer_seconds
            try:
                return self._run_prepared(statement, values, end)
            except psycopg.errors.InvalidSqlStatementName:  # the driver has run DEALLOCATE ALL
                # Only this name is known to be gone: others may have been prepared since then.
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
                # All are looked at: a SQL transaction may fail in its end, behind the answer of its statement.
                if answer is None or answer.status != ExecStatus.FATAL_ERROR:
                    answer = result
        except psycopg.Error:
            if answer is None or answer.status != ExecStatus.FATAL_ERROR:
                raise  # else the server has said why it has gone
        if answer is None:
            raise psycopg.OperationalError("the connection has ended without an answer")
        if answer.status == ExecStatus.FATAL_ERROR:
            encoding = self.info.encoding
            if answer.error_field(psycopg.pq.DiagnosticField.SQLSTATE) is None:
                # The words of the driver, not of the server: the connection is broken.
                raise psycopg.OperationalError(answer.error_message.decode(encoding, "replace").strip())
            raise psycopg.errors.error_from_result(answer, encoding=encoding)
        return answer

    def has_input(self, seconds: float = 0) -> bool:
        """Tell whether the server has sent something: to an idle session that does not listen, nothing but its end.

        :param seconds: how long it is waited for.
        """
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
        """Wait for the answer to what was sent.

        An interruption (Ctrl-C, a signal's handler that raises) closes the connection: the answer is lost. The
        driver's own way would cancel the statement, and with it a commit's wait for its standby.

        :raises psycopg.OperationalError: it did not come in time; the connection is closed.
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
    # A copy of a socket would keep the session of a parent that dies, and with it what it has locked, for as long as
    # the child lives. The numbers stay taken: whatever still holds such a connection writes nowhere.
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for connection in list(_all):
        with contextlib.suppress(psycopg.Error, OSError):
            os.dup2(nowhere, connection.pgconn.socket, inheritable=False)
    os.close(nowhere)


os.register_at_fork(after_in_child=_leave_sockets_to_parent)
