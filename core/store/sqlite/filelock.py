"""A queue of writers of a SQLite file: an advisory lock on a file next to it."""

from __future__ import annotations

import fcntl
import os
import threading
from types import TracebackType

from export_queue.core.errors import StoreError, StoreUnavailable


class FileLock:
    """Hold an exclusive lock on a file. The kernel serves waiters in order, and frees the lock when its holder dies.

    :param path: the side file, which is created if it is missing.
    :param seconds: the maximum wait.
    """

    def __init__(self, path: str, *, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._file: _SideFile | None = None
        self._turn: _Turn | None = None

    def __enter__(self) -> FileLock:
        try:
            file = self._file = _SideFile(self._path)
        except OSError as error:
            raise StoreError(
                f"cannot open the write lock {self._path}: {error.strerror}",
                hint="the folder of a SQLite store must exist, be writable and have space left",
            ) from error
        try:
            came = file.lock(wait=False)
        except BaseException:
            self.free()
            raise
        if not came:
            self._wait_in_line(file)
        return self

    def _wait_in_line(self, file: _SideFile) -> None:
        # A blocking flock has no time limit, so a thread waits in it. Polling would have one, but no order.
        turn = self._turn = _Turn(file)
        self._file = None  # the turn owns it until the lock is acquired
        try:
            turn.start()
            came = turn.wait(self._seconds)
            if came:
                self._file = file
        except BaseException:
            self._file = None
            turn.give_up()
            raise
        if not came:
            turn.give_up()
            busy = StoreUnavailable(
                f"another process has held the write lock {self._path} for more than {self._seconds:.0f} s",
                hint="look for a stopped process that has the store open",
            )
            busy.sent = False
            raise busy

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()

    @property
    def is_held(self) -> bool:
        """Whether the lock may be held, or a thread may be waiting for it."""
        return self._file is not None or (self._turn is not None and not self._turn.has_given_up)

    def free(self) -> None:
        """Free the lock or stop waiting for it; idempotent."""
        if self._turn is not None:
            self._turn.give_up()
        file = self._file
        if file is not None:
            file.free()
            self._file = None


class _SideFile:
    """The side file, opened once for one lock.

    The lock belongs to the open file, which a forked child shares, so closing alone would leave the lock with the
    child. A lock is freed explicitly, and a child closes its copies at once, without freeing its parent's locks.
    """

    def __init__(self, path: str) -> None:
        with _opening:
            self._number: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            _open_files.add(self)

    def lock(self, *, wait: bool) -> bool:
        """Take the lock; return False if it is not free, without waiting."""
        assert self._number is not None
        try:
            fcntl.flock(self._number, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def free(self) -> None:
        """Free the lock if it is held, and close the file; idempotent."""
        with _opening:
            if self._number is not None:
                fcntl.flock(self._number, fcntl.LOCK_UN)  # first: an interruption afterwards leaves no lock
                self._close()

    def leave_to_parent(self) -> None:
        """Close a child's copy."""
        self._close()

    def _close(self) -> None:
        number, self._number = self._number, None
        _open_files.discard(self)
        if number is not None:
            os.close(number)


_opening = threading.RLock()
"""Held during a fork, so that a child knows all open files."""
_open_files: set[_SideFile] = set()


def hold_before_fork() -> None:
    """Keep threads from opening or freeing side files until the fork is over."""
    _opening.acquire()


def release_after_fork() -> None:
    """Let threads continue."""
    _opening.release()


def leave_to_parent() -> None:
    """Close a child's copies of what its parent has open."""
    _opening.release()
    for file in list(_open_files):
        file.leave_to_parent()


class _Turn(threading.Thread):
    """Waits for the lock, and frees it at once if its owner has given up meanwhile."""

    def __init__(self, file: _SideFile) -> None:
        super().__init__(name="export-queue-file-lock", daemon=True)
        self._file = file
        self._came = threading.Event()
        self._guard = threading.Lock()
        self.has_given_up = False

    def start(self) -> None:
        """Start to wait. An interruption is raised as itself."""
        try:
            super().start()
        except KeyError as error:
            if error.args != (self,):
                raise
            # While raising the interruption, Python did not find the thread among those that have not begun.
            raise error.__context__ or error from None

    def run(self) -> None:
        self._file.lock(wait=True)
        with self._guard:
            if self.has_given_up:
                self._file.free()
            else:
                self._came.set()

    def wait(self, seconds: float) -> bool:
        return self._came.wait(seconds)

    def give_up(self) -> None:
        """Stop waiting, and free a lock that came at the last moment."""
        with self._guard:
            self.has_given_up = True
            if self._came.is_set():
                self._file.free()
