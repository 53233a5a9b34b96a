"""A retry policy for tasks that use a store themselves."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import RetryPolicy
from airflow.sdk.definitions.retry_policy import RetryDecision

from export_queue.core.errors import ExportQueueError
from export_queue.operators.terminal import may_help

if TYPE_CHECKING:
    from airflow.sdk import Context

_DELAY = timedelta(seconds=10)


class ExportQueueRetryPolicy(RetryPolicy):
    """Retry a task soon after an error that may pass, and fail it at once after one that would occur again.

    For tasks with code of your own; the operators and ``@task.export_transaction`` do this without it::

        @task(retries=5, retry_policy=ExportQueueRetryPolicy())
        def recount():
            with ExportQueueHook().get_store() as store: ...

    Errors of other packages are treated as without a policy.

    :param delay: time until the retry, if the error may pass; it replaces the task's ``retry_delay``.
    """

    def __init__(self, delay: timedelta = _DELAY) -> None:
        self.delay = delay

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide by the error; Airflow calls this in the task's process."""
        if not isinstance(exception, ExportQueueError):
            return RetryDecision.default()
        name = type(exception).__name__
        if may_help(exception):
            return RetryDecision.retry(self.delay, f"{name} may pass")
        return RetryDecision.fail(f"{name} would occur again")

    def serialize(self) -> dict[str, Any]:
        """Return the policy as JSON."""
        return {"delay": self.delay.total_seconds()}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> ExportQueueRetryPolicy:
        """Make a policy from its JSON."""
        return cls(timedelta(seconds=data["delay"]))
