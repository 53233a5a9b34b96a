"""What triggers ask a store, and the answers."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from export_queue.core.errors import NotExported, TransactionEnded

if TYPE_CHECKING:
    from export_queue.core.drain import DriverState, SubmittedDrain
    from export_queue.core.observers import ColumnSighting, WaitingRows
    from export_queue.core.queue import Sighting
    from export_queue.core.store import Reading, Snapshot


class Seen(Protocol):
    """The common part of all answers."""

    @property
    def waiting(self) -> Sized | WaitingRows:
        """The pending work; false if there is none."""

    @property
    def has_news(self) -> bool:
        """Whether a part of it is newer than what the trigger announced."""


class Question(Protocol):
    """A trigger's question: what is pending, and is a part of it newer than what the trigger announced?

    Questions are hashable; triggers that ask the same share the answer.
    """

    def answer(self, work: Reading, snapshot: Snapshot) -> Seen:
        """Read the store.

        :raises ExportQueueError: the question cannot be answered.
        """


@dataclass(frozen=True, slots=True)
class QueueQuestion:
    """Ask for entries of a queue."""

    queue_id: str
    ranges: tuple[tuple[int, ...], ...] | None
    since: Sighting | None = None

    def answer(self, work: Reading, snapshot: Snapshot) -> Sighting:
        """Find pending entries."""
        from export_queue.core.queue import find_reader, look, units_to_watch

        queue = find_reader(work, self.queue_id)
        units = units_to_watch(work, queue, self.ranges)
        return look(work, queue, snapshot, units, since=self.since)

    def hints(self, work: Reading) -> int:
        """Return the number of the queue, whose commits send hints."""
        from export_queue.core.queue import find_reader, queue_added_to

        return queue_added_to(work, find_reader(work, self.queue_id)).number


@dataclass(frozen=True, slots=True)
class ColumnQuestion:
    """Ask for notifications of a column."""

    table: str
    column: str
    limit: int
    since: ColumnSighting | None = None

    def answer(self, work: Reading, snapshot: Snapshot) -> ColumnSighting:
        """Find due notifications."""
        from export_queue.core.observers import look

        return look(work, self.table, self.column, snapshot, limit=self.limit, since=self.since)


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of the entries that a token stands for."""

    waiting: tuple[str, ...]
    """The token, if there is nothing more to wait for."""
    failure: dict[str, str] | None = None
    """Message and hint, if a part will not arrive."""
    has_news: bool = False


@dataclass(frozen=True, slots=True)
class TokenQuestion:
    """Ask whether a reader's sink has acknowledged everything that a token stands for."""

    queue_id: str
    token: str

    def answer(self, work: Reading, snapshot: Snapshot) -> Settled:
        """Look once."""
        from export_queue.core.drain import ExportToken, is_exported
        from export_queue.core.store import identity_of

        token = ExportToken.parse(self.token, store_id=identity_of(work.database).store_id)
        try:
            standing = is_exported(work.database, token, self.queue_id)
        except (NotExported, TransactionEnded) as error:
            return Settled((self.token,), {"message": error.message, "hint": error.hint})
        return Settled((self.token,) if standing.is_exported else ())

    def hints(self, work: Reading) -> int:
        """Return the number for acknowledgements of the reader."""
        from export_queue.core.queue import find_reader
        from export_queue.core.store import acknowledgements_of

        return acknowledgements_of(find_reader(work, self.queue_id).number)


@dataclass(frozen=True, slots=True)
class DriverQuestion:
    """Ask how a submitted drain stands."""

    drain: SubmittedDrain

    def answer(self, work: Reading, snapshot: Snapshot) -> DriverSeen:
        """Look once."""
        return DriverSeen(*self.drain.observe(work))


@dataclass(frozen=True, slots=True)
class DriverSeen:
    """How a submitted drain stands."""

    state: DriverState
    sign: int | None = None
    """The driver's last sign of life."""
    has_news: bool = False

    @property
    def waiting(self) -> tuple[str, ...]:
        """The state, if there is nothing more to wait for."""
        return (self.state,) if self.state in ("reported", "silent") else ()
