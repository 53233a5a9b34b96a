"""A connection to PostgreSQL on which no answer is waited for without end; the store and the SQL sink share it."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Generator
from functools import cached_property
from typing import Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.rows import tuple_row

Value = TypeVar("Value")

LONGEST_SECONDS = 3600.0
"""How long any answer is waited for where nobody says less; maintenance of large tables takes its time."""
LOOK_SECONDS = 0.1
"""How often a wait looks up: for signals, and at the clock."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when an answer does not come in time.

    TCP alone does not see everything: a stopped server, a hanging pooler or firewall keeps its end alive.
    The statement is not cancelled in the server: that would end the wait for a synchronous standby, too.
    """

    answer_seconds: float = LONGEST_SECONDS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _all.add(self)

    @cached_property
    def single(self) -> psycopg.Cursor[tuple[Any, ...]]:
        """The cursor for statements of one row; making one each time would cost a third of such a call."""
        return self.cursor(binary=True, row_factory=tuple_row)

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
