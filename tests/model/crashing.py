"""A machine whose two processes may die at any moment; what they do is its subclasses'."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant
from tests.model.choices import DAY, CrashPlan
from tests.model.expected import STRONG, WEAK, Kind, Model, Tx
from tests.model.mortal import Crash, Life, live
from tests.model.seen import Seen, all_rows, differences, look
from tests.model.world import World
from tests.support.contexts import catalogue_of
from tests.support.patience import AT_ONCE

from export_queue import Store, TransactionContext
from export_queue.core.maintenance import maintain
from export_queue.core.store.queries import cleanup
from export_queue.core.store.registration import STAYED_MS
from export_queue.core.transactions import OpenTransaction, Snapshot

Effect = Callable[[Model, Seen], object]
"""Something that a step may have done before it died; it is False if what is seen rules that out."""


class Ended(Exception):
    """A long transaction has found that it cannot go on."""


class Process:
    """A process with the store open, and the observers of two columns."""

    def __init__(self, machine: CrashingMachine) -> None:
        self.store = machine.world.open()
        self.store.database.expired_at = math.inf  # sweeping is a step of its own
        catalogue_of(self.store).observed._clock = lambda: 0.0  # columns are observed from the beginning
        self.life: Life = live(self.store)
        for table, column in (STRONG, WEAK):
            self.store.observe(
                table, column, machine.observer(table), "strong" if (table, column) == STRONG else "weak"
            )
        self.store._observers._random = random.Random(7)


class CrashingMachine(RuleBasedStateMachine):
    """A store, its model, and two processes; ``world`` says where."""

    world: ClassVar[World]
    look_every: ClassVar[int] = 1
    """After how many steps everything is compared."""

    def __init__(self) -> None:
        super().__init__()
        self.watch: Store | None = None
        self.looked = 0

    @initialize()
    def open(self) -> None:
        self.world.reset()
        self.watch = self.world.open()
        self.watch.database.expired_at = math.inf
        self.model = Model(ttl_ms=int(self.world.ttl * 1000))
        self.handles: dict[int, Any] = {}
        self.snapshots: list[tuple[Any, frozenset[int]]] = []
        self.last_id = self.written = 0
        self.doubt: list[Effect] = []
        self.observed: list[Tx] = []
        self.processes = [Process(self), Process(self)]

    def teardown(self) -> None:
        if self.watch is not None:
            for process in self.processes:
                process.life.end()
                self.world.wait_for_end(process.life)
            self.watch.close()

    # --- crashes

    @contextmanager
    def in_process(self, number: int, crash: CrashPlan) -> Iterator[Store]:
        """Run a step, in which the process may die; if it was to die later, it dies behind the step."""
        process = self.processes[number]
        self.doubt = []
        if crash is not None and not crash[0]:
            process.life.arm(moments=crash[1])
        elif crash is not None and self.world.cuts_sessions:
            process.life.is_cut = True
            self.world.cut_after(crash[0] - 1)
        elif crash is not None:
            process.life.arm(commits=crash[0])
        try:
            yield process.store
        except Crash:
            self.world.deaths += 1
            self.recover(number, crash)
        else:
            if crash is not None:
                self.doubt = []
                self.recover(number, crash)

    def recover(self, number: int, crash: CrashPlan) -> None:
        """The state is that before or after the step, and recovery, twice over, leads there (I12)."""
        assert crash is not None
        self.world.cut_after(None)
        process = self.processes[number]
        process.life.end()
        self.world.wait_for_end(process.life)
        seen = look(self.watch)
        found = []
        for done in range(len(self.doubt) + 1):
            model = deepcopy(self.model)
            if all(effect(model, seen) is not False for effect in self.doubt[:done]):
                model.die(number)
                self.adopt(model, seen)
                found.append((differences(model, seen, self.watch), model))
        right = [model for difference, model in found if not difference]
        assert right, f"neither before nor after the step: {[difference for difference, _ in found]}"
        self.model = right[0]
        self.handles = {n: handle for n, handle in self.handles.items() if self.model.txs[n].is_open}
        self.processes[number] = Process(self)
        if crash[2]:
            self.recover_all(self.processes[number].store)

    def adopt(self, model: Model, seen: Seen) -> None:
        """Take over the one id that the step may have drawn before its process died."""
        unknown = sorted(set(seen.active) - set(model.active) - set(self.model.active))
        assert len(unknown) <= 1, unknown
        for pointer in unknown[:1]:
            one = seen.active[pointer]
            if pointer == one.owner:
                model.active[pointer] = deepcopy(one)
            else:
                (tx,) = (tx for tx in model.txs.values() if tx.pointers[:1] == [one.owner])
                model.checkpoint(tx, pointer)

    def recover_all(self, store: Store) -> None:
        """After all deadlines nothing is in progress or invalid any more."""
        if self.world.has_clock:
            latest = max([self.world.now(), *(one.deadline_ms for one in self.model.active.values())])
            self.world.move(latest + 1 - self.world.now())
        else:
            self.world.pass_deadline(self.model, self.watch)
        self.clean_up(store)
        self.check()
        if self.world.has_clock:
            self.world.move(STAYED_MS)  # what has a time-out of hours must be late at two looks
        for again in range(2):
            before = self.everything()
            self.clean_up(store)
            self.check()
            assert not again or self.everything() == before, "recovering twice is not recovering once"
        seen = look(self.watch)
        assert not seen.active
        assert not seen.invalid
        assert not seen.excluded

    def clean_up(self, store: Store) -> None:
        """Clean up all there is to clean up."""
        now = self.world.now()
        report = maintain(store.database, patience=AT_ONCE)
        assert report.expired == self.model.expire(now)
        assert report.pruned == self.model.prune(1000)
        assert report.idempotency_keys == self.forget(self.model, DAY, 30 * DAY)

    def everything(self) -> dict[str, list[Any]]:
        with self.watch.database.read() as work:
            return all_rows(work)

    def check(self) -> None:
        """Compare all there is with the model."""
        found = differences(self.model, look(self.watch), self.watch)
        assert not found, "\n".join(f"{what}: expected {pair[0]}, found {pair[1]}" for what, pair in found.items())

    # --- what a transaction does

    def new_tx(self, kind: Kind, *, process: int | None, seconds: float = 30.0, **options: Any) -> Tx:
        tx = Tx(len(self.model.txs), kind, int(seconds * 1000), process, **options)
        self.model.txs[tx.number] = tx
        return tx

    def open_tx(self, number: int) -> Tx:
        """Choose one of those that are open."""
        return self.model.txs[sorted(self.handles)[number % len(self.handles)]]

    def sync(self, tx: Tx, opened: OpenTransaction) -> None:
        """Note that a transaction has drawn its id or taken its snapshot."""
        if opened._snapshot is not None and tx.snapshot is None:
            if opened._value is None:
                self._has_read(tx, opened)
            else:
                self._started(tx, opened)
        if opened._id is not None and not tx.pointers and tx.kind == "short":
            self.drawn(opened._id)
            self.model.draw(tx, opened._id, self.world.now())
            if not self.world.has_clock:
                self.model.active[opened._id].deadline_ms = look(self.watch).active[opened._id].deadline_ms
        if "aged_from_ms" in vars(opened):  # since something was read that expires
            self._has_aged(tx, opened)

    def _has_aged(self, tx: Tx, opened: OpenTransaction) -> None:
        """Note the time from which a transaction counts ages: the same in all its processes, and from its snapshot."""
        if tx.aged_from_ms is None:
            tx.aged_from_ms = opened.aged_from_ms
            if self.world.has_clock:
                taken_ms = self.world.now() if opened._settled else tx.deadline_ms - tx.timeout_ms
                began_ms = min(taken_ms, tx.pointers[0] // 1_000_000) if tx.kind == "long" else taken_ms
                assert tx.aged_from_ms == max(began_ms, self.expiry_ms())
        assert tx.aged_from_ms == opened.aged_from_ms

    def expiry_ms(self) -> int:
        """The time by which clean-up may have deleted what had expired."""
        assert self.watch is not None
        with self.watch.database.read() as work:
            return cleanup.expiry_ms(work)

    def _has_read(self, tx: Tx, opened: OpenTransaction) -> None:
        """Note the snapshot of a first read, which has no id."""
        snapshot = opened.snapshot
        below = None
        if opened._settled:
            assert isinstance(snapshot, Snapshot)
            below = snapshot.read_pointer + 1
            assert below == min(self.model.active, default=below)
        self.model.take(tx, self.world.now(), below=below)
        if not self.world.has_clock:
            tx.deadline_ms = opened._deadline_ms
        assert opened._settled or tx.deadline_ms == opened._deadline_ms or tx.kind == "read"
        # It may reach further down than it must: to the last mark that clean-up has recorded.
        tx.low = snapshot.low
        assert all(tx.low <= one for one in (*self.model.active, *self.model.invalid) if one <= self.last_id)

    def _started(self, tx: Tx, opened: OpenTransaction) -> None:
        value = opened.value
        self.drawn(value.id)
        self.model.start(tx, value.id, self.world.now())
        if not self.world.has_clock:
            tx.deadline_ms = self.model.active[value.id].deadline_ms = value.deadline_ms
        assert tx.deadline_ms == value.deadline_ms
        assert opened.snapshot.low == tx.low

    def drawn(self, own: int) -> None:
        """Ids only grow (I5)."""
        assert own > self.last_id
        self.last_id = own

    @invariant()
    def is_as_expected(self) -> None:
        self.looked += 1
        if self.watch is not None and self.looked % self.look_every == 0:
            self.check()

    def forget(self, model: Model, keep_outcomes: float, keep_idempotency_keys: float) -> int:
        now = self.world.now()
        model.forget_outcomes(now - int(keep_outcomes * 1000))
        return (
            0
            if math.isinf(keep_idempotency_keys)
            else model.forget_idempotency_keys(now - int(keep_idempotency_keys * 1000))
        )

    def observer(self, table: str) -> Callable[[TransactionContext, bytes, bytes], None]:
        """Make the observer of a column."""
        raise NotImplementedError
