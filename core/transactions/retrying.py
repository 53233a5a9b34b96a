"""Running a function in a transaction until it commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from export_queue.core.errors import InvalidArgument, TransactionError

Result = TypeVar("Result")


def run_retrying(attempt: Callable[[], Result], *, attempts: int) -> Result:
    """Run a function again, from its start, while its transaction ends in a transient error.

    The function runs again, never its writes: what it read may have changed.

    :param attempt: begins a transaction, works and commits.
    :param attempts: how often at most; the last error is raised.
    :returns: what the function returned.
    """
    if attempts < 1:
        raise InvalidArgument(f"attempts: expected at least 1, found {attempts}")
    retrying = Retrying(
        stop=stop_after_attempt(attempts),
        wait=wait_random_exponential(multiplier=0.005, max=1.0),
        retry=retry_if_exception(lambda error: isinstance(error, TransactionError) and error.transient),
        reraise=True,
    )
    return retrying(attempt)
