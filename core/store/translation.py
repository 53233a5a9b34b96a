"""Translation of errors of a database and of SQLAlchemy into this library's."""

from __future__ import annotations

from types import TracebackType

from sqlalchemy.exc import DBAPIError, InvalidRequestError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from export_queue.core.errors import StoreNotCreated, StoreUnavailable
from export_queue.core.store.seams import Driver

_ENDED_AT_ONCE = "This connection is closed"
"""The pool's message if the connection that replaces a dead one is dead, too."""


class Translator:
    """Translates errors of one store; as a context manager, for a block. Blocks may be nested."""

    __slots__ = ("_driver", "_url")

    def __init__(self, driver: Driver, shown_url: str) -> None:
        self._driver = driver
        self._url = shown_url

    def translate(self, error: BaseException) -> Exception | None:
        """Return this library's error for an error of the database; None for all others."""
        if isinstance(error, PoolTimeout):
            return StoreUnavailable(
                f"store {self._url}: all connections of this process are taken",
                hint="each read, write and commit in progress takes one: do fewer at once",
            )
        if isinstance(error, InvalidRequestError) and str(error) == _ENDED_AT_ONCE:
            return StoreUnavailable(f"store {self._url}: sessions end as soon as they begin")
        if isinstance(error, DBAPIError):
            return self._translate(error.orig or error)
        if isinstance(error, StatementError) and isinstance(error.orig, Exception):
            return error.orig  # raised by a signal handler and wrapped by SQLAlchemy
        return self._translate(error) if isinstance(error, self._driver.error) else None

    def _translate(self, error: BaseException) -> Exception:
        if self._driver.is_missing_table(error):
            return StoreNotCreated(f"{self._url} holds no store")
        explained = self._driver.explain(error, self._url)
        if explained is not None:
            return explained
        return error if isinstance(error, Exception) else StoreUnavailable(str(error))

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        translated = self.translate(error)
        if translated is not None and translated is not error:
            cause = getattr(error, "orig", None) or error
            raise translated from (translated.__cause__ if cause is translated else cause)
