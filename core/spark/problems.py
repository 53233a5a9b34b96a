"""Passing a driver's error to its submitter through the store: ``spark-submit`` returns only an exit status."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import asdict, replace

from export_queue.core.client import Store
from export_queue.core.drain import Problem
from export_queue.core.errors import ExportQueueError, SparkJobFailed
from export_queue.core.store import StoreSpec

log = logging.getLogger("export_queue")


@contextlib.contextmanager
def problem_kept(store: StoreSpec, key: str | None) -> Iterator[None]:
    """Store the error of a block, and raise it again.

    :param key: idempotency key whose result the error becomes; None stores nothing.
    """
    try:
        yield
    except Exception as error:
        if key is not None:
            problem = Problem.of(error)
            if not isinstance(error, ExportQueueError):
                problem = replace(problem, transient=True)  # trying again may help
            try:
                with Store.open(store) as opened:
                    opened.run(lambda tx: asdict(problem), idempotency_key=key)
            except Exception as failed:
                log.warning("the error could not be stored for the submitter: %s", failed)
        raise


def kept_problem(store: Store, key: str | None) -> ExportQueueError | None:
    """Return the error that a driver stored under a key; None if there is none."""
    if key is None or not (state := store.idempotency(key)).committed:
        return None
    store.close_idempotency_key(key)  # nobody else reads it
    problem = Problem(**state.result)
    error = problem.to_error()
    if type(error).__name__ != problem.error_class:
        error = SparkJobFailed(f"{problem.error_class}: {problem.message}", hint=problem.hint)
    error.transient = problem.transient
    return error
