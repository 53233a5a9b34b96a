"""Stores in processes that fork (gunicorn, celery, multiprocessing): a child never uses its parent's connections.

A socket would mix the conversations of two processes; in SQLite a child takes over what its parent knows of the file's
locks, but not the locks, also for connections of its own (https://www.sqlite.org/howtocorrupt.html, 2.6). So before a
fork the connections to files are closed, as far as they are not in use, and a child begins without any. The library of
SQLite has locks of its own besides, which stay locked in a child if a thread of its parent was inside of it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Protocol

from export_queue.core.store.seams import Dialect
from export_queue.core.store.sqlite import filelock

MOST_SECONDS = 10.0
"""How long a thread waits for a fork to end; the forking thread may itself wait for this one."""
LOAN_SECONDS = 1.0
"""How long a fork waits for connections to a file that other threads are using."""


class Forked(Protocol):
    """The connections of a process to a database."""

    @property
    def dialect(self) -> Dialect:
        """The seams of its kind of database."""

    def borrowers(self) -> set[int]:
        """Return the threads that use a connection at this moment."""

    def forget_connections(self) -> None:
        """Close all connections that are not in use at this moment."""

    def begin_anew(self, *, was_in_use: bool) -> None:
        """Use none of the parent's connections, in a child.

        :param was_in_use: whether a thread of the parent may have been inside a file's library.
        """


_databases: weakref.WeakSet[Forked] = weakref.WeakSet()
_of_parents: list[object] = []
"""A child keeps what is its parent's: a connection that is collected would be reset or closed for both."""


class Gate:
    """Delays new loans of connections while a thread forks."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Be open in a child: a thread that no longer exists may have held the guard."""
        self.forking = 0
        self.is_unquiet = False
        self._guard = threading.Lock()
        self._opened = threading.Condition(self._guard)

    def close(self) -> None:
        """Begin to fork."""
        with self._guard:
            self.forking += 1

    def open(self) -> None:
        """Have forked."""
        with self._guard:
            self.forking -= 1
            self._opened.notify_all()

    def wait(self) -> bool:
        """Wait until all forks that have begun are over; return False if that takes too long."""
        with self._guard:
            return self._opened.wait_for(lambda: not self.forking, timeout=MOST_SECONDS)


gate = Gate()
"""Checked after a loan was recorded, so that one of the two threads, which borrows or forks, sees the other."""


def follow(database: Forked) -> None:
    """Let a database's connections be closed before forks, and forgotten in children."""
    _databases.add(database)


def leave_to_parent(thing: object) -> None:
    """Keep something that this process has from its parent permanently, untouched."""
    _of_parents.append(thing)


def _prepare() -> None:
    gate.close()
    try:
        files = [database for database in list(_databases) if database.dialect.file is not None]
        end = time.monotonic() + LOAN_SECONDS
        own = {threading.get_ident()}  # what the forking thread has borrowed stays borrowed
        while any(database.borrowers() - own for database in files) and time.monotonic() < end:
            time.sleep(0.001)
        gate.is_unquiet = any(database.borrowers() - own for database in files)
        for database in files:
            database.forget_connections()
    finally:
        filelock.hold_before_fork()  # the last: commits on their way need it to end


def _go_on() -> None:
    filelock.release_after_fork()
    gate.open()


def _begin_anew() -> None:
    filelock.leave_to_parent()
    was_in_use = gate.is_unquiet
    gate.renew()
    for database in list(_databases):
        database.begin_anew(was_in_use=was_in_use)


os.register_at_fork(before=_prepare, after_in_parent=_go_on, after_in_child=_begin_anew)
