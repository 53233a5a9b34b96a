"""The seam of bound transactions: what a user's own connection needs before the store can use it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import Connection


class UserConnections(Protocol):
    """A user's own connections of the driver, which their user has set up."""

    def plainly(self, raw: object) -> AbstractContextManager[None]:
        """Make a connection return values as its driver does by itself, for a block."""

    def lend(self, raw: object) -> AbstractContextManager[Connection]:
        """Lend the connection for a write that would wait for the user's commit on any other connection."""
