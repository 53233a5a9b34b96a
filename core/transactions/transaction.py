"""One transaction, from its first read to its end."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar
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
    SnapshotTooOld,
    StoreUnavailable,
    TransactionEnded,
    TransactionsInProgress,
    TransactionTimeout,
    clock_of,
)
from export_queue.core.retry import Retry
from export_queue.core.store import (
    ALL_QUEUES,
    AnySnapshot,
    Cell,
    CommitCall,
    Database,
    Handle,
    Snapshot,
    StagedMeanwhile,
    StartCall,
    Version,
    Writes,
    identity_of,
    new_request,
    queries,
)
from export_queue.core.transactions.buffer import AddedKey, WriteBuffer
from export_queue.core.transactions.idempotency import (
    as_json,
    check_idempotency_key,
    committed_result,
    idempotency_state,
)
from export_queue.core.transactions.invalid_ids import expire_if_due
from export_queue.core.transactions.outcomes import ask_outcome
from export_queue.core.transactions.participants import Participant, Participants
from export_queue.core.transactions.sessions import SLOW_SECONDS, BoundSession, PooledSession, Session
from export_queue.core.transactions.snapshots import name_transactions, settled_snapshot, unfinished_below
from export_queue.core.transactions.value import OPEN, TRANSITIONS, Level, State, Transaction

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")

_NO_QUEUE = -1
"""Number of no queue: only cells are read."""
NO_READER = 0
"""Load of no subscription: nobody waits for a transaction that adds no entries and writes no cells."""
ANSWER_SECONDS = 10.0
"""Time after its time-out that a transaction waits for an answer before it treats the connection as dead."""
WRITE_ONLY_TRIES = 20
"""Repetitions of a commit that has read nothing, if transactions with greater ids committed first."""
STAGE_TRIES = 20
"""Attempts of a flush, if another process flushes the same rows at the same time."""

OpenKind = Literal["read", "short", "long", "bound"]


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit, as the process that made it knows it."""

    id: int
    """0 if there was nothing to commit."""
    entries: Sequence[tuple[int, int, bytes, bytes | None]] | None
    """What it added: number of the queue, the key's hash, key, value; None if others may have added more."""


KnownKeys = Sequence[tuple[frozenset[str], Any]]
"""Files, and an array of the hashes of their keys."""
BEFORE_COMMIT: list[Callable[[Database, int, KnownKeys, float], None]] = []
"""Functions that other rooms run before the commit of a long transaction; each may run repeatedly.

Arguments: the store, the transaction's id, the keys that this process has staged in files, and the seconds to wait for
an answer.
"""


