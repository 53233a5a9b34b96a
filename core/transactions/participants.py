"""Other resources in a transaction: they are written before its commit and rolled back with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Protocol

from export_queue.core.callables import check_methods, returned
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


_STEPS = ("start", "update", "changes", "persist", "rollback", "after_commit")


class Participants:
    """All participants of one transaction, in the order in which they joined."""

    def __init__(self) -> None:
        self._joined: list[Participant] = []
        """Those that have not been told of the end."""
        self._failed: list[str] = []
        self._interruption: BaseException | None = None

    def __bool__(self) -> bool:
        return bool(self._joined)

    def join(self, participant: Participant, transaction: Transaction) -> None:
        """Take one in; it is rolled back from now on, also if it fails to start.

        :raises InvalidArgument: one of its methods does not run when it is called.
        """
        check_methods(participant, _STEPS, f"participant {participant.name!r}", may_yield=["changes"])
        self._joined.append(participant)
        _call(participant, "start", transaction)

    def update(self, transaction: Transaction) -> None:
        """Tell all of a new write pointer."""
        for participant in self._joined:
            _call(participant, "update", transaction)

    def persist(self) -> set[bytes]:
        """Let all write; returns the conflict keys of all."""
        keys = {participant_key(one.name, key) for one in self._joined for key in _call(one, "changes")}
        for one in self._joined:
            _call(one, "persist")
        return keys

    def roll_back(self, reason: BaseException | None) -> list[str]:
        """Undo all, the last one first, whatever fails on the way.

        :param reason: why; it gets a note of each failure.
        :returns: the names of those that failed, now or in an earlier call that was interrupted.
        """
        self._run_all("rollback", -1, reason)
        return self._failed

    def after_commit(self) -> BaseException | None:
        """Tell all, whatever fails on the way.

        :returns: the first error, with a note of each later one.
        """
        return self._run_all("after_commit", 0, None)

    def raise_interruption(self) -> None:
        """Raise the interruption that hit one of them, after all have been called."""
        if self._interruption is not None:
            raise self._interruption

    def _run_all(
        self, step: Literal["rollback", "after_commit"], next_one: Literal[0, -1], first: BaseException | None
    ) -> BaseException | None:
        while self._joined:
            one = self._joined[next_one]
            try:
                self._joined.pop(next_one)  # inside, so that an interruption at any moment counts as its failure
                _call(one, step)
            except BaseException as error:
                self._failed.append(one.name)
                if not isinstance(error, Exception):
                    self._interruption = error
                if first is None:
                    first = error
                else:
                    first.add_note(
                        f"besides, participant {one.name!r} failed in {step}: {type(error).__name__}: {error}"
                    )
        return first


def _call(participant: Participant, step: str, *arguments: Transaction) -> Any:
    result = getattr(participant, step)(*arguments)
    return returned(result, f"{step}() of participant {participant.name!r}", may_yield=step == "changes")
