"""Stores in processes that fork (gunicorn, celery, multiprocessing): a child never uses its parent's connections.

Two processes on one socket would mix up their conversations. With SQLite, a child inherits what its parent knows about
the file's locks, but not the locks, even for its own connections (https://www.sqlite.org/howtocorrupt.html, 2.6). So
before a fork the connections to files are closed, unless they are in use, and a child starts without any. SQLite's
library also has internal locks, which stay locked in a child if a thread of its parent was inside the library.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Protocol

from export_queue.core.store.sqlite import filelock

MOST_SECONDS = 10.0
"""How long a thread waits for a fork to end. The forking thread may be waiting for this one."""
LOAN_SECONDS = 1.0
"""How long a fork waits for connections to a file that other threads are using."""


class Followed(Protocol):
    """A database, as a fork sees it."""

    @property
    def is_file(self) -> bool:
        """Whether its connections hold locks of a file, which no child may inherit."""

    def borrowers(self) -> set[int]:
        """Return the threads that use connections."""

    def forget_connections(self) -> None:
        """Close the connections that nobody uses."""

    def begin_anew(self, *, was_in_use: bool) -> None:
        """Leave everything to the parent, in a child.

        :param was_in_use: whether a thread used a connection to a file at the fork.
        """


_databases: weakref.WeakSet[Followed] = weakref.WeakSet()
_of_parents: list[object] = []
"""A child keeps its parent's objects: garbage collection of a connection would reset or close it for both."""


class Gate:
    """Delays new loans of connections while a thread forks."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Open the gate in a child. A thread that no longer exists may have held the guard."""
        self.forking = 0
        self.is_unquiet = False
        self._guard = threading.Lock()
        self._opened = threading.Condition(self._guard)

    def close(self) -> None:
        """Delay loans from now on."""
        with self._guard:
            self.forking += 1

    def open(self) -> None:
        """End what :meth:`close` began."""
        with self._guard:
            self.forking -= 1
            self._opened.notify_all()

    def wait(self) -> bool:
        """Wait until all current forks are over; return False if that takes too long."""
        with self._guard:
            return self._opened.wait_for(lambda: not self.forking, timeout=MOST_SECONDS)


gate = Gate()
"""Checked after a loan was recorded, so that of a borrowing and a forking thread one sees the other."""


def follow(database: Followed) -> None:
    """Close a database's connections before forks, and forget them in children."""
    _databases.add(database)


def leave_to_parent(thing: object) -> None:
    """Keep an object of the parent process permanently, without using it."""
    _of_parents.append(thing)


def _prepare() -> None:
    gate.close()
    try:
        files = [database for database in list(_databases) if database.is_file]
        end = time.monotonic() + LOAN_SECONDS
        own = {threading.get_ident()}  # what the forking thread has borrowed stays borrowed
        while any(database.borrowers() - own for database in files) and time.monotonic() < end:
            time.sleep(0.001)
        gate.is_unquiet = any(database.borrowers() - own for database in files)
        for database in files:
            database.forget_connections()
    finally:
        filelock.hold_before_fork()  # last, since commits in progress need it to end


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
