"""Other resources in a transaction: they are written before its commit and rolled back with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from export_queue.core.store import participant_key
from export_queue.core.transactions.value import Transaction


class Participant(Protocol):
    """A resource whose writes stand or fall with a transaction; the calls come in this order.

    It writes under the transaction's write pointer, so that its own readers can tell with
    :meth:`Transaction.is_visible` which writes to show.

    Source: Tephra's *TransactionAware*.
    """

    name: str
    """Its name in errors and conflict keys."""

    def start(self, transaction: Transaction) -> None:
        """Take part in a transaction."""

    def update(self, transaction: Transaction) -> None:
        """Take over the new write pointer after a checkpoint."""

    def changes(self) -> Iterable[bytes]:
        """Give the conflict keys of its writes, for the commit to check."""

    def persist(self) -> None:
        """Write everything; nothing may be left to do after the commit for it to be there."""

    def rollback(self) -> None:
        """Undo the writes; it may be called without :meth:`persist`."""

    def after_commit(self) -> None:
        """Learn that the transaction has committed."""


class Participants:
    """All participants of one transaction, in the order in which they joined."""

    def __init__(self) -> None:
        self._joined: list[Participant] = []

    def __bool__(self) -> bool:
        return bool(self._joined)

    def join(self, participant: Participant, transaction: Transaction) -> None:
        """Take one in; it is rolled back from now on, also if it fails to start."""
        self._joined.append(participant)
        participant.start(transaction)

    def update(self, transaction: Transaction) -> None:
        """Tell all of a new write pointer."""
        for participant in self._joined:
            participant.update(transaction)

    def persist(self) -> set[bytes]:
        """Let all write; returns the conflict keys of all."""
        keys = {participant_key(one.name, key) for one in self._joined for key in one.changes()}
        for one in self._joined:
            one.persist()
        return keys

    def roll_back(self, reason: BaseException | None) -> list[str]:
        """Undo all, the last one first, whatever fails on the way.

        :param reason: why; it gets a note of each failure.
        :returns: the names of those that failed.
        """
        return self._run_all("rollback", [(one.name, one.rollback) for one in reversed(self._joined)], reason)[0]

    def after_commit(self) -> BaseException | None:
        """Tell all, whatever fails on the way.

        :returns: the first error, with a note of each later one.
        """
        return self._run_all("after_commit", [(one.name, one.after_commit) for one in self._joined], None)[1]

    def _run_all(
        self, what: str, calls: Iterable[tuple[str, Callable[[], None]]], first: BaseException | None
    ) -> tuple[list[str], BaseException | None]:
        failed = []
        for name, call in calls:
            try:
                call()
            except Exception as error:
                failed.append(name)
                if first is None:
                    first = error
                else:
                    first.add_note(f"besides, participant {name!r} failed in {what}: {type(error).__name__}: {error}")
        return failed, first
