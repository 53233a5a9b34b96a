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
        self._file: int | None = None

    def __enter__(self) -> FileLock:
        try:
            file = self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StoreError(
                f"cannot open the write lock {self._path}: {error.strerror}",
                hint="the folder of a SQLite store must exist, be writable and have space left",
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait_in_line(file)
        except BaseException:
            self.free()
            raise
        return self

    def _wait_in_line(self, file: int) -> None:
        # A blocking flock cannot be given a time limit, so a thread waits in it. Polling would have one, but no line.
        turn = _Turn(file)
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

    def free(self) -> None:
        """Free the lock; again is harmless."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # first: an interruption between two steps leaves no lock
            file, self._file = self._file, None
            os.close(file)


class _Turn(threading.Thread):
    """Waits for the lock; if its owner has given up meanwhile, gives it back at once."""

    def __init__(self, file: int) -> None:
        super().__init__(name="export-queue-file-lock", daemon=True)
        self._file = file
        self._came = threading.Event()
        self._guard = threading.Lock()
        self._given_up = False

    def run(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        with self._guard:
            if self._given_up:
                os.close(self._file)
            else:
                self._came.set()

    def wait(self, seconds: float) -> bool:
        return self._came.wait(seconds)

    def give_up(self) -> None:
        """Leave the line; a lock that came at the last moment is freed."""
        with self._guard:
            self._given_up = True
            if self._came.is_set():
                os.close(self._file)
