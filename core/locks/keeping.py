"""Renewing leases while their holder works, and noticing when they are lost."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from export_queue.core.errors import ExportQueueError, LeaseLost
from export_queue.core.locks.lease import Lease
from export_queue.core.locks.lockbox import release, renew
from export_queue.core.store import Database

GROUP_SECONDS = 1.0
"""Seconds between two releases of finished ranges; each release is a transaction."""

log = logging.getLogger("export_queue.locks")


class LeaseKeeper:
    """Renews leases in its own thread, and releases finished ones; a context that releases all at its end.

    :meth:`check` is a cheap check before each batch, which spares the sink useless work. The check inside the critical
    section keeps a late holder from changing the store (I10).

    :param lease_seconds: duration of a claim or renewal; renewals come three times as often.
    :param claimed_at: ``clock()`` *before* the claim was made, so that a pause since then counts.
    :param clock: returns seconds, and advances while the process is stopped.
    :param wait: waits for an event, at most a number of seconds; returns whether the event was set.
    """

    def __init__(
        self,
        database: Database,
        leases: Sequence[Lease],
        *,
        lease_seconds: float,
        claimed_at: float,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._database = database
        self._leases = list(leases)
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._wait = wait
        self._valid_until = claimed_at + lease_seconds
        self._done: list[Lease] = []
        """Finished, but not yet released."""
        self._lost: LeaseLost | None = None
        self._trouble: Exception | None = None
        self._stop = threading.Event()
        self._mutex = threading.Lock()
        self._thread = threading.Thread(target=self._keep_until_stopped, name="export-queue-leases", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        # Leases that are left expire by themselves, and the error of the work matters more.
        with contextlib.suppress(ExportQueueError):
            release(self._database, list(dict.fromkeys(self._leases + self._done)))

    def check(self) -> None:
        """Check that all leases are still held.

        :raises LeaseLost: one was revoked, or could not be renewed in time.
        """
        if self._lost is not None:
            raise LeaseLost(self._lost.message) from self._lost
        if self._clock() >= self._valid_until:
            raise LeaseLost(f"its leases were not renewed for {self._lease_seconds:g} seconds") from self._trouble

    def give_back(self, leases: Sequence[Lease]) -> None:
        """Release ranges early: others can claim them about a second later, while the rest of the work continues."""
        with self._mutex:
            self._done += leases

    def _keep_until_stopped(self) -> None:
        # One thread renews and releases, so no lease is renewed while or after it is released.
        period = self._lease_seconds / 3
        steps = math.ceil(period / GROUP_SECONDS)
        step = 0
        while not self._wait(self._stop, period / steps) and self._lost is None:
            self._give_back_done()
            step += 1
            # Check the clock too, because the work between the waits takes time.
            if step >= steps or self._clock() >= self._valid_until - 2 * period:
                self._renew()
                step = 0

    def _give_back_done(self) -> None:
        with self._mutex:
            done = list(self._done)
        if not done:
            return
        # Never renewed again, even if the store does not answer: they may have been released nevertheless.
        self._leases = [lease for lease in self._leases if lease not in done]
        try:
            release(self._database, done)
        except Exception as error:
            log.debug("%d leases will be released later: %s", len(done), error)
            return
        with self._mutex:
            self._done = [lease for lease in self._done if lease not in done]

    def _renew(self) -> None:
        asked_at = self._clock()
        try:
            if self._leases:
                renew(self._database, self._leases, lease_seconds=self._lease_seconds)
        except LeaseLost as error:
            self._lost = error
        except Exception as error:
            self._trouble = error  # the store may answer again before the lease ends; check() notices if it does not
        else:
            self._valid_until = asked_at + self._lease_seconds
