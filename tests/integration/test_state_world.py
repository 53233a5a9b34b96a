"""The state of a queue against a dictionary, over any sequence of ordinary operations (I16)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from export_queue import Candidates, MemorySink, Store, drain
from export_queue.core.segments import compact, vacuum_segments
from export_queue.core.state import trim

KEYS = [f"k{i}" for i in range(8)]
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(0, 3), min_size=1, max_size=5)
DATA = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3), max_size=6)
HISTORY_MS = 5000
EXAMPLES = int(os.environ.get("EXPORT_QUEUE_WORLD_EXAMPLES", "18"))


class StateWorld(RuleBasedStateMachine):
    """One queue of two units with a state; a model of all committed entries by key and sequence."""

    opens: Callable[[ExitStack, Callable[[], int]], Store]

    @initialize(subscriptions=st.sampled_from([None, ["one"]]))
    def begin(self, subscriptions: list[str] | None) -> None:
        self.stack = ExitStack()
        self.now_ms = 1_800_000_000_000
        self.store = type(self).opens(self.stack, lambda: self.now_ms)
        self.store.configure_queue(
            "q", buckets=4, buckets_per_range=2, subscriptions=subscriptions, state=True, history=HISTORY_MS / 1000
        )
        self.reader = "q" if subscriptions is None else "q/one"
        self.entries: dict[str, dict[int, Any]] = {}
        self.cuts: list[int] = []
        self.open: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.sink = MemorySink()

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    def note(self, number: int, changes: dict[str, Any]) -> None:
        for key, value in changes.items():
            self.entries.setdefault(key, {})[number] = value
        self.cuts.append(number)

    def expected(self, cut: int | None = None) -> dict[str, Any]:
        found = {}
        for key, versions in self.entries.items():
            seqs = [seq for seq in versions if cut is None or seq <= cut]
            if seqs and versions[max(seqs)] is not None:
                found[key] = versions[max(seqs)]
        return found

    @rule(changes=CHANGES)
    def add(self, changes: dict[str, Any]) -> None:
        with self.store.transaction() as tx:
            tx.queue("q").add_many(changes.items())
            number = tx.id
        self.note(number, changes)

    @rule(changes=CHANGES, later=CHANGES, as_file=st.booleans())
    def add_in_a_long_transaction(self, changes: dict[str, Any], later: dict[str, Any], as_file: bool) -> None:
        with self.store.transaction(long=True) as tx:
            number = tx.id
            self.put(tx, changes, as_file=as_file)
            tx.flush()
            for key, value in later.items():
                tx.queue("q").add(key, value, replace=True)
        self.note(number, changes | later)

    @precondition(lambda self: len(self.open) < 2)
    @rule(changes=CHANGES, as_file=st.booleans())
    def begin_a_long_transaction(self, changes: dict[str, Any], as_file: bool) -> None:
        value = self.store.begin()
        with self.store.resume(value) as tx:
            self.put(tx, changes, as_file=as_file)
        self.open.append((value, changes))

    @precondition(lambda self: self.open)
    @rule(commits=st.booleans())
    def end_a_long_transaction(self, commits: bool) -> None:
        value, changes = self.open.pop()
        if commits:
            self.note(self.store.commit(value), changes)
        else:
            self.store.abort(value)

    def put(self, tx: Any, changes: dict[str, Any], *, as_file: bool) -> None:
        if not as_file:
            tx.queue("q").add_many(changes.items())
            return
        values = pa.array([*changes.values()], pa.int64())
        tx.queue("q").add_batch(pa.table({"key": [*changes], "value": values}))

    @precondition(lambda self: not self.open)
    @rule(data=DATA, scope=st.sampled_from([None, "k1", "k"]))
    def mirror(self, data: dict[str, Any], scope: str | None) -> None:
        before, start = self.expected(), scope or ""
        data = {key: value for key, value in data.items() if key.startswith(start)}
        with self.store.transaction(long=True) as tx:
            number = tx.id
            report = tx.queue("q").mirror(data.items(), scope=scope, max_deletes=1.0)
        of_scope = {key: value for key, value in before.items() if key.startswith(start)}
        changes = {key: value for key, value in data.items() if before.get(key) != value}
        gone = dict.fromkeys(of_scope.keys() - data.keys())
        self.note(number, changes | gone)
        assert report.deleted == len(gone)
        assert report.new + report.changed == len(changes)
        assert report.unchanged == len(data) - len(changes)
        assert {key: value for key, value in self.expected().items() if key.startswith(start)} == data

    @rule(seconds=st.sampled_from([1, 4, 20]))
    def time_passes(self, seconds: int) -> None:
        self.now_ms += seconds * 1000

    @rule()
    def trim(self) -> None:
        trim(self.store.database, limit=1000)

    @rule(of_state=st.booleans(), least=st.sampled_from([2, 3]))
    def compact(self, of_state: bool, least: int) -> None:
        queue_id = "q/@state" if of_state else self.reader
        compact(self.store.database, queue_id, wanted=Candidates(least=least))

    @rule()
    def drain(self) -> None:
        drain(self.store, self.reader, self.sink, sink_name="memory")
        found = {key.decode(): int(value) for (_, key), value in self.sink.records().items()}
        assert found == self.expected()

    @precondition(lambda self: self.reader != "q" and not self.open)
    @rule(as_function=st.booleans(), meanwhile=CHANGES, merges=st.booleans())
    def load_a_new_reader(self, as_function: bool, meanwhile: dict[str, Any], merges: bool) -> None:
        self.store.subscribe("q", "new")
        with self.store.transaction() as tx:
            tx.queue("q").add_many(meanwhile.items())
            number = tx.id
        self.note(number, meanwhile)
        source: Any = (lambda: self.expected().items()) if as_function else "state"
        self.store.first_load("q/new", source=source)
        if merges:
            compact(self.store.database, "q/@state", wanted=Candidates(least=2))
            vacuum_segments(self.store.database, grace_seconds=0.0, zombie_seconds=0.0, hidden_seconds=0.0)
        sink = MemorySink()
        drain(self.store, "q/new", sink, sink_name="memory")
        assert {key.decode(): int(value) for (_, key), value in sink.records().items()} == self.expected()
        self.store.unsubscribe("q", "new")

    @rule(buckets=st.sampled_from([3, 4, 5]), moves=st.booleans())
    def alter(self, buckets: int, *, moves: bool) -> None:
        self.store.alter_queue("q", buckets=buckets, guard="seq")
        if moves:
            compact(self.store.database, "q/@state", older_layouts=True)

    @invariant()
    def is_equal(self) -> None:
        state = self.store.state("q")
        assert dict(state.scan()) == self.expected()
        assert state.count() == len(self.expected())
        for key in KEYS:
            assert state.get(key) == self.expected().get(key)

    @invariant()
    def former_states_are_kept(self) -> None:
        oldest = (self.now_ms - HISTORY_MS) * 1_000_000
        for cut in self.cuts[-3:]:
            if cut >= oldest and not any(int(value["id"]) < cut for value, _ in self.open):
                state, expected = self.store.state("q"), self.expected(cut)
                assert dict(state.scan(as_of=cut)) == expected
                assert {key: state.get(key, as_of=cut) for key in KEYS} == {key: expected.get(key) for key in KEYS}


def in_a_file(stack: ExitStack, clock: Callable[[], int]) -> Store:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    store = stack.enter_context(Store.open(f"sqlite:///{folder}/store.db", clock=clock))
    store.create()
    return store


@pytest.mark.timeout(1800)  # much longer with more examples, or next to other work
@pytest.mark.parametrize(
    "examples",
    [
        pytest.param(12, id="few", marks=pytest.mark.brief),
        pytest.param(EXAMPLES, id="many", marks=pytest.mark.full("more sequences of the same steps")),
    ],
)
def test_a_state_is_what_was_committed_last(examples: int) -> None:
    StateWorld.opens = staticmethod(in_a_file)
    health = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        StateWorld,
        settings=settings(max_examples=examples, stateful_step_count=20, suppress_health_check=health, deadline=None),
    )
