"""One transaction from its first read to its end."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Literal
from uuid import UUID

from export_queue.core.errors import (
    AfterCommitFailed,
    AlreadyCommitted,
    CommitOutcomeUnknown,
    CommitRefused,
    ConflictError,
    ExportQueueError,
    InvalidArgument,
    RegistrationLost,
    StoreUnavailable,
    TransactionTimeout,
)
from export_queue.core.store import Cell, CommitCall, Database, Snapshot, Version, new_request
from export_queue.core.transactions.buffer import EntryPlace, WriteBuffer
from export_queue.core.transactions.idempotency import as_json, check_idempotency_key
from export_queue.core.transactions.participants import Participant, Participants
from export_queue.core.transactions.reading import ReadingTransaction
from export_queue.core.transactions.sessions import BoundSession, PinnedSession, PooledSession, Session
from export_queue.core.transactions.states import OPEN, State
from export_queue.core.transactions.steps import (
    ASK_SECONDS,
    expire_if_due,
    idempotency_state,
    invalidate,
    outcome,
    settled_snapshot,
    take_snapshot,
)
from export_queue.core.transactions.value import Transaction

ANSWER_SECONDS = 10.0
"""How long beyond its time-out a transaction waits for an answer before it takes the connection for dead."""
WRITE_ONLY_TRIES = 20
"""How often a commit is repeated that never read, and so may be, when a younger transaction overtook it."""

OpenKind = Literal["read", "short", "long", "bound"]


class OpenTransaction(ReadingTransaction):
    """A transaction in progress: buffered if short, staged early if long.

    Its id is drawn at the first read or when somebody asks for it, at the latest in the commit, so that
    nothing that depends on a read has an id younger than its snapshot.

    :param database: the store.
    :param kind: ``short``: writes are buffered; ``long``: they are staged in the store before the commit, for work
        that spans processes; ``bound``: the commit writes into the user's own SQL transaction, which the user ends;
        ``read``: it writes nothing and has no id.
    :param settled: for ``read``: a snapshot below every id in progress, which no commit to come can reach into.
    :param timeout: seconds from the first read until the commit is refused.
    :param idempotency_key: the unit of work; a second commit under it is refused (I14).
    :param bound: the user's own SQL transaction, for that kind.
    """

    def __init__(
        self,
        database: Database,
        *,
        kind: OpenKind = "short",
        settled: bool = False,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        bound: BoundSession | None = None,
    ) -> None:
        self._timeout_ms = database.limits.timeout_ms(timeout, long=kind == "long")
        self._seconds = self._timeout_ms / 1000 + ANSWER_SECONDS
        pins = kind == "short" and database.dialect.pins_connection
        session: Session = bound or (PinnedSession if pins else PooledSession)(database, seconds=self._seconds)
        super().__init__(database, session, WriteBuffer(database.limits))
        self.kind: OpenKind = kind
        self.request: UUID = new_request()
        self.idempotency_key = idempotency_key
        self._settled = settled
        self._generation = 1
        self._participants = Participants()
        self._is_resumed = False
        if idempotency_key is not None:
            check_idempotency_key(idempotency_key)
            state = idempotency_state(database, idempotency_key, seconds=self._seconds)
            if state.committed:
                raise AlreadyCommitted(idempotency_key, state.result)
            self._generation = state.generation

    @classmethod
    def resume(cls, database: Database, value: Transaction) -> OpenTransaction:
        """Go on with a long transaction that another process began.

        :raises InvalidArgument: the transaction is short: its writes live in the process that began it.
        """
        if value.kind != "long":
            raise InvalidArgument(f"only a long transaction may travel, found transaction {value.id}, {value.kind}")
        opened = cls(database, kind="long")
        opened.request = UUID(value.request)
        opened._is_resumed = True
        opened._level = value.level
        opened._become(value)
        opened._move(State.IN_PROGRESS)
        return opened

    def _start(self, first: Cell | None = None) -> Version | None:
        found: Version | None = None
        deadline_ms = 0
        if self.kind == "read":
            snapshot = settled_snapshot(self.database) if self._settled else take_snapshot(self.database)
            number = snapshot.read_pointer + 1
        else:
            if self.kind != "bound":
                expire_if_due(self.database, seconds=self._seconds)
            try:
                number, excluded, deadline_ms, found = self._session.call(
                    self.database.dialect.start,
                    kind=self.kind,
                    request=self.request,
                    timeout_ms=self._timeout_ms,
                    client=self.database.client,
                    first=first,
                )
            except BaseException:
                self._session.drop()  # a cancel may hit after the id was registered: its session must not keep it
                raise
            snapshot = Snapshot(number - 1, excluded)
        self._become(
            Transaction(
                id=number,
                snapshot=snapshot,
                write_pointers=() if self.kind == "read" else (number,),
                kind=self.kind,
                deadline_ms=deadline_ms,
                request=self.request.hex,
                level=self._level,
            )
        )
        self._move(State.IN_PROGRESS)
        return found

    def _require_writable(self) -> None:
        self.require_open()
        if self.kind == "read":
            raise InvalidArgument(
                "expected a transaction that may write, found a read-only one",
                hint="leave out read_only=True and settled=True",
            )

    def write_cell(self, cell: Cell, value: bytes | None, *, conflict_key: bytes | None) -> None:
        """Buffer a write; None is a delete."""
        self._require_writable()
        self.buffer.put_cell(cell, value)
        if conflict_key is not None:
            self.buffer.keys.add(conflict_key)

    def add_entry(self, place: EntryPlace, value: bytes | None, *, conflict_key: bytes | None) -> None:
        """Buffer an entry."""
        self._require_writable()
        self.buffer.put_entry(place, value)
        if conflict_key is not None:
            self.buffer.keys.add(conflict_key)

    def notify(self, cell: Cell) -> None:
        """Set a notification on a cell, with the commit."""
        self._require_writable()
        self.buffer.notifications.add(cell)

    def acknowledge(self, cell: Cell, *, conflict_key: bytes | None) -> None:
        """Remove the notifications on a cell that this snapshot sees, with the commit.

        :param conflict_key: of two overlapping transactions that give it, one commits.
        """
        self._require_writable()
        _ = self.value  # what is seen is what the snapshot holds
        self.buffer.acknowledged.add(cell)
        if conflict_key is not None:
            self.buffer.keys.add(conflict_key)

    def join(self, participant: Participant) -> None:
        """Let another resource take part; it is rolled back if this transaction does not commit.

        :raises InvalidArgument: the transaction is bound to its user's, or was resumed: others end it.
        """
        self._require_writable()
        if self.kind == "bound":
            raise InvalidArgument("a transaction that is bound to its user's SQL transaction has no participants")
        if self._is_resumed:
            raise InvalidArgument(
                "a resumed transaction has no participants: nobody would call them at its end",
                hint="let the process join them that holds the transaction: with store.transaction(long=True)",
            )
        self._participants.join(participant, self.value)

    def checkpoint(self) -> None:
        """Draw a line: what is written from now on is a version of its own, under the same snapshot.

        All of it commits or rolls back together. A checkpoint of a long transaction counts in every process that
        works for it, from its next read or flush on.
        """
        self._require_writable()
        if self.kind == "long":
            self.flush()
            own = self.value.id
            pointer = self._session.call(self.database.dialect.checkpoint, own)
            self._become(replace(self.value, write_pointers=(*self.value.write_pointers, pointer)))
        else:
            self.buffer.checkpoint()
        if self._participants:
            self._participants.update(self.value)

    def flush(self) -> None:
        """Stage what is buffered, so that it need not fit into memory; for long transactions only.

        :raises InvalidArgument: the transaction is short.
        :raises RegistrationLost: it has ended, or expired after its time-out.
        :raises StoreUnavailable: there was no answer; the transaction is aborted.
        """
        if self.kind != "long":
            raise InvalidArgument("a short transaction is sent as a whole; flush() is for transaction(long=True)")
        value = self.value
        if self.buffer:
            stage, writes = self.database.dialect.stage, self.buffer.writes()
            try:
                pointers = self._session.call(stage, value.id, writes)
            except StoreUnavailable as error:
                if error.sent:
                    # It may still arrive, behind a later flush that it would undo; after the abort it is refused.
                    self.abort(error)
                raise
            self._become(replace(value, write_pointers=pointers))
            self.buffer.sent()

    def commit(self, result: Any = None) -> int | None:
        """Commit, or find out truthfully what became of it.

        :param result: a JSON value that is stored with the idempotency key.
        :returns: the transaction's id; None if there was nothing to commit.
        :raises ConflictError: another transaction wrote a key of this one; run the function again.
        :raises CommitOutcomeUnknown: the connection broke and the store cannot be asked.
        :raises AlreadyCommitted: the idempotency key has been committed meanwhile.
        :raises AfterCommitFailed: it has committed, and a participant failed when it was told.
        """
        self.require_open()
        try:
            self.buffer.keys |= self._participants.persist()
            if self._has_nothing_to_commit():
                return self._end_reading()
            if self.kind == "long":
                self.flush()
            call = self._call(result)
            self._move(State.COMMITTING)
            own = self._send(call)
        except BaseException as error:
            self.abort(error)
            raise
        self._end(State.COMMITTED)
        failure = self._participants.after_commit()
        if failure is not None:
            raise AfterCommitFailed(f"transaction {own} has committed; afterwards: {failure}") from failure
        return own

    def _has_nothing_to_commit(self) -> bool:
        only_read = self.kind in ("read", "short") or self._value is None
        return only_read and not self.buffer and self.idempotency_key is None and not self._participants

    def _end_reading(self) -> int | None:
        own = None if self._value is None or self.kind == "read" else self._value.id
        self._forget()  # giving an id back costs no flush
        self._move(State.COMMITTING)
        self._end(State.COMMITTED)
        return own

    def _call(self, result: Any) -> CommitCall:
        value = self._value
        assert self.kind != "read" or not self.buffer
        return CommitCall(
            kind="write" if value is None else self.kind,  # type: ignore[arg-type]  # nothing is sent for "read"
            request=self.request,
            transaction=None if value is None else value.id,
            snapshot=self._snapshot,
            deadline_ms=0 if value is None else value.deadline_ms,
            writes=self.buffer.writes(),
            idempotency_key=self.idempotency_key,
            generation=self._generation,
            result=None if self.idempotency_key is None else as_json(result, self.idempotency_key),
        )

    def _send(self, call: CommitCall) -> int:
        begun, counters = time.monotonic(), self.database.counters
        try:
            own = self._send_and_ask(call)
        except TransactionTimeout:
            counters.timed_out(call.kind)
            raise
        except Exception as error:
            counters.refused(call.kind, type(error))
            raise
        counters.committed(call.kind, time.monotonic() - begun)
        return own

    def _send_and_ask(self, call: CommitCall) -> int:
        try:
            return self._send_repeatedly(call)
        except AlreadyCommitted as error:
            state = idempotency_state(self.database, error.idempotency_key, seconds=self._seconds)
            raise AlreadyCommitted(error.idempotency_key, state.result) from error
        except (StoreUnavailable, RegistrationLost) as error:
            # Neither is a verdict: the same commit may have taken effect before its answer was lost.
            if self.kind == "bound" or (isinstance(error, StoreUnavailable) and not error.sent):
                raise  # the one's outcome is that of the user's SQL transaction, the other never left this process
            return self._ask(error)

    def _send_repeatedly(self, call: CommitCall) -> int:
        for left in range(WRITE_ONLY_TRIES, -1, -1):
            try:
                return int(self._session.call(self.database.dialect.commit, call).id)
            except ConflictError:
                if call.snapshot is not None or not left:
                    raise
        raise AssertionError("unreachable")

    def _ask(self, reason: ExportQueueError) -> int:
        """Learn the outcome on a new connection after the commit's answer was lost."""
        self._session.drop()
        deadline = time.monotonic() + ASK_SECONDS
        while True:
            try:
                decided = outcome(self.database, self.request, seconds=ASK_SECONDS)
                break
            except Exception as error:  # whatever it is: the commit may have taken effect
                if not isinstance(error, StoreUnavailable) or time.monotonic() > deadline:
                    self._end(State.UNKNOWN)
                    raise CommitOutcomeUnknown(
                        f"the commit of request {self.request} got no answer, and the store cannot be asked: {error}"
                    ) from reason
                time.sleep(0.2)
        if decided.status == "committed" and decided.id is not None:
            return decided.id
        if isinstance(reason, RegistrationLost):
            raise reason
        raise CommitRefused(f"the commit of request {self.request} did not take effect: {reason.message}") from reason

    def abort(self, reason: BaseException | None = None) -> None:
        """Drop what was written and forget the id; safe to call after the end.

        The id of a transaction whose participant could not undo its writes becomes invalid for good, so that nobody
        who asks the snapshot sees them.

        :param reason: why; it gets a note of every failure on the way.
        """
        if self._state not in OPEN and self._state is not State.COMMITTING:
            return
        if self._state in OPEN and self.kind != "read":
            self.database.counters.aborted(self.kind)
        failed = self._participants.roll_back(reason) if self._participants else []
        if failed and self._value is not None:
            try:
                invalidate(self.database, self._value.write_pointers, left_to=", ".join(failed))
            except Exception as error:
                if reason is not None:
                    reason.add_note(f"besides, transaction {self._value.id} could not be made invalid: {error}")
        self._forget()
        self._end(State.ABORTED)

    def _forget(self) -> None:
        if self._value is None or self.kind == "read":
            return
        kind, own = self.kind, self._value.id
        # What cannot be undone now becomes invalid at its deadline; the abort itself always succeeds.
        try:
            self._session.call(self.database.dialect.abort, kind=kind, transaction=own)
        except ExportQueueError:
            self._session.drop()  # a lock of its server session goes with it, and does not stay with the pool

    def _end(self, state: State) -> None:
        self._move(state)
        self.buffer = WriteBuffer(self.database.limits)
        self._session.close()
