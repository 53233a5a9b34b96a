"""The retry policy for tasks of users."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, RetryAction, task

from export_queue import (
    CommitOutcomeUnknown,
    ConflictError,
    ExportQueueRetryPolicy,
    InvalidArgument,
    StoreUnavailable,
    UnknownQueue,
)


@pytest.mark.parametrize("error", [ConflictError, StoreUnavailable, CommitOutcomeUnknown])
def test_an_error_that_may_pass_is_retried_soon(error: type[Exception]) -> None:
    told = ExportQueueRetryPolicy(timedelta(seconds=3)).evaluate(error.__new__(error), 1, 5)
    assert (told.action, told.retry_delay) == (RetryAction.RETRY, timedelta(seconds=3))


def test_others_fail_at_once_and_those_of_other_packages_are_airflows() -> None:
    policy = ExportQueueRetryPolicy()
    assert policy.evaluate(InvalidArgument("no"), 1, 5).action is RetryAction.FAIL
    assert policy.evaluate(OSError("no"), 1, 5).action is RetryAction.DEFAULT
    assert ExportQueueRetryPolicy.deserialize(policy.serialize()).delay == policy.delay


@pytest.mark.parametrize(("error", "tries"), [(UnknownQueue, 1), (StoreUnavailable, 3)])
def test_a_task_with_the_policy_is_retried_or_fails_at_once(run_dag: Any, error: Any, tries: int) -> None:
    calls = []
    with DAG("own_code", schedule=None) as dag:

        @task(retries=2, retry_delay=timedelta(hours=1), retry_policy=ExportQueueRetryPolicy(timedelta(0)))
        def work() -> None:
            calls.append(1)
            raise error("no")

        work()
    assert run_dag(dag).state == "failed"
    assert len(calls) == tries
