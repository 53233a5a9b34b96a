"""A machine that works on a store and on its model at once, in two processes that may die at any moment."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, ClassVar
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.model.expected import STRONG, WEAK, Cell, Kind, Layer, Model, Tx
from tests.model.mortal import Crash, Life, live
from tests.model.seen import Seen, all_rows, differences, entries_of, look
from tests.model.world import World

from export_queue.core.client import Level, Retry, Store, TransactionContext
from export_queue.core.errors import (
    AlreadyCommitted,
    CommitOutcomeUnknown,
    ExportQueueError,
    RegistrationLost,
    SnapshotTooOld,
)
from export_queue.core.maintenance import maintain
from export_queue.core.queue import Position, bucket, remove_entries, remove_span
from export_queue.core.store import Span, cleanup
from export_queue.core.transactions import OpenTransaction, Transaction, observe, prune, sweep

DAY = 24 * 3600.0

rows, columns = st.sampled_from([b"a", b"a", b"b"]), st.sampled_from([b"x", b"x", b"y"])
tables = st.sampled_from(["rows", "rows", "rows", "rows", "cells", "cells", "free", "brief"])
cells = st.tuples(tables, rows, columns)
flags = st.booleans()
processes, numbers = st.integers(0, 1), st.integers(0, 9)
tokens = st.sampled_from(["t", "u"])

SPANS: list[dict[str, Any]] = [{}, {"prefix": b"b"}, {"start": b"b"}, {"stop": b"b"}, {"columns": [b"x"]}, {"limit": 1}]
READS = {
    "get": (cells,),
    "get_many": (tables, st.lists(st.tuples(rows, columns), max_size=3)),
    "scan": (tables, st.sampled_from(SPANS)),
    "versions": (cells,),
    "level": (st.sampled_from(list(Level)),),
}
WRITES = {
    "set": (cells,),
    "delete": (cells,),
    "delete_row": (tables, rows),
    "add": (st.sampled_from(["k", "l"]), flags, flags),
    "notify": (rows,),
    "id": (),
}
WORK = READS | WRITES


def _weighted(names: list[str]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), *WORK[name]))


works = st.lists(_weighted([*WORK, "get", "set", "set", "set", "add"]), min_size=1, max_size=4)

CrashPlan = tuple[int, int, bool] | None
"""If not 0: at which SQL transaction the process dies, right after it has taken effect, or, where a server can be made
to do so, at which change the server ends the session in the middle of one. If 0: after how many moments the process
dies. At last, whether everything that is in progress then comes to its deadline."""
crashes: st.SearchStrategy[CrashPlan] = st.builds(
    lambda is_due, changes, moments, passes: (changes, moments, passes == 3) if is_due == 4 else None,
    st.integers(0, 4),
    st.sampled_from([0, 0, 0, 1, 1, 1, 2, 2, 3, 5]),
    st.sampled_from([*range(16), *range(40)]),
    st.integers(0, 3),
)

STEPS: dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]] = {
    "work": (
        6,
        {
            "number": numbers,
            "begin": st.tuples(
                st.sampled_from(["short", "short", "long", "read"]),
                st.sampled_from([30.0, 30.0, 1.0, 3600.0]),
                st.sampled_from([None, None, None, "t", "u"]),
                flags,
            ),
            "work": works,
            "then": st.sampled_from(["go on", "go on", "give away", "checkpoint"]),
        },
    ),
    "end": (4, {"number": numbers, "how": st.sampled_from(["commit", "commit", "commit", "commit again", "abort"])}),
    "run": (2, {"token": st.sampled_from([None, "t", "u"]), "work": works}),
    "process_notifications": (2, {}),
    "drain": (1, {"number": numbers, "some": flags}),
    "hold_snapshot": (1, {}),
    "ask": (1, {"number": numbers}),
    "close_token": (1, {"token": st.sampled_from(["t", "u"]), "generation": st.sampled_from([None, 1, 2])}),
    "time_passes": (
        3,
        {
            "seconds": st.sampled_from([*[0.001, 1.001, 31.0, 61.0] * 3, -1.0, 3601.0, -7200.0, DAY + 1, 40 * DAY]),
            "number": numbers,
        },
    ),
    "sweep": (1, {}),
    "prune": (1, {"limit": st.sampled_from([1000, 1, 2])}),
    "maintain": (
        2,
        {"age": st.sampled_from([0.0, 0.0, 0.0, 3600.0]), "keep": st.sampled_from([(DAY, 30 * DAY), (1.0, 60.0)])},
    ),
}
"""Steps of a process: how often each is taken, and what it is given."""
ALWAYS = {"process": processes, "crash": crashes}
# One strategy: among several rules, hypothesis would leave some out of each example, which mostly need each other.
steps = st.sampled_from([name for name, (weight, _) in STEPS.items() for _ in range(weight)]).flatmap(
    lambda name: st.tuples(st.just(name), st.fixed_dictionaries(STEPS[name][1] | ALWAYS))
)

Effect = Callable[[Model, Seen], object]
"""Something that a step may have done before it died; it is False if what is seen rules that out."""


class Ended(Exception):
    """A long transaction has found that it cannot go on."""


class Process:
    """A process with the store open, and the observers of two columns."""

    def __init__(self, machine: StoreMachine) -> None:
        self.store = machine.world.open()
        self.store.database.swept_at = math.inf  # sweeping is a step of its own
        self.store._observed._clock = lambda: 0.0  # columns are observed from the beginning
        self.life: Life = live(self.store)
        for table, column in (STRONG, WEAK):
            self.store.observe(
                table, column, machine.observer(table), "strong" if (table, column) == STRONG else "weak"
            )
        self.store._observers._random = random.Random(7)


class StoreMachine(RuleBasedStateMachine):
    """Each rule is one step of a process; ``world`` says where."""

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
                process.life.bury()
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
        process.life.bury()
        self.world.wait_for_end(process.life)
        seen = look(self.watch)
        found = []
        for done in range(len(self.doubt) + 1):
            model = deepcopy(self.model)
            if all(effect(model, seen) is not False for effect in self.doubt[:done]):
                model.die(number, by_row=self.world.by_row)
                self.adopt(model, seen)
                found.append((differences(model, seen, self.watch, by_row=self.world.by_row), model))
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
        assert len(unknown) <= 1 or not self.world.by_row, unknown
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
        for again in range(2):
            before = self.everything()
            assert sweep(store.database) == self.model.sweep(self.world.now())
            assert prune(store.database) == self.model.prune(1000)
            maintain(store.database, snapshot_age=0)
            self.forget(self.model, DAY, 30 * DAY)
            self.check()
            assert not again or self.everything() == before, "recovering twice is not recovering once"
        seen = look(self.watch)
        assert not seen.active
        assert not seen.invalid
        assert not seen.excluded or not self.world.by_row

    def everything(self) -> dict[str, list[Any]]:
        with self.watch.database.read() as work:
            return all_rows(work)

    def check(self) -> None:
        """Compare all there is with the model."""
        found = differences(self.model, look(self.watch), self.watch, by_row=self.world.by_row)
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
        value = opened._value
        if value is None or tx.snapshot is not None:
            return
        if tx.kind == "read":
            oldest = min(self.model.active, default=None) if opened._settled else None
            assert value.id > self.last_id if oldest is None else value.id == oldest
            self.model.start_reading(tx, value.id)
        else:
            self.drawn(value.id)
            self.model.start(tx, value.id, self.world.now())
            if not self.world.has_clock:
                tx.deadline_ms = self.model.active[value.id].deadline_ms = value.deadline_ms
            assert tx.deadline_ms == value.deadline_ms
        assert opened.view.low == tx.low

    def drawn(self, own: int) -> None:
        """Ids only grow (I5)."""
        assert own > self.last_id
        self.last_id = own

    def do(self, tx: Tx, context: TransactionContext, work: list[Any]) -> bool:
        """Do some work; False if the transaction has found that it cannot go on."""
        for name, *arguments in work:
            if tx.kind == "read" and name in ("set", "delete", "delete_row", "add", "notify", "id"):
                continue
            try:
                getattr(self, f"do_{name}")(tx, context, *arguments)
            except (SnapshotTooOld, RegistrationLost) as error:
                self.sync(tx, context._transaction)
                self.may_fail(tx, error)
                return False
            self.sync(tx, context._transaction)
        return True

    def may_fail(self, tx: Tx, error: ExportQueueError) -> None:
        if isinstance(error, SnapshotTooOld):
            assert tx.low < self.horizon()  # never of one that a row registers: see differences()
        else:
            assert tx.kind == "long"
            assert not self.model.is_registered(tx)

    def horizon(self) -> int:
        with self.watch.database.read() as work:
            return cleanup.horizon(work)

    def do_id(self, tx: Tx, context: TransactionContext) -> None:
        assert context.id == context._transaction._value.id

    def do_level(self, tx: Tx, context: TransactionContext, level: Level) -> None:
        context.level = tx.level = level

    def do_get(self, tx: Tx, context: TransactionContext, cell: Cell) -> None:
        found = context.table(cell[0]).get(*cell[1:])
        self.sync(tx, context._transaction)
        assert found == self.model.value_of(tx, cell), cell

    def do_get_many(self, tx: Tx, context: TransactionContext, table: str, wanted: list[tuple[bytes, bytes]]) -> None:
        found = context.table(table).get_many(wanted)
        self.sync(tx, context._transaction)
        expected = {place: self.model.value_of(tx, (table, *place)) for place in wanted}
        assert found == {place: value for place, value in expected.items() if value is not None}

    def do_scan(self, tx: Tx, context: TransactionContext, table: str, span: dict[str, Any]) -> None:
        found = list(context.table(table).scan(**span))
        self.sync(tx, context._transaction)
        wanted = [
            (row, column, value)
            for row, column, value in self.model.scan(tx, table)
            if row.startswith(span.get("prefix", b""))
            and row >= span.get("start", b"")
            and row < span.get("stop", b"z")
            and column in span.get("columns", [column])
        ]
        assert found == wanted[: span.get("limit")]
        options = context.table(table)._options
        paged = list(context._transaction.scan_cells(options.number, Span(), page=1, ttl_ms=options.ttl_ms))
        assert paged == list(self.model.scan(tx, table))

    def do_versions(self, tx: Tx, context: TransactionContext, cell: Cell) -> None:
        found = context.table(cell[0]).versions(*cell[1:])
        self.sync(tx, context._transaction)
        while found and found[-1] is None:
            found.pop()
        assert found == self.model.versions_of(tx, cell), cell

    def do_set(self, tx: Tx, context: TransactionContext, cell: Cell) -> None:
        self.written += 1
        value = b"" if self.written % 7 == 0 else b"%d" % self.written
        context.table(cell[0]).set(*cell[1:], value)
        self.model.set(tx, cell, value)

    def do_delete(self, tx: Tx, context: TransactionContext, cell: Cell) -> None:
        context.table(cell[0]).delete(*cell[1:])
        self.model.set(tx, cell, None)

    def do_delete_row(self, tx: Tx, context: TransactionContext, table: str, row: bytes) -> None:
        context.table(table).delete_row(row)
        self.sync(tx, context._transaction)
        for found, column, _ in list(self.model.scan(tx, table)):
            if found == row:
                self.model.set(tx, (table, row, column), None)

    def do_add(self, tx: Tx, context: TransactionContext, key: str, exclusive: bool, is_gone: bool) -> None:
        self.written += 1
        context.queue("q").add(key, None if is_gone else self.written, exclusive=exclusive, replace=True)
        self.model.add(tx, key.encode(), None if is_gone else b"%d" % self.written, exclusive=exclusive)

    def do_notify(self, tx: Tx, context: TransactionContext, row: bytes) -> None:
        context.table(WEAK[0]).notify(row, WEAK[1])
        tx.writes_to.notes.add((WEAK[0], row, WEAK[1]))

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
        self, process: int, kind: Kind, seconds: float, token: str | None, settled: bool, crash: CrashPlan
    ) -> None:
        with self.in_process(process, crash) as store:
            if kind == "long":
                self._begin_long(store, seconds * 2)
            elif kind == "read":
                opened = OpenTransaction(store.database, kind="read", settled=settled)
                self.handles[self.new_tx("read", process=process).number] = TransactionContext(store, opened)
            else:
                self._begin_short(process, store, seconds, token)

    def _begin_short(self, process: int, store: Store, seconds: float, token: str | None) -> None:
        generation, has_committed, result = self.model.token_state(token or "")
        try:
            opened = OpenTransaction(store.database, timeout=seconds, token=token)
        except AlreadyCommitted as error:
            assert has_committed
            told = error.result
            assert told == result
            return
        assert not has_committed
        chosen = None if token is None else (token, generation)
        tx = self.new_tx("short", process=process, seconds=seconds, token=chosen, request=opened.request)
        self.handles[tx.number] = TransactionContext(store, opened)

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
                pointer = context._transaction.value.own[-1]
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
                self._commit(tx, lambda: handle._transaction.commit(result), result)

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
            self.doubt = [lambda model, seen: model.end(model.txs[at])]
        else:
            self.doubt = [lambda model, seen: self._committed(model, seen, at, result)]
        try:
            own = commit()
        except ExportQueueError as error:
            forgotten = request is not None and request.int >> 80 < self.model.forgotten_ms
            unknown = {CommitOutcomeUnknown} if forgotten and RegistrationLost in reasons else set()
            found, shown = type(error), repr(error)
            assert found in reasons | unknown, f"{shown}, expected {reasons or 'a commit'}"
            self.model.end(tx)
        else:
            assert not reasons, f"committed, expected {reasons}"
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
            handle._transaction.abort()
        self.model.end(tx)
        del self.handles[at]

    # --- work that is one call

    def run(self, process: int, token: str | None, work: list[Any], crash: CrashPlan) -> None:
        generation, has_committed, stored = self.model.token_state(token or "")
        chosen = None if token is None else (token, generation)
        called: list[Tx] = []
        result = {"n": self.written}

        def function(context: TransactionContext) -> Any:
            tx = self.new_tx("short", process=process, token=chosen, request=context.request)
            called.append(tx)
            assert self.do(tx, context, work)
            at = tx.number
            if tx.has_written():
                self.doubt = [lambda model, seen: self._committed(model, seen, at, result)]
            else:
                self.doubt = [lambda model, seen: model.end(model.txs[at])]
            return result

        with self.in_process(process, crash) as store:
            found = store.run(function, token=token, retry=Retry(attempts=1))
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
            (process,) = [n for n, one in enumerate(self.processes) if one.store is context._catalogue]
            tx = self.new_tx("short", process=process, request=context.request)
            self.sync(tx, context._transaction)
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
            self.snapshots.append((observe(store.database), frozenset(self.model.committed)))
            del self.snapshots[:-3]

    def drain(self, process: int, number: int, some: bool, crash: CrashPlan) -> None:
        with self.in_process(process, crash) as store:
            if self.snapshots and number % 2:
                snapshot, seen = self.snapshots[number % len(self.snapshots)]
            else:
                snapshot, seen = observe(store.database), frozenset(self.model.committed)
            queue = store._queue("q")
            found = entries_of(store, snapshot, queue)
            assert found == self.model.entries_in(seen)
            if not found:
                return
            places = sorted(Position(bucket(key, queue.buckets), key, seq) for key, seq in found)
            doomed = places[:2] if some else places
            gone = [(place.key, place.seq) for place in doomed]
            self.doubt = [lambda model, _: model.remove(seen, gone) == len(gone)]
            with store.database.begin() as work:
                if some:
                    removed = remove_entries(work, queue, doomed)
                else:
                    removed = remove_span(work, queue, snapshot, places[0], places[-1])
            assert removed == self.model.remove(seen, gone) == len(gone)

    # --- outcomes and tokens

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

    def close_token(self, token: str, process: int, generation: int | None, crash: CrashPlan) -> None:
        now = self.model.token_state(token)

        def close(model: Model, seen: Seen) -> bool:
            closed = [
                one
                for (name, g), one in model.tokens.items()
                if name == token and not one.is_closed and generation in (None, g)
            ]
            for one in closed:
                one.is_closed = True
            return bool(closed)

        with self.in_process(process, crash) as store:
            state = store.token(token)
            assert (state.generation, state.committed, state.result) == now
            self.doubt = [close]
            found = store.close_token(token, generation=generation)
            assert found == close(self.model, None)  # type: ignore[arg-type]

    # --- time and clean-up

    def sweep(self, process: int, crash: CrashPlan) -> None:
        now = self.world.now()
        with self.in_process(process, crash) as store:
            self.doubt = [lambda model, _: model.sweep(now)]
            assert sweep(store.database) == self.model.sweep(now)

    def prune(self, process: int, limit: int, crash: CrashPlan) -> None:
        with self.in_process(process, crash) as store:
            self.doubt = [lambda model, _: model.prune(limit)]
            assert prune(store.database, limit=limit) == self.model.prune(limit)

    def forget(self, model: Model, keep_outcomes: float, keep_tokens: float) -> int:
        now = self.world.now()
        model.forget_outcomes(now - int(keep_outcomes * 1000))
        return 0 if math.isinf(keep_tokens) else model.forget_tokens(now - int(keep_tokens * 1000))

    def maintain(self, process: int, age: float, keep: tuple[float, float], crash: CrashPlan) -> None:
        now = self.world.now()
        outcomes, tokens = keep if self.world.has_clock else (DAY, 30 * DAY)
        with self.in_process(process, crash) as store:
            forget = self.forget
            self.doubt = [
                lambda model, _: model.sweep(now),
                lambda model, _: model.prune(1000),
                lambda model, _: forget(model, outcomes, math.inf),
                lambda model, _: forget(model, outcomes, tokens),
            ]
            report = maintain(store.database, snapshot_age=age, keep_outcomes=outcomes, keep_tokens=tokens)
            assert report.swept == self.model.sweep(now)
            assert report.pruned == self.model.prune(1000)
            assert report.tokens == self.forget(self.model, outcomes, tokens)
            assert not report.busy
            assert not report.more

    @invariant()
    def is_as_expected(self) -> None:
        self.looked += 1
        if self.watch is not None and self.looked % self.look_every == 0:
            self.check()