class OpenTransaction:
    """A transaction in progress.

    A short transaction takes its snapshot at its first read, which registers nothing, and its id in the commit. If the
    id is asked for earlier, it is drawn and registered then; a snapshot that has been taken stays.

    :param kind: ``short``: writes are buffered until the commit; ``long``: writes are staged in the store before the
        commit, for work that spans processes; ``bound``: the commit writes in the user's own SQL transaction, which the
        user ends; ``read``: nothing is written and there is no id.
    :param settled: for ``read``: use a snapshot below every id in progress, to which no later commit can add.
    :param timeout: seconds from the first read until the commit is refused.
    :param idempotency_key: identifies the unit of work; a second commit under it is refused (I14).
    :param bound: for ``bound``: the user's SQL transaction.
    :param load: for ``long``: number of the subscription of which this is the first load. It adds to nothing else.
    :param queues: for ``long``: ids of the only queues that it may add to, so that readers of others need not wait.
    :param mirrors: for ``long``: what it mirrors, as in :meth:`settled_below`, if that is known from its beginning.
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
        load: int | None = None,
        queues: Iterable[str] | None = None,
        mirrors: str | None = None,
    ) -> None:
        self._timeout_ms = database.limits.timeout_ms(timeout, long=kind == "long")
        self._seconds = self._timeout_ms / 1000 + ANSWER_SECONDS
        slow_seconds = min(SLOW_SECONDS, self._timeout_ms / 10_000)
        session: Session = bound or PooledSession(database, seconds=self._seconds, slow_seconds=slow_seconds)
        self.database = database
        self._store_id = identity_of(database).store_id
        self.bound = bound
        self.buffer = WriteBuffer(database.limits)
        self.kind: OpenKind = kind
        self.request: UUID = new_request()
        self.idempotency_key = idempotency_key
        self._session = session
        self._state, self._is_open = State.NEW, True
        self._level = Level.SNAPSHOT
        self._id: int | None = None
        self._snapshot: AnySnapshot | None = None
        self._deadline_ms = 0
        self._begun_at: float | None = None
        """Start of the time-out, by this process's clock; None before it, and if another process began."""
        self._value: Transaction | None = None
        """The transaction as others may see it: with an id, and a snapshot made of ids."""
        self._settled = settled
        self._load = load
        self._mirrors = mirrors
        self._queues = None if queues is None else tuple(sorted(set(queues)))
        self.generation = 1
        """1, plus how often the idempotency key had been closed when the transaction began."""
        self._participants = Participants()
        self.known_keys: list[tuple[frozenset[str], Any]] = []
        """Files that this process has staged, and hashes of their keys."""
        self._is_resumed = False
        self.committed: Committed | None = None
        """None before the commit, and if it is not known whether it has taken effect."""
        self._process = os.getpid()
        self.after_abort: Callable[[float], None] | None = None
        """Called after an abort, to delete files outside of the store."""
        if idempotency_key is not None:
            check_idempotency_key(idempotency_key)
            state = idempotency_state(database, idempotency_key, seconds=self._seconds)
            if state.committed:
                raise AlreadyCommitted(idempotency_key, state.result)
            self.generation = state.generation

    @classmethod
    def resume(
        cls, database: Database, value: Transaction, *, idempotency_key: str | None = None, generation: int = 1
    ) -> OpenTransaction:
        """Continue a long transaction that another process began.

        :param idempotency_key: the unit of work, if this process will commit it.
        :param generation: :attr:`generation` of the transaction when it began.
        :raises InvalidArgument: the transaction is short, so that its writes are in the process that began it.
        """
        if value.kind != "long":
            raise InvalidArgument(f"only a long transaction may travel, found transaction {value.id}, {value.kind}")
        opened = cls(database, kind="long")
        opened.request = UUID(value.request)
        opened._is_resumed = True
        opened._queues = value.queues
        opened.idempotency_key, opened.generation = idempotency_key, generation
        opened._level = value.level
        opened._become(value)
        opened._move(State.IN_PROGRESS)
        return opened

    def require_open(self) -> None:
        """Check that the transaction has not ended, and belongs to this process.

        :raises TransactionEnded: it has been committed or aborted, or this process is a forked child.
        """
        if self._process != os.getpid():
            raise TransactionEnded(
                f"the transaction belongs to process {self._process}, from which process {os.getpid()} was forked"
            )
        if not self._is_open:
            raise TransactionEnded(f"the transaction has ended: {self._state}")

    def _require_writable(self) -> None:
        self.require_open()
        self._session.require_turn()
        if self.kind == "read":
            raise InvalidArgument(
                "expected a transaction that may write, found a read-only one",
                hint="leave out read_only=True and settled=True",
            )

    def _require_cells(self) -> None:
        self._require_writable()
        if self._load is not None:
            raise InvalidArgument("a first load adds entries to its subscription and writes nothing else")

    def _move(self, state: State) -> None:
        assert state in TRANSITIONS[self._state], f"{self._state} → {state}"
        self._state, self._is_open = state, state in OPEN

    @property
    def state(self) -> State:
        """The state of the transaction, as this process knows it."""
        return self._state

    @property
    def is_resumed(self) -> bool:
        """Whether another process began the transaction."""
        return self._is_resumed

    @property
    def value(self) -> Transaction:
        """The transaction as a value, for other processes and participants; draws the id if there is none yet.

        :raises InvalidArgument: the transaction is short and has read.
        """
        self.require_open()
        if self._value is None:
            if self._snapshot is not None:
                raise InvalidArgument(
                    "the transaction has read, in a snapshot that nobody else can read in",
                    hint="let participants join before the first read",
                )
            self._start()
        assert self._value is not None
        return self._value

    @property
    def id(self) -> int:
        """The transaction's id; draws it if there is none yet."""
        self.require_open()
        if self._id is None:
            if self._snapshot is None:
                self._start()
            else:  # the snapshot stays, because the transaction has read in it
                self._id = self._draw()[0]
        assert self._id is not None
        return self._id

    @property
    def snapshot(self) -> AnySnapshot:
        """The snapshot for reads from the store."""
        self.require_open()
        if self._snapshot is None:
            self._begin()
        assert self._snapshot is not None
        return self._snapshot

    @property
    def level(self) -> Level:
        """Which of its own writes the transaction reads."""
        return self._level

    @level.setter
    def level(self, level: Level) -> None:
        self.require_open()
        self._level = Level(level)
        if self._value is not None:
            self._become(replace(self._value, level=self._level))

    def _begin(self, first: Cell | None = None) -> Version | None:
        """Take the snapshot, and read a first cell in the same round trip."""
        self._begun_at = time.monotonic()
        if self.kind in ("long", "bound"):
            return self._start(first)
        found: Version | None = None
        if self._settled:
            self._snapshot = settled_snapshot(self.database, _NO_QUEUE)  # first loads write no cells
        else:
            expire_if_due(self.database, seconds=self._seconds)
            self._snapshot, taken_ms, found = self._session.call(self.database.dialect.steps.begin, first)
            self._deadline_ms = taken_ms + self._timeout_ms
        self._move(State.IN_PROGRESS)
        return found

    def _start(self, first: Cell | None = None) -> Version | None:
        """Draw the id, take a snapshot made of ids, and read a first cell in the same round trip."""
        self._begun_at = time.monotonic()
        if self.kind != "bound":
            expire_if_due(self.database, seconds=self._seconds)
        number, excluded, self._deadline_ms, found = self._draw(first)
        self._become(
            Transaction(
                id=number,
                snapshot=Snapshot(number - 1, excluded),
                write_pointers=(number,),
                kind=self.kind,
                deadline_ms=self._deadline_ms,
                request=self.request.hex,
                level=self._level,
                queues=self._queues,
            )
        )
        self._move(State.IN_PROGRESS)
        return found

    def _draw(self, first: Cell | None = None) -> tuple[int, tuple[int, ...], int, Version | None]:
        assert self.kind != "read"
        call = StartCall(
            kind=self.kind,
            request=self.request,
            timeout_ms=self._timeout_ms,
            client=self.database.client,
            first=first,
            load=self._load,
            mirrors=self._mirrors,
            queues=None if self._queues is None else json.dumps(self._queues),
        )
        return self._session.call(self.database.dialect.steps.start, call)

    def _become(self, value: Transaction) -> None:
        self._value, self._id, self._deadline_ms = value, value.id, value.deadline_ms
        self._snapshot = value.stored_snapshot

    def first_read(self, cell: Cell) -> Version | None:
        """Take the snapshot together with the read of a cell. Return None if there is a snapshot already."""
        return self._begin(cell) if self._snapshot is None else None

    def read(
        self,
        step: Callable[Concatenate[Handle, AnySnapshot, Arguments], Answer],
        *plain: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Answer:
        """Run a step that reads in the snapshot."""
        if self.kind != "long":
            return self._session.call(step, self._snapshot or self.snapshot, *plain, **named)
        _ = self.value  # begun

        def read(connection: Handle) -> Answer:
            while True:
                found = step(connection, self.snapshot, *plain, **named)
                # After the read: staged rows stay while the transaction is in progress, so the read found them (I4).
                pointers = self.database.dialect.steps.pointers(connection, self.value.id)
                if pointers == self.value.write_pointers:
                    return found
                self._become(replace(self.value, write_pointers=pointers))  # another process has made a checkpoint

        return self._session.call(read)

    @cached_property
    def aged_from_ms(self) -> int:
        """The time at which this transaction measures the age of versions, the same for all of its reads.

        The age of a version follows from its id, which contains the time its transaction began. Ids run ahead of the
        clock after that has stepped forward and back, so ages are measured by the clock: at the snapshot, but not
        before the time up to which clean-up has deleted expired versions.

        :raises RegistrationLost: the transaction is long and has ended.
        """
        _ = self.snapshot  # taken
        if self.kind != "long":
            taken_ms = self._deadline_ms - self._timeout_ms
            if self._settled:
                taken_ms = self._session.call(self.database.dialect.steps.now)
            with self.database.read() as work:
                return max(taken_ms, queries.cleanup.expiry_ms(work))
        number = self.value.id
        with self.database.read() as work:  # the same in all processes: clean-up waits for a long transaction
            started_ms = queries.registrations.started_ms(work, number)
            if started_ms is None:
                raise RegistrationLost(f"transaction {number} has ended")
            # Own writes must not be expired, even if ids lag behind the clock.
            return max(min(started_ms, number // 1_000_000), queries.cleanup.expiry_ms(work))

    def settled_below(self, retry: Retry, *, load: int, mirrors: str | None = None) -> Snapshot:
        """Wait until every smaller id has ended; return a snapshot of exactly what has been committed under them.

        :param retry: how often, and for how long, to check.
        :param load: number of the reader whose entries are read in the snapshot. First loads of others are ignored,
            and transactions that may not add to its queue.
        :param mirrors: what the transaction mirrors. Older ones that mirror the same are aborted, because their
            programs may be gone; if the commit of one is in progress, it is waited for.
        :raises TransactionsInProgress: some have not ended.
        """
        own = self.value.id

        def older() -> list[int]:
            if mirrors is None:
                return []
            with self.database.begin() as work:
                return queries.registrations.note_mirror(work, own, mirrors)

        snapshot = self._wait_for_older(retry, load, older, reads_cells=False)
        return Snapshot(own - 1, tuple(i for i in snapshot.excluded if i < own))

    def read_settled(self, retry: Retry) -> None:
        """Begin a first load: wait until every smaller id has ended, then read what is committed at that time.

        No later commit has a smaller id. The snapshot is a new one, because a transaction with a smaller id may have
        written under write pointers greater than this id.

        Older first loads of the same subscription are aborted, because their programs may be gone. If the commit of one
        is in progress, it is waited for. First loads of other subscriptions are ignored.

        :param retry: how often, and for how long, to check.
        :raises TransactionsInProgress: some have not ended.
        """
        assert self._load is not None
        own, load = self.value.id, self._load

        def older() -> list[int]:
            with self.database.read() as work:
                return queries.registrations.older_loads(work, own, load)

        snapshot = self._wait_for_older(retry, load, older, reads_cells=True)
        others = Snapshot(snapshot.read_pointer, tuple(i for i in snapshot.excluded if i != own))
        self._become(replace(self.value, snapshot=others))

    def _wait_for_older(
        self, retry: Retry, load: int, replaced: Callable[[], list[int]], *, reads_cells: bool
    ) -> Snapshot:
        """Wait until every smaller id has ended, and return the snapshot that shows it.

        :param load: the reader whose first load, or whose entries, matter.
        :param replaced: finds older transactions that this one takes the place of; they are aborted.
        :param reads_cells: whether it reads more than that.
        """
        own = self.value.id

        def check() -> Snapshot:
            expire_if_due(self.database, seconds=self._seconds)
            for number in replaced():
                self._session.call(self.database.dialect.steps.abort, kind="long", transaction=number)
            snapshot, unfinished = unfinished_below(self.database, own, load=load, reads_cells=reads_cells)
            if unfinished:
                raise self._waits_for(unfinished)
            return snapshot

        return retry.call(check, worth_repeating=lambda error: isinstance(error, TransactionsInProgress))

    def _waits_for(self, unfinished: Sequence[int]) -> TransactionsInProgress:
        with self.database.read() as work:
            known = [one for one in queries.monitoring.holders(work) if one.id in unfinished]
        named = name_transactions(known) or f"{unfinished[0]}, started at {clock_of(unfinished[0])}"
        return TransactionsInProgress(f"transaction {self._id} waits for {len(unfinished)} older ones: {named}")

    def write_cell(self, cell: Cell, value: bytes | None, *, conflict_key: bytes | None) -> None:
        """Buffer a write to a cell; None deletes it."""
        self._require_cells()
        self.buffer.put_cell(cell, value)
        if conflict_key is not None:
            self.buffer.keys.add(conflict_key)

    def add_entries(self, entries: Mapping[AddedKey, bytes | None], *, conflict_keys: Collection[bytes] = ()) -> None:
        """Buffer entries, all or none."""
        self._require_writable()
        self.buffer.put_entries(entries, conflict_keys)

    def require_queue(self, queue_id: str) -> None:
        """Check that the transaction may add to a queue.

        :raises InvalidArgument: it was begun for other queues only.
        """
        if self._queues is not None and queue_id not in self._queues:
            raise InvalidArgument(
                f"the transaction may add to {', '.join(map(repr, self._queues)) or 'no queue'}, found {queue_id!r}",
                hint="name it when the transaction begins: queues=[…]",
            )

    def has_entries(self, queue: int) -> bool:
        """Return whether this or another process has added entries to a queue in the transaction."""
        if any(entry[0] == queue for entry in self.buffer.entries):
            return True
        if self._id is None:
            return False
        with self.database.read() as work:
            return queries.registrations.has_staged(work, self._id, queue)

    def notify(self, cell: Cell) -> None:
        """Set a notification on a cell when the transaction commits."""
        self._require_cells()
        self.buffer.notifications.add(cell)

    def acknowledge(self, cell: Cell, *, conflict_key: bytes | None) -> None:
        """Remove the notifications on a cell that are visible in the snapshot when the transaction commits.

        :param conflict_key: of two overlapping transactions that pass the same key, at most one commits.
        """
        self._require_cells()
        _ = self.snapshot  # decides which notifications are visible
        self.buffer.acknowledged.add(cell)
        if conflict_key is not None:
            self.buffer.keys.add(conflict_key)

    def join(self, participant: Participant) -> None:
        """Add a participant, which is rolled back if this transaction does not commit.

        :raises InvalidArgument: the transaction is read-only, bound or resumed.
        """
        self._require_writable()
        if self.kind == "bound":
            raise InvalidArgument("a transaction that is bound to its user's SQL transaction has no participants")
        if self._is_resumed:
            raise InvalidArgument(
                "a resumed transaction has no participants: its end would not call them",
                hint="let the process join them that holds the transaction: with store.transaction(long=True)",
            )
        self._participants.join(participant, self.value)

    def checkpoint(self) -> None:
        """Make later writes new versions, which do not replace earlier ones. The snapshot stays.

        All versions commit or roll back together. A short transaction draws a new write pointer only if it has
        participants, because nobody else could see it. The checkpoint of a long transaction takes effect in its other
        processes at their next read or flush.
        """
        self._require_writable()
        if self.kind == "long":
            self.flush()
        else:
            self.buffer.checkpoint()
        if self.kind == "long" or self._participants:
            pointer = self._session.call(self.database.dialect.steps.checkpoint, self.value.id)
            self._become(replace(self.value, write_pointers=(*self.value.write_pointers, pointer)))
            self._participants.update(self.value)

    def flush(self) -> None:
        """Stage the buffered writes of a long transaction in the store, so that they need not fit into memory.

        :raises InvalidArgument: the transaction is not long.
        :raises RegistrationLost: it has ended, or its time-out has passed.
        :raises StoreUnavailable: there was no answer; the transaction is aborted, as after an interruption.
        """
        if self.kind != "long":
            raise InvalidArgument("a short transaction is sent as a whole; flush() is for transaction(long=True)")
        value = self.value
        if self.buffer:
            try:
                with self._session.turn():
                    pointers = self._stage(value.id, self.buffer.writes())
                    self._become(replace(value, write_pointers=pointers))
                    self.buffer.sent()
            except BaseException as error:
                if not _is_verdict(error):
                    # The flush may still arrive later, unnoticed by this process. After the abort it is refused.
                    self.abort(error)
                raise

    def _stage(self, transaction: int, writes: Writes) -> tuple[int, ...]:
        steps = self.database.dialect.steps
        for _ in range(STAGE_TRIES):
            number = self._session.call(steps.draw)
            pointers = self._session.call(
                steps.stage, transaction, writes, number, store_id=self._store_id, load=self._load
            )
            if pointers:
                return pointers
        unavailable = StoreUnavailable(
            f"transaction {transaction}: {STAGE_TRIES} times another process has flushed the same rows meanwhile",
            hint="let different processes write different cells and keys",
        )
        unavailable.sent = False
        raise unavailable

    def commit(self, result: Any = None) -> int | None:
        """Commit. If the answer is lost, ask the store for the outcome.

        :param result: a JSON value that is stored with the idempotency key.
        :returns: the transaction's id; None if there was nothing to commit.
        :raises ConflictError: another transaction has written a key of this one.
        :raises CommitOutcomeUnknown: the connection broke and the store cannot be asked.
        :raises AlreadyCommitted: another transaction has committed under the idempotency key.
        :raises AfterCommitFailed: the transaction has committed, but a participant failed afterwards.
        """
        self.require_open()
        if self._is_resumed:  # an error here leaves it open, because another process may be able to commit it
            self._prepare()
        try:
            if self._participants:
                self.buffer.keys |= self._participants.persist()
            if self._has_nothing_to_commit():
                number = self._id
                self._forget()  # costs no flush to disk
                self._move(State.COMMITTING)
                self.committed = Committed(number or 0, ())
                self._end(State.COMMITTED)
                return number
            if self.kind == "long" and not self._is_resumed:
                self._prepare()
            call = self._call(result)
            self._move(State.COMMITTING)
            committed = self._send(call)
            self.committed = Committed(committed, None if self.kind == "long" else call.writes.entries)
            self._end(State.COMMITTED)
        except BaseException as error:
            self.abort(error)
            overrun = self.overrun(error)
            if overrun is None:
                raise
            raise overrun from error
        failure = self._participants.after_commit()
        self._participants.raise_interruption()
        if failure is not None:
            raise AfterCommitFailed(f"transaction {committed} has committed; afterwards: {failure}") from failure
        return committed

    def overrun(self, error: BaseException) -> TransactionTimeout | None:
        """If the time-out explains an error of a short transaction, return an error with both durations.

        The new error is not transient if the function took longer than the time-out without being delayed by the store,
        because the next run would take as long. Durations are measured by the clock of this process, so that a step of
        the store's clock has no effect.

        :param error: the error of a step. After the deadline this may also be a lost registration or an old snapshot.
        """
        if self._begun_at is None or self.kind in ("long", "bound"):
            return None
        allowed, taken = self._timeout_ms / 1000, time.monotonic() - self._begun_at
        if taken <= allowed or not isinstance(error, TransactionTimeout | RegistrationLost | SnapshotTooOld):
            return None
        held_up = self._session.held_up_seconds
        name = "the transaction" if self._id is None else f"transaction {self._id}"
        timeout = TransactionTimeout(
            f"{name} took {taken:.1f} s from its first read, and may take {allowed:g} s (its time-out); "
            + (f"the store held it up for {held_up:.2f} s" if held_up else "the store did not hold it up")
        )
        timeout.transient = taken - held_up <= allowed
        return timeout

    def _prepare(self) -> None:
        self.flush()
        self._take_steps()

    def _take_steps(self) -> None:
        assert self._id is not None
        for step in BEFORE_COMMIT:
            step(self.database, self._id, self.known_keys, self._seconds)

    def _has_nothing_to_commit(self) -> bool:
        only_read = self.kind in ("read", "short") or self._id is None
        return only_read and not self.buffer and self.idempotency_key is None and not self._participants

    def _call(self, result: Any) -> CommitCall:
        kind = self.kind
        assert kind != "read"
        return CommitCall(
            kind="write" if self._snapshot is None and kind != "bound" else kind,
            request=self.request,
            store_id=self._store_id,
            transaction=self._id,
            snapshot=self._snapshot if self._value is None else self._value.snapshot,
            deadline_ms=self._deadline_ms,
            writes=self.buffer.writes(),
            idempotency_key=self.idempotency_key,
            generation=self.generation,
            result=None if self.idempotency_key is None else as_json(result, self.idempotency_key),
            load=self._load,
        )

    def _send(self, call: CommitCall) -> int:
        begun, counters = time.monotonic(), self.database.counters
        try:
            number = self._send_and_ask(call)
        except TransactionTimeout:
            counters.timed_out(call.kind)
            raise
        except Exception as error:
            counters.refused(call.kind, type(error))
            raise
        counters.committed(call.kind, time.monotonic() - begun)
        if self.kind == "long":  # other processes may have staged entries for it
            self.database.hints.tell(call.store_id, {ALL_QUEUES})
        elif call.writes.entries and call.kind != "bound":  # a bound transaction is not committed yet
            self.database.hints.tell(call.store_id, {entry[0] for entry in call.writes.entries})
        return number

    def _send_and_ask(self, call: CommitCall) -> int:
        try:
            return self._send_repeatedly(call)
        except AlreadyCommitted as error:
            result = committed_result(self.database, error.idempotency_key, call.generation, seconds=self._seconds)
            raise AlreadyCommitted(error.idempotency_key, result) from error
        except (StoreUnavailable, RegistrationLost) as error:
            # The commit may have taken effect before its answer was lost.
            if self.kind == "bound":
                raise  # the user's SQL transaction decides the outcome
            if isinstance(error, StoreUnavailable) and not error.sent:
                raise  # the commit was not sent
            return self._ask(error)

    def _send_repeatedly(self, call: CommitCall) -> int:
        for left in range(WRITE_ONLY_TRIES, -1, -1):
            try:
                return self._session.call(self.database.dialect.steps.commit, call)
            except ConflictError:
                if call.snapshot is not None or call.kind == "bound" or not left:
                    raise
            except StagedMeanwhile:
                if not left:
                    raise
                self._take_steps()
        raise AssertionError("unreachable")

    def _ask(self, reason: ExportQueueError) -> int:
        """After the commit's answer was lost, ask for the outcome on a new connection."""
        self._session.drop()
        try:
            decided = ask_outcome(self.database, self.request)
        except Exception as error:  # whatever it is, the commit may have taken effect
            self._end(State.UNKNOWN)
            raise CommitOutcomeUnknown(
                f"the commit of request {self.request} got no answer, and the store cannot be asked: {error}"
            ) from reason
        if decided.status == "committed" and decided.id is not None:
            return decided.id
        if isinstance(reason, RegistrationLost):
            raise reason
        raise CommitRefused(f"the commit of request {self.request} did not take effect: {reason.message}") from reason

    @contextlib.contextmanager
    def abort_on_error(self) -> Iterator[None]:
        """Run a block, and abort if it raises. The error has a note of each failure of the abort."""
        try:
            yield
        except BaseException as error:  # an interruption also
            self.abort(error)
            raise

    def abort(self, reason: BaseException | None = None) -> None:
        """Discard all writes and forget the id. After the end this does nothing.

        If a participant cannot undo its writes, the id becomes invalid permanently, so that no snapshot shows them. If
        a commit was interrupted, its outcome is found out first.

        :param reason: why; each failure of the abort is added to it as a note.
        :raises StoreUnavailable: no reason is given, and the end of a long transaction cannot be sent to the store.
        """
        if self._process != os.getpid():
            return  # the process that began it ends it
        if self._state is State.COMMITTED:
            self._report_commit(reason)  # an interruption may have prevented it
        elif self._is_open or (self._state is State.COMMITTING and self._is_undone(reason)):
            self._undo(reason)

    def _is_undone(self, reason: BaseException | None) -> bool:
        """Return whether a commit that ended with an error has had no effect.

        A signal handler may interrupt the commit at any time, before or after the answer.
        """
        if self.kind == "bound" or _is_verdict(reason):
            return True
        try:
            self._session.drop()
            decided = ask_outcome(self.database, self.request)
        except BaseException as error:
            self._end(State.UNKNOWN)
            if reason is None or not isinstance(error, Exception):
                raise
            reason.add_note(
                f"the commit of request {self.request} was interrupted and may have taken effect; "
                f"the store cannot be asked: {error}"
            )
            return False
        if decided.status == "refused":
            return True
        self.committed = Committed(decided.id or 0, None)
        self._end(State.COMMITTED)
        if reason is not None:
            reason.add_note(f"transaction {decided.id} had been sent before the interruption, and has committed")
        self._report_commit(reason)
        return False

    def _report_commit(self, reason: BaseException | None) -> None:
        failure = self._participants.after_commit()
        if failure is not None and reason is not None:
            reason.add_note(f"besides, a participant failed after the commit: {failure}")

    def _undo(self, reason: BaseException | None) -> None:
        if self._is_open and self.kind != "read":
            self.database.counters.aborted(self.kind)
        failed = self._participants.roll_back(reason)
        try:
            self._forget(failed)
        except ExportQueueError as error:
            if reason is None:
                raise
            if self._value is not None:
                what = "made invalid" if failed else "aborted in the store, which is tried again at a later start"
                reason.add_note(f"besides, transaction {self._value.id} could not be {what}: {error}")
        else:
            if self.after_abort is not None:
                self.after_abort(self._seconds)
        finally:
            self._end(State.ABORTED)
        self._participants.raise_interruption()

    def _forget(self, failed: Sequence[str] = ()) -> None:
        """Forget the id. Make it invalid if participants failed to undo what they wrote under it."""
        if self._id is None or self.kind == "read":
            return
        kind, number = self.kind, self._id
        kept = (number,) if self._value is None else self._value.write_pointers
        left_to = ", ".join(failed)
        abort = self.database.dialect.steps.abort
        # A short transaction leaves only its id, which becomes invalid at its deadline if it cannot be forgotten now.
        try:
            if not failed:
                self._session.call(abort, kind=kind, transaction=number)
                return
            self._session.call(abort, kind=kind, transaction=number, kept=kept, left_to=left_to)
        except BaseException as error:  # also an interruption
            self._session.drop()  # releases a lock of its server session, which must not stay in the pool
            if kind == "long":
                self.database.left_behind.add(number)
            if failed:  # on a new connection, because nothing else will make the id invalid
                self._session.call(abort, kind=kind, transaction=number, kept=kept, left_to=left_to)
            if not isinstance(error, ExportQueueError) or (kind == "long" and not failed):
                raise

    def _end(self, state: State) -> None:
        self._move(state)
        self.buffer = WriteBuffer(self.database.limits)


def _is_verdict(error: BaseException | None) -> bool:
    """Return whether a step that ended with this error has had no effect and will have none."""
    return isinstance(error, ExportQueueError) and not (isinstance(error, StoreUnavailable) and error.sent)
