"""Retrying the steps of a drain after transient errors, for as long as it may hold its leases."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Literal, Self, TypeVar

from export_queue.core.errors import DrainTimedOut, ExportQueueError, LockError, SegmentUnavailable, text_of
from export_queue.core.retry import Retry, is_transient

Result = TypeVar("Result")
Whom = Literal["the store", "the sink", "the exporter"]

log = logging.getLogger("export_queue.drain")

DRAIN_RETRY = Retry(attempts=9, seconds=120.0, first_pause=0.2, longest_pause=15.0)
"""About 40 seconds if a server refuses connections, two minutes if each call ends in a time-out."""
TOLD_ATTEMPT = 3
"""Number of failed attempts after which a warning is logged; the earlier ones take less than a second together."""
QUIET_SECONDS = 5.0
"""Calls shorter than this are not reported."""


@dataclass(slots=True)
class Call:
    """A step of a drain that is running or being retried."""

    whom: Whom
    attempts: int | None
    until: float
    """Wall-clock time after which no attempt begins; infinite if only their number is limited."""
    since: float = field(default_factory=time.time)
    """Wall-clock time at which the first attempt began."""
    failed: int = 0
    """Number of failed attempts."""
    error: Exception | None = None

    def seconds(self) -> float:
        return max(0.0, time.time() - self.since)

    def told(self) -> str:
        """Return who does not answer, and since when."""
        since = f"since {_clock(self.since)} ({self.seconds():.0f} s)"
        if self.error is None:
            return f"{self.whom} has not answered {since}"
        reason = text_of(getattr(self.error, "message", self.error)).splitlines()[0]
        whom = "the storage of the files" if isinstance(self.error, SegmentUnavailable) else self.whom
        return f"{whom} has failed {since}: {type(self.error).__name__}: {reason}"

    def line(self) -> str:
        """Return who does not answer, since when, and how long it is retried."""
        tries = f"attempt {self.failed + 1}" + (f" of {self.attempts}" if self.attempts else "")
        return f"{self.told()}; {tries}" + (
            "" if math.isinf(self.until) else f", none begins after {_clock(self.until)}"
        )


class Calls:
    """The calls that the threads of a drain wait for."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}

    def begin(self, call: Call) -> None:
        self._calls[threading.get_ident()] = call

    def end(self) -> None:
        self._calls.pop(threading.get_ident(), None)

    def line(self) -> str | None:
        """Describe the longest call; None while all calls are short."""
        late = [call for call in list(self._calls.values()) if call.seconds() >= QUIET_SECONDS]
        return max(late, key=Call.seconds).line() if late else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRetry(Retry):
    """A retry whose current calls can be reported.

    :param calls: where they are noted.
    :param end: ``clock()`` at which the drain's time is over.
    """

    calls: Calls = field(default_factory=Calls, repr=False, compare=False)
    end: float = math.inf

    @classmethod
    def of(cls, retry: Retry, *, end: float) -> Self:
        return cls(**{one.name: getattr(retry, one.name) for one in fields(Retry)}, end=end)


def call_again(
    retry: Retry, step: Callable[[], Result], *, whom: Whom = "the store", check: Callable[[], None] | None = None
) -> Result:
    """Call a step of a drain until it returns, fails permanently, or reaches the limits of the retry.

    :param retry: how often and how long the step is repeated.
    :param step: the step; it must be safe to repeat.
    :param whom: who is to answer, for the log.
    :param check: called before each call; its error ends the retries.
    :returns: what ``step`` returned.
    """
    left = min(math.inf if retry.seconds is None else retry.seconds, _end(retry) - retry.clock())
    call = Call(whom, retry.attempts, time.time() + left)
    failed_at: list[datetime] = []

    def counted() -> Result:
        try:
            return step()
        except Exception:
            failed_at.append(datetime.now(UTC))
            raise

    def paused(error: Exception) -> None:
        call.failed, call.error = call.failed + 1, error
        if call.failed == TOLD_ATTEMPT:
            log.warning("%s", call.line())

    calls = retry.calls if isinstance(retry, WatchedRetry) else None
    if calls is not None:
        calls.begin(call)
    try:
        result = retry.call(counted, worth_repeating=_is_worth_repeating, check=check, on_pause=paused)
    except DrainTimedOut as error:
        error.awaited = "" if call.error is None else call.told()
        raise
    except ExportQueueError as error:
        if len(failed_at) > 1 and _is_worth_repeating(error):
            error.message += f" (since {failed_at[0]:%Y-%m-%d %H:%M:%S} UTC, tried {len(failed_at)} times)"
        raise
    finally:
        if calls is not None:
            calls.end()
    if call.failed >= TOLD_ATTEMPT:
        log.info("%s answered after %.0f s", whom, call.seconds())
    return result


def _end(retry: Retry) -> float:
    return retry.end if isinstance(retry, WatchedRetry) else math.inf


def _clock(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S UTC")


def _is_worth_repeating(error: Exception) -> bool:
    # A lost lease and a passed deadline are transient for the task, but this attempt cannot get them back.
    return is_transient(error) and not isinstance(error, LockError | DrainTimedOut)
