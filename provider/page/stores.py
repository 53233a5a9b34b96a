"""The stores of the configured connections, and their errors as text that contains no secret."""

from __future__ import annotations

import re
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

    :raises StoreProblem: the connection describes no store, or the store raised an error.
    """
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
