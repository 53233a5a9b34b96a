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
from typing import TYPE_CHECKING

from export_queue.core.store.sqlite import filelock

if TYPE_CHECKING:
    from export_queue.core.store.database import Database

MOST_SECONDS = 10.0
"""How long a thread waits for a fork to be over; the forking thread may itself wait for this one."""
LOAN_SECONDS = 1.0
"""How long a fork waits for connections to a file that other threads are using."""

_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_of_parents: list[object] = []
"""A child keeps what is its parent's: a connection that is collected would be reset or closed for both."""


class Gate:
    """Holds back new loans of connections while a thread forks."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Be open in a child: a thread that is gone may have held the guard."""
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
        """Wait until forks that have begun are over; False if that takes too long."""
        with self._guard:
            return self._opened.wait_for(lambda: not self.forking, timeout=MOST_SECONDS)


gate = Gate()
"""Looked at after a loan was noted, so that one of the two threads, that borrows or forks, sees the other."""


def follow(database: Database) -> None:
    """Let a database's connections be closed before forks, and forgotten in children."""
    _databases.add(database)


def leave_to_parent(thing: object) -> None:
    """Keep something for ever that this process has from its parent, untouched."""
    _of_parents.append(thing)


def _prepare() -> None:
    gate.close()
    try:
        files = [database for database in list(_databases) if database.dialect.is_file]
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
