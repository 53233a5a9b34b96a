"""Failing a task at once on errors that would occur again in a retry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowFailException

from export_queue.core.errors import AfterCommitFailed, CommitOutcomeUnknown, ExportQueueError

_TOLD_BY_A_RETRY = (AfterCommitFailed, CommitOutcomeUnknown)
"""Errors after which the work may have taken effect: a retry of the same unit of work finds out."""


def may_help(error: ExportQueueError) -> bool:
    """Return whether a retry of the task may help."""
    return error.transient or isinstance(error, _TOLD_BY_A_RETRY)


@contextmanager
def terminal_errors_fail_at_once() -> Iterator[None]:
    """Let Airflow retry a task only for transient errors.

    An error that is not transient leaves the block as an error of the same class that is also an
    ``AirflowFailException``.
    """
    try:
        yield
    except ExportQueueError as error:
        if may_help(error) or isinstance(error, AirflowFailException):
            raise
        raise _as_failure(error) from error


def _as_failure(error: ExportQueueError) -> ExportQueueError:
    kind = type(error)
    combined = type(
        kind.__name__, (kind, AirflowFailException), {"__module__": kind.__module__, "__doc__": kind.__doc__}
    )
    failure: ExportQueueError = combined.__new__(combined, *error.args)
    failure.__dict__.update(error.__dict__)  # its own fields and notes
    return failure
