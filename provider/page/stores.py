"""The stores of the configured connections, and their errors as text that contains no secret."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from export_queue.core.client import Store
from export_queue.core.errors import (
    EntryError,
    ExportQueueError,
    HasSubscriptions,
    InvalidArgument,
    LockNotAvailable,
    UnknownQueue,
)
from export_queue.core.printable import printable
from export_queue.hooks import ExportQueueHook, open_store

_IN_URL = re.compile(r"(://[^/\s:@]*:)[^@\s]*@")
PAGES_AT_ONCE = 8
"""Maximum number of pages that use a store at once.

They run in the threads of Airflow's own requests. A store that does not answer must not take them all.
"""
_WAIT_SECONDS = 1.0
_free: dict[str, threading.BoundedSemaphore] = {}
_STATUSES = {
    UnknownQueue: 404,
    LockNotAvailable: 409,
    InvalidArgument: 400,
    HasSubscriptions: 400,
    EntryError: 400,
    ExportQueueError: 503,
}


class StoreProblem(Exception):
    """An error of a store that may be shown.

    :param status: status of the answer.
    """

    def __init__(self, message: str, hint: str, *, status: int) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.status = status


@contextmanager
def opened(conn_id: str) -> Iterator[Store]:
    """Open the store of a connection during a block. A server that does not answer costs a few seconds.

    :raises StoreProblem: the connection describes no store, the store raised an error, or too many pages wait for it.
    """
    free = _free.setdefault(conn_id, threading.BoundedSemaphore(PAGES_AT_ONCE))
    if not free.acquire(timeout=_WAIT_SECONDS):
        raise StoreProblem("too many pages wait for this store", "Load the page again.", status=503)
    try:
        with _opened(conn_id) as store:
            yield store
    finally:
        free.release()


@contextmanager
def _opened(conn_id: str) -> Iterator[Store]:
    secrets: list[str] = []
    try:
        described = ExportQueueHook(conn_id).describe()
        secrets += described.variables.values()
        with open_store(described, hurried=True, client="page in Airflow's UI") as store:
            yield store
    except ExportQueueError as error:
        status = next(status for kind, status in _STATUSES.items() if isinstance(error, kind))
        message, hint = (_shown(text, secrets) for text in (error.message, error.hint))
        raise StoreProblem(message, hint, status=status) from None


def _shown(text: str, secrets: list[str]) -> str:
    """Return one line without passwords, those of the connection and those in URLs."""
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return printable(_IN_URL.sub(r"\1***@", " ".join(text.split())))
