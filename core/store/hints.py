"""Hints that something was committed: a commit leaves them to a thread, followers of a queue wake up by them.

A hint may always be lost, and nothing waits for it: not the commit, and not a follower, which looks now and then
all the same. Where nobody follows a queue none is sent. Sending is a SQL transaction of its own; inside of a commit
it would make all commits of a database end one after the other.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol, Self

ALL_QUEUES = 0
"""In the place of a queue's number: hints for those that follow any queue of a store. No queue has it."""
EVERY_SECONDS = 0.1
"""Least time between two hints of a process."""
DENSE_SECONDS = 0.5
"""The same where commits come so fast that followers at work meet their entries at every look."""
DENSE_RATE = 50.0
"""How many commits a second are so fast: some between two looks of a follower."""
UNFOLLOWED_SECONDS = 5.0
"""Least time between two questions whether anybody follows a queue, as long as nobody does."""
_JOIN_SECONDS = 2.0
_TRIES = 10
"""How often a free connection is looked for; behind that the followers have looked by themselves."""

log = logging.getLogger("export_queue.store")


@dataclass(frozen=True, slots=True)
class Channel:
    """The way of a queue's hints: the name by which they are sent, and two numbers by which followers are known."""

    name: str
    locks: tuple[int, int]

    @classmethod
    def of(cls, store_id: str, queue: int) -> Self:
        """Find the channel of a queue, which nothing else in the database uses."""
        digest = hashlib.blake2b(f"{store_id}/{queue}".encode(), digest_size=16).digest()
        first, second = (int.from_bytes(digest[i : i + 4], signed=True) for i in (0, 4))
        return cls(f"export_queue_{digest.hex()}", (first, second))


class Listener(Protocol):
    """Waits for the hints of one queue, and shows those who commit that somebody does."""

    def wait(self, seconds: float) -> bool:
        """Wait until a hint comes or the time is over; false if none will ever come, since the connection has ended."""

    def close(self) -> None:
        """Wait no more."""


def pause(commits: int, waited: float, *, is_followed: bool) -> float:
    """Say how many seconds to wait behind a hint.

    :param commits: how many the hint was for.
    :param waited: the pause in front of it, in which they came.
    :param is_followed: whether anybody follows.
    """
    if not is_followed:
        return UNFOLLOWED_SECONDS
    return DENSE_SECONDS if waited and commits >= DENSE_RATE * waited else EVERY_SECONDS


class Hints:
    """Sends the hints of a process, from a thread that begins with the first one.

    :param send: sends hints for channels, as far as they are followed; tells whether one was, or None where it could
        not be found out now.
    """

    def __init__(self, send: Callable[[Collection[Channel]], bool | None]) -> None:
        self._send = send
        self._guard = threading.Lock()
        self._left: set[tuple[str, int]] = set()
        """Stores and queues of which hints are to be sent."""
        self._commits = 0
        """How many were told since hints were sent."""
        self._tries = 0
        """How often no connection was free since hints were sent."""
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self, store_id: str, queues: Iterable[int]) -> None:
        """Note that entries were committed; it costs the caller microseconds, and never fails."""
        with self._guard:
            self._left.update((store_id, queue) for queue in queues)
            self._commits += 1
            if self._thread is None:
                self._stopped.clear()
                thread = threading.Thread(target=self._work, name="export-queue-hints", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the process ends, or may have no more threads
                    return
                self._thread = thread
        if not self._woken.is_set():
            self._woken.set()

    def close(self) -> None:
        """Send what is left, if it is followed, and end the thread."""
        with self._guard:
            thread, self._thread = self._thread, None
        if thread is not None:
            self.stop()
            thread.join(_JOIN_SECONDS)

    def stop(self) -> None:
        """Let the thread end, without waiting for it."""
        self._stopped.set()
        self._woken.set()

    def _work(self) -> None:
        is_followed, waited = True, 0.0
        while not self._stopped.is_set():
            self._woken.wait()
            commits, self._commits = self._commits, 0  # one that is lost in between is one of many
            is_followed = self._send_left()
            waited = pause(commits, waited, is_followed=is_followed)
            self._stopped.wait(waited)
        if is_followed:  # or not yet known: a process may commit once, and end
            self._send_left()

    def _send_left(self) -> bool:
        """Send the hints that are left; returns whether to do so soon again."""
        self._woken.clear()
        with self._guard:
            told, self._left = self._left, set()
        if not told:
            return True
        is_followed = self._sent(told)
        if is_followed is None and self._tries < _TRIES:
            self._tries += 1
            with self._guard:
                self._left |= told
            self._woken.set()
            return True
        self._tries = 0
        return is_followed is not False

    def _sent(self, told: Collection[tuple[str, int]]) -> bool | None:
        try:
            return self._send([Channel.of(store_id, queue) for store_id, queue in told])
        except Exception as error:  # of any kind: followers look all the same
            log.debug("no hint was sent: %s", error)
            return False
