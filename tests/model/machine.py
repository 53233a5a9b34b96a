"""A machine that works on a store and on its model at once, in two processes that may die at any moment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from hypothesis.stateful import rule
from tests.model.choices import DAY, CrashPlan, steps
from tests.model.crashing import Ended
from tests.model.expected import STRONG, Kind, Layer, Model, Tx
from tests.model.seen import Seen, entries_of, look
from tests.model.working import WorkingMachine
from tests.support.contexts import catalogue_of, context_of, opened_by

from export_queue import (
    AlreadyCommitted,
    CommitOutcomeUnknown,
    Level,
    RegistrationLost,
    Retry,
    Store,
    Transaction,
    TransactionContext,
    bucket,
)
from export_queue.core.maintenance import Patience, maintain
from export_queue.core.queue import Position, remove_entries, remove_span
from export_queue.core.transactions import OpenTransaction, expire, prune, take_snapshot


class StoreMachine(WorkingMachine):
    """Each rule is one step of a process; ``world`` says where."""

    @rule(step=steps)
    def step(self, step: tuple[str, dict[str, Any]]) -> None:
        name, arguments = step
        getattr(self, name)(**arguments)

    def time_passes(self, seconds: float, number: int, **_: object) -> None:
        if self.world.has_clock:
            self.world.move(int(seconds * 1000))
        elif self.model.active:
            owners = sorted({one.owner for one in self.model.active.values()})
            self.world.pass_deadline(self.model, self.watch, owners[number % len(owners)])

    # --- beginning

    def _begin(
        self, process: int, kind: Kind, seconds: float, idempotency_key: str | None, settled: bool, crash: CrashPlan
    ) -> None:
        with self.in_process(process, crash) as store:
            if kind == "long":
                self._begin_long(store, seconds * 2)
            elif kind == "read":
                opened = OpenTransaction(store.database, kind="read", settled=settled)
                self.handles[self.new_tx("read", process=process).number] = context_of(store, opened)
            else:
                self._begin_short(process, store, seconds, idempotency_key)

    def _begin_short(self, process: int, store: Store, seconds: float, idempotency_key: str | None) -> None:
        generation, has_committed, result = self.model.idempotency_state(idempotency_key or "")
        if has_committed:
            with pytest.raises(AlreadyCommitted) as refused:
                OpenTransaction(store.database, timeout=seconds, idempotency_key=idempotency_key)
            assert refused.value.result == result
            return
        opened = OpenTransaction(store.database, timeout=seconds, idempotency_key=idempotency_key)
        chosen = None if idempotency_key is None else (idempotency_key, generation)
        tx = self.new_tx("short", process=process, seconds=seconds, idempotency_key=chosen, request=opened.request)
        self.handles[tx.number] = context_of(store, opened)

    def _begin_long(self, store: Store, seconds: float) -> None:
        value = store.begin(timeout=seconds)
        tx = self.new_tx("long", process=None, seconds=seconds, request=UUID(value["request"]), buffer=Layer())
        self.sync(tx, OpenTransaction.resume(store.database, Transaction.from_json(value)))
        self.handles[tx.number] = value

    # --- going on: a short one in its process, a long one in any

    def _work(self, tx: Tx, work: list[Any]) -> None:
        if not self.do(tx, self.handles[tx.number], work):
            self._abort(tx, self.processes[tx.process or 0].store)

    @contextmanager
    def resumed(self, tx: Tx, store: Store) -> Iterator[TransactionContext]:
        """Go on with a long one; what is written is staged at the end."""
        value = self.handles[tx.number]
        tx.level = Level(value["level"])
        number = tx.number

        def flushed(model: Model, seen: Seen) -> bool:
            model.flush(model.txs[number])
            return True

        try:
            with store.resume(value) as context:
                yield context
                self.doubt = [flushed]
            self.model.flush(tx)
        except RegistrationLost as error:
            self.may_fail(tx, error)
            self._abort(tx, store)
        except Ended:
            self._abort(tx, store)

    def work(
        self,
        number: int,
        process: int,
        begin: tuple[Kind, float, str | None, bool],
        work: list[Any],
        then: str,
        crash: CrashPlan,
    ) -> None:
        """Do some work in one of those that are open, or in a new one."""
        chosen = number % (len(self.handles) + 1)
        if chosen == len(self.handles):
            self._begin(process, *begin, crash if number % 2 else None)
            if chosen >= len(self.handles):
                return  # it has not come to be
        tx = self.open_tx(chosen)
        with self.in_process(process if tx.process is None else tx.process, crash) as store:
            if tx.kind == "long":
                self._work_long(tx, store, work, then)
            else:
                self._work(tx, work)
                if tx.kind == "short" and tx.is_open and then == "checkpoint":
                    self.handles[tx.number].checkpoint()
                    self.model.checkpoint(tx, None)

    def _work_long(self, tx: Tx, store: Store, work: list[Any], then: str) -> None:
        at = tx.number
        with self.resumed(tx, store) as context:
            if not self.do(tx, context, work):
                raise Ended
            if then != "go on":
                self.doubt = [lambda model, seen: model.flush(model.txs[at])]
                if then == "checkpoint":
                    context.checkpoint()
                else:
                    self.handles[at] = context.to_json()
                self.model.flush(tx)
            if then == "checkpoint":
                pointer = opened_by(context).value.write_pointers[-1]
                self.drawn(pointer)
                self.model.checkpoint(tx, pointer)

    # --- ending

    def end(self, number: int, process: int, how: str, crash: CrashPlan) -> None:
        if not self.handles:
            return
        tx = self.open_tx(number)
        handle = self.handles[tx.number]
        with self.in_process(process if tx.process is None else tx.process, crash) as store:
            if how == "abort":
                self._abort(tx, store)
            elif tx.kind == "long":
                self._commit(tx, lambda: store.commit(handle), None)
                assert tx.request is not None
                if how == "commit again" and self.model.outcomes[tx.request] is not None:
                    assert store.commit(handle) == tx.pointers[0]
            else:
                result = {"n": self.written}
                self._commit(tx, lambda: opened_by(handle).commit(result), result)

    def _commit(self, tx: Tx, commit: Callable[[], int | None], result: Any) -> None:
        request, at = tx.request, tx.number
        if tx.kind != "long" and not tx.has_written():
            self.doubt = [lambda model, seen: model.end(model.txs[at])]
            assert commit() == (tx.pointers[0] if tx.pointers else None)
            self.model.end(tx)
            del self.handles[at]
            return
        reasons = self.model.reasons(tx, now=self.world.now(), horizon=self.horizon())
        if reasons:
            if RegistrationLost in reasons and request is not None and request.int >> 80 < self.model.forgotten_ms:
                reasons.add(CommitOutcomeUnknown)
            self.doubt = [lambda model, seen: model.end(model.txs[at])]
            with pytest.raises(tuple(reasons)):
                commit()
            self.model.end(tx)
        else:
            self.doubt = [lambda model, seen: self._committed(model, seen, at, result)]
            own = commit()
            assert own is not None
            if tx.pointers:
                assert own == tx.pointers[0]
            else:
                self.drawn(own)
            self.model.commit(tx, own, now=self.world.now(), result=result)
        del self.handles[at]

    def _committed(self, model: Model, seen: Seen, number: int, result: Any) -> bool:
        tx = model.txs[number]
        own = seen.outcomes.get(tx.request) if tx.request is not None else None
        if own is None:
            return False
        model.commit(tx, own, now=self.world.now(), result=result)
        return True

    def _abort(self, tx: Tx, store: Store) -> None:
        handle, at = self.handles[tx.number], tx.number
        self.doubt = [lambda model, seen: model.end(model.txs[at])]
        if tx.kind == "long":
            store.abort(handle)
        else:
            opened_by(handle).abort()
        self.model.end(tx)
        del self.handles[at]

    # --- work that is one call

    def run(self, process: int, idempotency_key: str | None, work: list[Any], crash: CrashPlan) -> None:
        generation, has_committed, stored = self.model.idempotency_state(idempotency_key or "")
        chosen = None if idempotency_key is None else (idempotency_key, generation)
        called: list[Tx] = []
        result = {"n": self.written}

        def function(context: TransactionContext) -> Any:
            tx = self.new_tx("short", process=process, idempotency_key=chosen, request=context.request)
            called.append(tx)
            assert self.do(tx, context, work)
            at = tx.number
            if tx.has_written():
                self.doubt = [lambda model, seen: self._committed(model, seen, at, result)]
            else:
                self.doubt = [lambda model, seen: model.end(model.txs[at])]
            return result

        with self.in_process(process, crash) as store:
            found = store.run(function, idempotency_key=idempotency_key, retry=Retry(attempts=1))
            self.doubt = []
            if has_committed:
                assert (called, found) == ([], stored)
            else:
                assert found == result
                self._has_committed(called[0], result)

    def _has_committed(self, tx: Tx, result: Any) -> None:
        if not tx.has_written():
            self.model.end(tx)
            return
        assert tx.request is not None
        own = look(self.watch).outcomes[tx.request]
        assert own is not None
        if not tx.pointers:
            self.drawn(own)
        self.model.commit(tx, own, now=self.world.now(), result=result)

    def observer(self, table: str) -> Callable[[TransactionContext, bytes, bytes], None]:
        """Make the observer of a column: it counts, and tells the queue."""

        def function(context: TransactionContext, row: bytes, column: bytes) -> None:
            cell = (table, row, column)
            assert cell in self.model.due()
            (process,) = [n for n, one in enumerate(self.processes) if catalogue_of(one.store) is context._catalogue]
            tx = self.new_tx("short", process=process, request=context.request)
            self.sync(tx, opened_by(context))
            tx.acknowledged.add(cell)
            if (table, column) == STRONG:
                tx.writes_to.keys.add(("note", *cell))
            self.observed.append(tx)
            assert self.do(
                tx, context, [("get", ("seen", row, b"n")), ("set", ("seen", row, b"n")), ("add", "k", False, False)]
            )
            at = tx.number
            self.doubt = [lambda model, seen: self._committed(model, seen, at, None)]

        return function

    def process_notifications(self, process: int, crash: CrashPlan) -> None:
        self.observed = []
        with self.in_process(process, crash) as store:
            due = self.model.due()
            done = store.process_notifications(limit=1)
            self.doubt = []
            assert (done.done, done.conflicted, done.failed, done.skipped) == (bool(due), 0, 0, 0)
            for tx in self.observed:
                self._has_committed(tx, None)
            assert done.left == len(self.model.due())

    # --- the queue

    def hold_snapshot(self, process: int, crash: CrashPlan) -> None:
        with self.in_process(process, crash) as store:
            self.snapshots.append((take_snapshot(store.database), frozenset(self.model.committed)))
            del self.snapshots[:-3]

    def drain(self, process: int, number: int, some: bool, crash: CrashPlan) -> None:
        with self.in_process(process, crash) as store:
            if self.snapshots and number % 2:
                snapshot, seen = self.snapshots[number % len(self.snapshots)]
            else:
                snapshot, seen = take_snapshot(store.database), frozenset(self.model.committed)
            queue = catalogue_of(store).queue("q")
            found = entries_of(store, snapshot, queue)
            assert found == self.model.entries_in(seen)
            if not found:
                return
            ids = sorted(Position(bucket(key, queue.buckets), key, seq) for key, seq in found)
            doomed = ids[:2] if some else ids
            gone = [(place.key, place.seq) for place in doomed]
            self.doubt = [lambda model, _: model.remove(seen, gone) == len(gone)]
            with store.database.begin() as work:
                if some:
                    removed = remove_entries(work, queue, doomed)
                else:
                    removed = remove_span(work, queue, snapshot, ids[0], ids[-1])
            assert removed == self.model.remove(seen, gone) == len(gone)

    # --- outcomes and idempotency keys

    def ask(self, number: int, process: int, crash: CrashPlan) -> None:
        if not self.model.txs:
            return
        tx = self.model.txs[len(self.model.txs) - 1 - number % len(self.model.txs)]
        if tx.request is None:
            return
        at, request, now = tx.number, tx.request, self.world.now()
        own = self.model.outcomes.get(request)
        is_forgotten = request.int >> 80 < self.model.forgotten_ms

        def refused(model: Model, seen: Seen) -> bool:
            if model.txs[at].refused_ms is None:
                model.txs[at].refused_ms = now
            return True

        with self.in_process(process, crash) as store:
            self.doubt = [refused] if tx.is_open else []
            try:
                found = store.outcome(request)
            except CommitOutcomeUnknown:
                assert is_forgotten
            else:
                assert found.id == own
                assert found.status == ("refused" if own is None else "committed")
                assert own is not None or not is_forgotten
            if tx.is_open and tx.refused_ms is None:
                tx.refused_ms = now

    def close_idempotency_key(
        self, idempotency_key: str, process: int, generation: int | None, crash: CrashPlan
    ) -> None:
        now = self.model.idempotency_state(idempotency_key)

        def close(model: Model, seen: Seen) -> bool:
            closed = [
                one
                for (name, g), one in model.idempotency_keys.items()
                if name == idempotency_key and not one.is_closed and generation in (None, g)
            ]
            for one in closed:
                one.is_closed = True
            return bool(closed)

        with self.in_process(process, crash) as store:
            state = store.idempotency(idempotency_key)
            assert (state.generation, state.committed, state.result) == now
            self.doubt = [close]
            found = store.close_idempotency_key(idempotency_key, generation=generation)
            assert found == close(self.model, None)  # type: ignore[arg-type]

    # --- time and clean-up

    def expire(self, process: int, crash: CrashPlan) -> None:
        now = self.world.now()
        with self.in_process(process, crash) as store:
            self.doubt = [lambda model, _: model.expire(now)]
            assert expire(store.database) == self.model.expire(now)

    def prune(self, process: int, limit: int, crash: CrashPlan) -> None:
        with self.in_process(process, crash) as store:
            self.doubt = [lambda model, _: model.prune(limit)]
            assert prune(store.database, limit=limit) == self.model.prune(limit)

    def maintain(self, process: int, age: float, keep: tuple[float, float], crash: CrashPlan) -> None:
        now = self.world.now()
        outcomes, idempotency_keys = keep if self.world.has_clock and age < min(keep) else (DAY, 30 * DAY)
        with self.in_process(process, crash) as store:
            forget = self.forget
            self.doubt = [
                lambda model, _: model.expire(now),
                lambda model, _: model.prune(1000),
                lambda model, _: forget(model, outcomes, math.inf),
                lambda model, _: forget(model, outcomes, idempotency_keys),
            ]
            report = maintain(
                store.database,
                patience=Patience(seconds=age, between_calls=0),
                keep_outcomes=outcomes,
                keep_idempotency_keys=idempotency_keys,
            )
            assert report.expired == self.model.expire(now)
            assert report.pruned == self.model.prune(1000)
            assert report.idempotency_keys == self.forget(self.model, outcomes, idempotency_keys)
            assert not report.busy
            assert not report.more
