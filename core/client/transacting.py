"""The half of a store that begins and ends transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import UUID

from export_queue.core.client.context import TransactionContext
from export_queue.core.errors import AlreadyCommitted, InvalidArgument, StoreError, TransactionError
from export_queue.core.retry import Retry
from export_queue.core.store import Database, Identity, Outcome, queries
from export_queue.core.transactions import (
    BoundSession,
    IdempotencyState,
    OpenKind,
    OpenTransaction,
    Transaction,
    idempotency_state,
    outcome,
)

Result = TypeVar("Result")


class Transacting:
    """Transactions of one store, in every form."""

    database: Database

    @property
    def identity(self) -> Identity:
        """The store's identity and schema version, checked against this code."""
        raise NotImplementedError

    def _context(self, opened: OpenTransaction) -> TransactionContext:
        raise NotImplementedError

    @contextmanager
    def transaction(
        self,
        *,
        timeout: float | None = None,
        long: bool = False,
        idempotency_key: str | None = None,
        connection: object = None,
        read_only: bool = False,
        settled: bool = False,
    ) -> Iterator[TransactionContext]:
        """Run a block in a transaction: leaving it commits, an exception aborts.

        :param timeout: seconds from the first read until a commit is refused; 30, or 24 hours if long.
        :param long: stage writes in the store, for work that takes long or spans processes.
        :param idempotency_key: the unit of work; if it has committed before, the block is not entered (I14).
        :param connection: a connection of the user's to the store's database, SQLAlchemy's or the driver's, with a
            SQL transaction open: leaving the block checks and writes into that SQL transaction, and the user commits
            it. Business rows and entries are then one.
        :param read_only: nothing is written, so that nothing is registered either: the cheapest way to read.
        :param settled: read only, a snapshot below every id in progress: no commit to come can add to what it shows.
        :raises AlreadyCommitted: on entry, or at the commit if another attempt came first; carries the stored result.
        :raises ConflictError: another transaction wrote a key of this one.
        :raises CommitOutcomeUnknown: the connection broke and the store cannot be asked.
        """
        _ = self.identity
        kind = _kind(long=long, bound=connection is not None, read=read_only or settled)
        if kind == "read" and idempotency_key is not None:
            raise InvalidArgument("an idempotency key is for work that writes, found one with read_only or settled")
        bound = None if connection is None else BoundSession(self.database, connection, store_id=self.identity.store_id)
        opened = OpenTransaction(
            self.database, kind=kind, settled=settled, timeout=timeout, idempotency_key=idempotency_key, bound=bound
        )
        with _ending(opened):
            yield self._context(opened)
            opened.commit()

    def begin(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Begin a long transaction that other processes go on with, and end.

        :param timeout: seconds until a commit is refused; 24 hours.
        :returns: a JSON value for :meth:`resume`, :meth:`commit` and :meth:`abort`.
        """
        _ = self.identity
        return OpenTransaction(self.database, kind="long", timeout=timeout).value.to_json()

    @contextmanager
    def resume(self, transaction: dict[str, Any]) -> Iterator[TransactionContext]:
        """Go on, for a block, with a long transaction that another process began; leaving it stages what was written.

        :param transaction: as :meth:`begin` or ``tx.to_json()`` gave it.
        :raises RegistrationLost: it has ended.
        :raises StoreUnavailable: what was written got no answer; the transaction is aborted.
        """
        opened = self._resumed(transaction)
        yield self._context(opened)
        opened.flush()

    def commit(self, transaction: dict[str, Any]) -> int:
        """Commit a long transaction; doing it again changes nothing.

        :returns: its id.
        :raises ConflictError: another transaction wrote a key of this one.
        :raises RegistrationLost: it was aborted, or expired after its time-out.
        """
        committed = self._resumed(transaction).commit()
        assert committed is not None
        return committed

    def abort(self, transaction: dict[str, Any]) -> None:
        """Abort a long transaction: what it staged goes; doing it again changes nothing."""
        self._resumed(transaction).abort()

    def _resumed(self, transaction: dict[str, Any]) -> OpenTransaction:
        _ = self.identity
        return OpenTransaction.resume(self.database, Transaction.from_json(transaction))

    def run(
        self,
        function: Callable[[TransactionContext], Result],
        *,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        retry: Retry | None = None,
    ) -> Result:
        """Run a function in a transaction, again from its start if the commit meets a conflict.

        :param function: called with the transaction; with an idempotency key it must return a JSON value.
        :param idempotency_key: the unit of work: it takes effect once, and later calls return the stored result (I14).
        :param retry: how often and after which pauses; ``Retry()``.
        :returns: what the function returned.
        """
        _ = self.identity

        def attempt() -> Result:
            opened = OpenTransaction(self.database, timeout=timeout, idempotency_key=idempotency_key)
            with _ending(opened):
                result = function(self._context(opened))
                opened.commit(result)
                return result

        try:
            return (retry or Retry()).call(attempt, worth_repeating=_left_nothing)
        except AlreadyCommitted as error:
            if error.idempotency_key != idempotency_key:
                raise
            return error.result  # type: ignore[no-any-return]

    def outcome(self, request: UUID | str) -> Outcome:
        """Tell what became of a commit; one that has not taken effect is refused from now on.

        :param request: the transaction's ``request``.
        """
        return outcome(self.database, UUID(str(request)))

    def kept_invalid(self) -> list[queries.invalid.KeptInvalid]:
        """Read the ids that stay invalid since a participant could not undo what it wrote under them."""
        with self.database.read() as work:
            return queries.invalid.kept_invalid(work)

    def forget_invalid(self, transaction: int) -> bool:
        """Say that nothing is left of such an id, so that clean-up forgets it.

        What is really left of it anybody sees from then on who asks ``Transaction.is_visible``.

        :returns: False if no such id is kept.
        """
        with self.database.begin() as work:
            return queries.invalid.forget_invalid(work, transaction)

    def idempotency(self, idempotency_key: str) -> IdempotencyState:
        """Tell where a unit of work stands: whether it has taken effect, and with which result."""
        return idempotency_state(self.database, idempotency_key)

    def close_idempotency_key(self, idempotency_key: str, *, generation: int | None = None) -> bool:
        """Let the same unit of work take effect anew.

        :param generation: close only this generation, so that a late caller cannot close a younger one.
        :returns: False if there was none to close.
        """
        with self.database.begin() as work:
            return queries.reports.close_idempotency_key(work, idempotency_key, generation)


def _left_nothing(error: Exception) -> bool:
    # An error of a sink or a lock is the function's own: only a transaction's says that nothing has taken effect.
    return isinstance(error, TransactionError | StoreError) and error.transient


def _kind(*, long: bool, bound: bool, read: bool) -> OpenKind:
    asked: list[OpenKind] = []
    asked += ["long"] if long else []
    asked += ["bound"] if bound else []
    asked += ["read"] if read else []
    if len(asked) > 1:
        raise InvalidArgument(
            "a transaction is long, bound to a connection, or read-only (as is a settled one), "
            f"found {' and '.join(asked)} asked for at once"
        )
    return asked[0] if asked else "short"


@contextmanager
def _ending(opened: OpenTransaction) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        opened.abort(error)
        raise
