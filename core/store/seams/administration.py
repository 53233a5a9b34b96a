"""The seams of administration: what creates a store and what maintains the server under it."""

from __future__ import annotations

from typing import Protocol

from export_queue.core.store.seams.values import Handle


class Administration(Protocol):
    """Creation of a store, and its source of ids."""

    def create(self, connection: Handle) -> None:
        """Create everything that this database needs besides the portable tables and their first rows; idempotent."""

    def last_id(self, connection: Handle) -> int:
        """Read the last number drawn from the id source, also by a SQL transaction that has not ended."""

    def set_floor(self, connection: Handle, floor: int) -> None:
        """Make all future ids greater than a number."""


class Server(Protocol):
    """The server of a store that is not a file."""

    def limit(self, raw: object, seconds: float) -> None:
        """Limit the wait for each answer on a driver's connection until it is returned to its pool."""

    def check(self, connection: Handle) -> None:
        """Check that the store lives in the cluster of servers that gave its numbers of SQL transactions.

        :raises OtherCluster: it was copied into another one.
        """

    def adopt(self, connection: Handle) -> None:
        """Let a store that was copied into another cluster of servers live there."""

    def is_creation_met(self, error: Exception) -> bool:
        """Return whether a creation failed because another one was at work; repeating it finds what that one left."""

    def is_untidy(self, connection: Handle, *, removed: int, after: int) -> bool:
        """Return whether reclaiming the space of removed entries is worth its cost.

        :param removed: entries that the caller has just removed.
        :param after: the number of dead entries from which on it is worth it. Those that others removed since the last
            time count, too.
        """

    def tidy_entries(self, connection: Handle) -> None:
        """Reclaim the space of removed entries; without the owner's rights nothing happens.

        A drain that reads past many dead rows has half the speed.
        """
