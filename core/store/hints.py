"""Hints that something was committed, which wake up the followers of a queue. A thread sends them.

A hint may be lost, and nothing depends on it: neither the commit nor a follower, which polls anyway. If nobody follows
a queue, no hint is sent. Each is sent in its own SQL transaction: inside commits, it would serialise the commits of a
database.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterable

from export_queue.core.store import forks
from export_queue.core.store.dialect import Dialect
from export_queue.core.store.pool import Pool
from export_queue.core.store.seams import Channel, Listener, WakeUps

ALL_QUEUES = 0
"""Instead of a queue's number: hints for those that follow any queue of a store. No queue has this number."""
EVERY_SECONDS = 0.1
"""Minimum time between two hints of a process."""
DENSE_SECONDS = 0.5
"""The same if commits are so frequent that every poll of a follower finds entries."""
DENSE_RATE = 50.0
"""Commits per second that are so frequent: several between two polls of a follower."""
UNFOLLOWED_SECONDS = 5.0
"""Minimum time between two checks whether anybody follows a queue, as long as nobody does."""
_JOIN_SECONDS = 2.0
_TRIES = 10
"""Maximum number of searches for a free connection; after that the followers have polled."""
_ANSWER_SECONDS = 5.0
"""Maximum wait for an answer to hints."""

log = logging.getLogger("export_queue.store")


def acknowledgements_of(queue: int) -> int:
    """Return the number whose hints say that a reader's sink has acknowledged entries, given the reader's number.

    Followers of commits do not listen for these: they would wake themselves.
    """
    return -queue


def pause(commits: int, waited: float, *, is_followed: bool) -> float:
    """Return how many seconds to wait after a hint for some commits, which were made while the last pause lasted."""
    if not is_followed:
        return UNFOLLOWED_SECONDS
    return DENSE_SECONDS if waited and commits >= DENSE_RATE * waited else EVERY_SECONDS


class Hints:
    """Sends the hints of a process, from a thread that starts with the first one.

    :param send: sends hints to those channels that are followed, and returns whether any is; None if it could not find
        out.
    """

    def __init__(self, send: Callable[[Collection[Channel]], bool | None]) -> None:
        self._send = send
        self._guard = threading.Lock()
        self._left: set[tuple[str, int]] = set()
        """Stores and queues with pending hints."""
        self._commits = 0
        """Number of commits since hints were last sent."""
        self._tries = 0
        """How often no connection was free since then."""
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self, store_id: str, queues: Iterable[int]) -> None:
        """Record that entries were committed. It takes microseconds and never fails."""
        with self._guard:
            self._left.update((store_id, queue) for queue in queues)
            self._commits += 1
            if self._thread is None:
                self._stopped.clear()
                thread = threading.Thread(target=self._work, name="export-queue-hints", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the process is ending, or has too many threads
                    return
                self._thread = thread
        if not self._woken.is_set():
            self._woken.set()

    def close(self) -> None:
        """Send pending hints, if they are followed, and end the thread."""
        with self._guard:
            thread, self._thread = self._thread, None
        if thread is not None:
            self.stop()
            thread.join(_JOIN_SECONDS)

    def stop(self) -> None:
        """Stop the thread without waiting for it."""
        self._stopped.set()
        self._woken.set()

    def _work(self) -> None:
        is_followed, waited = True, 0.0
        while not self._stopped.is_set():
            self._woken.wait()
            commits, self._commits = self._commits, 0  # losing one between these two steps does not matter
            is_followed = self._send_left()
            waited = pause(commits, waited, is_followed=is_followed)
            self._stopped.wait(waited)
        if is_followed:  # or that is not known yet: a process may commit once and end
            self._send_left()

    def _send_left(self) -> bool:
        """Send pending hints; return whether to send the next ones soon."""
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
        except Exception as error:  # followers poll anyway
            log.debug("no hint was sent: %s", error)
            return False


class HintTraffic:
    """Sends and receives the hints of a process, by connections of its pool."""

    def __init__(self, pool: Pool, dialect: Dialect) -> None:
        self._pool = pool
        self._dialect = dialect
        self._begin()

    def _begin(self) -> None:
        method = weakref.WeakMethod(self._send)  # the waiting thread must not keep the connections alive

        def send(channels: Collection[Channel]) -> bool | None:
            send_now = method()
            return False if send_now is None else send_now(channels)

        self._hints = Hints(send)
        self._abandoned = weakref.finalize(self, self._hints.stop)
        self._abandoned.atexit = False

    def tell(self, store_id: str, queues: Collection[int]) -> None:
        """Record that entries were committed to queues, given by their numbers, or to :data:`ALL_QUEUES`."""
        if self._wake_ups is not None:
            self._hints.tell(store_id, queues)

    @property
    def _wake_ups(self) -> WakeUps | None:
        found = self._dialect.wake_ups
        return None if found is None or not found.is_supported else found

    def _send(self, channels: Collection[Channel]) -> bool | None:
        """Send hints by an unused connection; return None if there is none.

        No commit ever waits for this connection: it opens another one.
        """
        wake_ups, server = self._wake_ups, self._dialect.server
        if wake_ups is None or server is None or self._pool.refusal is not None:
            return False
        with self._pool.connect_unused() as raw:
            if raw is None:
                return None
            server.limit(raw, _ANSWER_SECONDS)
            return wake_ups.send_hints(raw, channels)

    def listen(self, store_id: str, *queues: int) -> Listener | None:
        """Start to listen for hints of queues, on a new connection; None if none can come."""
        wake_ups = self._wake_ups
        if wake_ups is None:
            return None
        pooled = self._pool.connect_raw()
        try:
            raw = pooled.driver_connection
            pooled.detach()
            with self._pool.translator:
                return wake_ups.listen(raw, [Channel.of(store_id, number) for number in (*queues, ALL_QUEUES)])
        except BaseException:
            pooled.close()
            raise

    def close(self) -> None:
        """Send pending hints, if they are followed."""
        self._hints.close()

    def begin_anew(self) -> None:
        """Start again in a forked child, whose parent keeps its thread."""
        self._abandoned.detach()
        forks.leave_to_parent(self._hints)
        self._begin()
