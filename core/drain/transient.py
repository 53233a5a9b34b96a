"""How a drain meets errors that pass: it waits and tries again, as long as it may still hold its leases."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from export_queue.core.errors import DrainTimedOut, ExportQueueError, LockError
from export_queue.core.retry import Retry, is_transient

Result = TypeVar("Result")

DRAIN_RETRY = Retry(attempts=9, seconds=120.0, first_pause=0.2, longest_pause=15.0)
"""About 40 seconds for a server that refuses, and two minutes for one that hangs until a time-out ends each call."""


def call_again(retry: Retry, step: Callable[[], Result], *, check: Callable[[], None] | None = None) -> Result:
    """Call a step of a drain until it returns, fails for good, or the retry's bounds are reached.

    :param retry: how often, and how long apart.
    :param step: the step; it must be safe to repeat.
    :param check: called before each call; an error of its own ends the matter.
    :returns: what ``step`` returned.
    """
    failures = 0
    since: datetime | None = None

    def counted() -> Result:
        nonlocal failures, since
        try:
            return step()
        except Exception:
            failures += 1
            since = since or datetime.now(UTC)
            raise

    try:
        return retry.call(counted, worth_repeating=_is_worth_repeating, check=check)
    except ExportQueueError as error:
        if failures > 1 and since is not None and _is_worth_repeating(error):
            error.message += f" (since {since:%Y-%m-%d %H:%M:%S} UTC, tried {failures} times)"
        raise


def _is_worth_repeating(error: Exception) -> bool:
    # Transient for the task as a whole: but a lost lease never comes back to its holder, nor does time.
    return is_transient(error) and not isinstance(error, LockError | DrainTimedOut)
