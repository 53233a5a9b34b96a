"""A queue of writers before a SQLite file: an advisory lock on a file beside it."""

from __future__ import annotations

import fcntl
import os
import threading
from types import TracebackType

from export_queue.core.errors import StoreError, StoreUnavailable


class FileLock:
    """Hold an exclusive lock on a file, waiting in line for it.

    The kernel hands the lock to waiters in order, and frees it when its holder dies.

    :param path: the side file; created where it is missing.
    :param seconds: the longest wait.
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
        # A blocking flock cannot be given a time limit, so a thread waits in it. Polling would have one, but no line.
        turn = self._turn = _Turn(file)
        self._file = None  # until it has come the turn's own
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
        """Whether the lock, or a place in the line, may still be taken."""
        return self._file is not None or (self._turn is not None and not self._turn.has_given_up)

    def free(self) -> None:
        """Free the lock, and leave the line; again is harmless."""
        if self._turn is not None:
            self._turn.give_up()
        file = self._file
        if file is not None:
            file.free()
            self._file = None


class _SideFile:
    """The side file, opened once for one lock.

    The lock belongs to the open file, which a forked child shares: closing alone would leave the lock with the child.
    So a lock is freed explicitly, and a child closes its copies at once, without freeing the locks of its parent.

    :raises OSError: the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        with _opening:
            self._number: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            _open_files.add(self)

    def lock(self, *, wait: bool) -> bool:
        """Take the lock; without waiting, tell whether it came."""
        assert self._number is not None
        try:
            fcntl.flock(self._number, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def free(self) -> None:
        """Free the lock if it is held, and close the file; again is harmless."""
        with _opening:
            if self._number is not None:
                fcntl.flock(self._number, fcntl.LOCK_UN)  # first: an interruption between two steps leaves no lock
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
"""Held at a fork: no file is open in a child that the child does not know of."""
_open_files: set[_SideFile] = set()


def hold_before_fork() -> None:
    """Let no thread open or free a side file until the fork is over."""
    _opening.acquire()


def release_after_fork() -> None:
    """Let threads go on."""
    _opening.release()


def leave_to_parent() -> None:
    """Close a child's copies of what its parent has open."""
    _opening.release()
    for file in list(_open_files):
        file.leave_to_parent()


class _Turn(threading.Thread):
    """Waits for the lock; if its owner has given up meanwhile, gives it back at once."""

    def __init__(self, file: _SideFile) -> None:
        super().__init__(name="export-queue-file-lock", daemon=True)
        self._file = file
        self._came = threading.Event()
        self._guard = threading.Lock()
        self.has_given_up = False

    def start(self) -> None:
        """Begin to wait; an interruption comes out as itself."""
        try:
            super().start()
        except KeyError as error:
            if error.args != (self,):
                raise
            # Python missed the thread among those that have not begun, on its way out with the interruption.
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
        """Leave the line; a lock that came at the last moment is freed."""
        with self._guard:
            self.has_given_up = True
            if self._came.is_set():
                self._file.free()
