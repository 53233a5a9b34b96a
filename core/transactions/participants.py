"""Other resources in a transaction: they write before its commit and roll back if it aborts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Protocol

from export_queue.core.callables import check_methods, returned
from export_queue.core.store import participant_key
from export_queue.core.transactions.value import Transaction


class Participant(Protocol):
    """A resource whose writes commit or roll back with a transaction. The methods are called in this order.

    The resource writes under the transaction's write pointer. Its own readers call :meth:`Transaction.is_visible` to
    decide which writes to show.

    Source: Tephra's *TransactionAware*.
    """

    name: str
    """Identifies the resource in errors and conflict keys."""

    def start(self, transaction: Transaction) -> None:
        """Join a transaction."""

    def update(self, transaction: Transaction) -> None:
        """Use the new write pointer after a checkpoint."""

    def changes(self) -> Iterable[bytes]:
        """Return the conflict keys of the writes; the commit checks them."""

    def persist(self) -> None:
        """Write everything durably. After the commit there must be nothing left to write."""

    def rollback(self) -> None:
        """Undo the writes. This may be called without :meth:`persist`."""

    def after_commit(self) -> None:
        """Called after the transaction has committed."""


_STEPS = ("start", "update", "changes", "persist", "rollback", "after_commit")


class Participants:
    """The participants of one transaction, in the order in which they joined."""

    def __init__(self) -> None:
        self._joined: list[Participant] = []
        """Participants that do not know yet how the transaction ended."""
        self._failed: list[str] = []
        self._interruption: BaseException | None = None

    def __bool__(self) -> bool:
        return bool(self._joined)

    def join(self, participant: Participant, transaction: Transaction) -> None:
        """Add and start a participant. It will be rolled back even if it fails to start.

        :raises InvalidArgument: one of its methods is asynchronous or a generator, so that a call would not run it.
        """
        check_methods(participant, _STEPS, f"participant {participant.name!r}", may_yield=["changes"])
        self._joined.append(participant)
        _call(participant, "start", transaction)

    def update(self, transaction: Transaction) -> None:
        """Pass a new write pointer to all participants."""
        for participant in self._joined:
            _call(participant, "update", transaction)

    def persist(self) -> set[bytes]:
        """Let all participants write, and return their conflict keys."""
        keys = {participant_key(one.name, key) for one in self._joined for key in _call(one, "changes")}
        for one in self._joined:
            _call(one, "persist")
        return keys

    def roll_back(self, reason: BaseException | None) -> list[str]:
        """Roll all participants back, the last one first; a failure does not stop the others.

        :param reason: why; each failure is added to it as a note.
        :returns: the names of those that failed, now or in an earlier call that was interrupted.
        """
        self._run_all("rollback", -1, reason)
        return self._failed

    def after_commit(self) -> BaseException | None:
        """Report the commit to all participants; a failure does not stop the others.

        :returns: the first error, with a note of each later one.
        """
        return self._run_all("after_commit", 0, None)

    def raise_interruption(self) -> None:
        """Raise the interruption that hit one of the participants, after all have been called."""
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
