"""The seam to a database's driver: its connections and its errors."""

from __future__ import annotations

from typing import ClassVar, Protocol

from export_queue.core.errors import StoreError


class Driver(Protocol):
    """The driver of one kind of database. A ``raw`` connection is the driver's own."""

    error: ClassVar[type[Exception]]
    """Base class of the driver's own errors."""

    def is_idle(self, raw: object) -> bool:
        """Return whether a connection is open and in no SQL transaction, without asking the server."""

    def is_alive(self, raw: object) -> bool:
        """Return the same for a connection that has been idle: its server may have ended it meanwhile."""

    def is_missing_table(self, error: BaseException) -> bool:
        """Return whether a driver's error says that the store's tables do not exist."""

    def explain(self, error: BaseException, url: str) -> StoreError | None:
        """Translate an error about the database as a whole into one that names it; None for all others."""
