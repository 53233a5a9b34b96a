"""Stores in processes that fork (gunicorn, celery, multiprocessing): a child never uses its parent's connections.

A socket would mix the conversations of two processes; in SQLite a child takes over what its parent knows of the file's
locks, but not the locks, also for connections of its own (https://www.sqlite.org/howtocorrupt.html, 2.6). So before a
fork the connections to files are closed, as far as they are not in use, and a child begins without any.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

from export_queue.core.store.sqlite import filelock

if TYPE_CHECKING:
    from export_queue.core.store.database import Database

LOAN_SECONDS = 1.0
"""How long a fork waits for connections to a file that other threads are using."""

_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_of_parents: list[object] = []
"""A child keeps what is its parent's: a connection that is collected would be reset or closed for both."""


class _Gate:
    """Holds back new loans of connections while a thread forks."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Be open in a child: a thread that is gone may have held the guard."""
        self.forking = 0
        self._guard = threading.Lock()
        self._opened = threading.Condition(self._guard)

    def close(self) -> None:
        with self._guard:
            self.forking += 1

    def open(self) -> None:
        with self._guard:
            self.forking -= 1
            self._opened.notify_all()

    def wait(self) -> None:
        with self._guard:
            self._opened.wait_for(lambda: not self.forking, timeout=2 * LOAN_SECONDS)


_gate = _Gate()


def follow(database: Database) -> None:
    """Let a database's connections be closed before forks, and forgotten in children."""
    _databases.add(database)


def wait_for_fork(database: Database) -> None:
    """Wait until a fork that has begun is over; called before each loan of a connection."""
    # The fork waits for a thread that has borrowed already: this one has to come to its end.
    if _gate.forking and threading.get_ident() not in database.borrowers():
        _gate.wait()


def leave_to_parent(thing: object) -> None:
    """Keep something for ever that this process has from its parent, untouched."""
    _of_parents.append(thing)


def _prepare() -> None:
    _gate.close()
    try:
        files = [database for database in list(_databases) if database.dialect.is_file]
        end = time.monotonic() + LOAN_SECONDS
        own = {threading.get_ident()}  # what the forking thread has borrowed stays borrowed
        while any(database.borrowers() - own for database in files) and time.monotonic() < end:
            time.sleep(0.001)
        for database in files:
            database.forget_connections()
    finally:
        filelock.hold_before_fork()  # the last: commits on their way need it to end


def _go_on() -> None:
    filelock.release_after_fork()
    _gate.open()


def _begin_anew() -> None:
    filelock.leave_to_parent()
    _gate.renew()
    for database in list(_databases):
        database.begin_anew()


os.register_at_fork(before=_prepare, after_in_parent=_go_on, after_in_child=_begin_anew)
