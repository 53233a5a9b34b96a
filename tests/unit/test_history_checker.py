"""The history checker: it finds what snapshot isolation forbids, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from export_queue.core.testing.anomalies import AnomalyKind
from export_queue.core.testing.histories import (
    Append,
    HistoryTransaction,
    Operation,
    Read,
    ReadList,
    Write,
    check_history,
)

T = HistoryTransaction


def has(key: str, *values: int) -> ReadList:
    return ReadList(key, values)


def by(session: str, *operations: Operation, at: tuple[int, int | None] | None = None, **more) -> T:  # type: ignore[no-untyped-def]
    begin, end = at or (None, None)
    return T(session=session, operations=operations, begin=begin, end=end, **more)


def append(key: str, *values: int) -> tuple[ReadList, Append]:
    """Append as a client does it that writes the list back: the last value is its own."""
    return has(key, *values[:-1]), Append(key, values[-1])


FORBIDDEN: dict[str, tuple[AnomalyKind, list[T]]] = {
    "a read of what was aborted": (
        AnomalyKind.ABORTED_READ,
        [by("a", *append("x", 1), status="aborted"), by("b", has("x", 1))],
    ),
    "a list on top of what was aborted": (
        AnomalyKind.ABORTED_READ,
        [by("a", Append("x", 1), status="aborted"), by("b", *append("x", 1, 2)), by("c", has("x", 1, 2))],
    ),
    "a register's value from an aborted transaction": (
        AnomalyKind.ABORTED_READ,
        [by("a", Write("r", 1), status="aborted", id=1), by("b", Read("r", 1))],
    ),
    "a read between two writes of one transaction": (
        AnomalyKind.INTERMEDIATE_READ,
        [by("a", *append("x", 1), Append("x", 2)), by("b", has("x", 1))],
    ),
    "a register's value that its writer wrote over": (
        AnomalyKind.INTERMEDIATE_READ,
        [by("a", Write("r", 1), Write("r", 2), id=1), by("b", Read("r", 1))],
    ),
    "a value from nowhere": (AnomalyKind.UNWRITTEN_READ, [by("a", has("x", 7))]),
    "a register's value from nowhere": (AnomalyKind.UNWRITTEN_READ, [by("a", Read("r", 7))]),
    "an own write that is not read": (AnomalyKind.OWN_READ, [by("a", *append("x", 1), has("x"))]),
    "an own blind write that is not read": (AnomalyKind.OWN_READ, [by("a", Append("x", 1), has("x"))]),
    "an own register that is not read": (AnomalyKind.OWN_READ, [by("a", Write("r", 1), Read("r", None), id=1)]),
    "a read that does not repeat": (
        AnomalyKind.OWN_READ,
        [by("a", Append("x", 1)), by("b", has("x"), has("x", 1))],
    ),
    "an own write that is read before": (AnomalyKind.OWN_READ, [by("a", has("x", 1), Append("x", 1))]),
    "a value twice": (AnomalyKind.REPEATED_VALUE, [by("a", *append("x", 1)), by("b", has("x", 1, 1))]),
    "lists of another order": (
        AnomalyKind.TORN_LIST,
        [by("a", Append("x", 1)), by("b", Append("x", 2)), by("c", has("x", 1, 2)), by("d", has("x", 2, 1))],
    ),
    "two keys written in opposite orders": (
        AnomalyKind.WRITE_CYCLE,
        [
            by("a", Append("x", 1), Append("y", 1)),
            by("b", Append("x", 2), Append("y", 2)),
            by("c", has("x", 1, 2)),
            by("d", has("y", 2, 1)),
        ],
    ),
    "two that read each other's writes": (
        AnomalyKind.INFORMATION_CYCLE,
        [by("a", *append("x", 1), has("y", 2)), by("b", *append("y", 2), has("x", 1))],
    ),
    "a list written back over another's write": (
        AnomalyKind.LOST_UPDATE,
        [by("a", *append("x", 1)), by("b", *append("x", 2)), by("c", has("x", 2))],
    ),
    "an append by the database to what had changed": (
        AnomalyKind.LOST_UPDATE,
        [by("a", *append("x", 1)), by("b", has("x"), Append("x", 2)), by("c", has("x", 1, 2))],
    ),
    "a register written over what was read before another's write": (
        AnomalyKind.LOST_UPDATE,
        [
            by("a", Write("r", 1), id=1),
            by("b", Read("r", 1), Write("r", 2), id=2),
            by("c", Read("r", 1), Write("r", 3), id=3),
        ],
    ),
    "one of two writes": (
        AnomalyKind.READ_SKEW,
        [by("a", Append("x", 1), Append("y", 1)), by("b", has("x", 1), has("y"))],
    ),
    "one of two writes by a transaction that was aborted then": (
        AnomalyKind.READ_SKEW,
        [by("a", Append("x", 1), Append("y", 1)), by("b", has("x", 1), has("y"), status="aborted")],
    ),
    "one of two writes whose outcome nobody was told": (
        AnomalyKind.READ_SKEW,
        [by("a", *append("x", 1), *append("y", 1), status="unknown"), by("b", has("x", 1), has("y"))],
    ),
    "one of two registers": (
        AnomalyKind.READ_SKEW,
        [by("a", Write("r", 1), Write("s", 1), id=1), by("b", Read("r", 1), Read("s", None))],
    ),
    "two writes in an order of each reader's own": (
        AnomalyKind.LONG_FORK,
        [
            by("a", *append("x", 1)),
            by("b", *append("y", 1)),
            by("c", has("x", 1), has("y")),
            by("d", has("x"), has("y", 1)),
        ],
    ),
    "an acknowledged write that is not seen": (
        AnomalyKind.STALE_READ,
        [by("a", *append("x", 1), at=(1, 2)), by("b", has("x"), at=(3, 4))],
    ),
    "an acknowledged write that is not seen, though one in between was": (
        AnomalyKind.STALE_READ,
        [
            by("a", *append("x", 1), at=(1, 2)),
            by("b", *append("y", 1), at=(3, 9)),
            by("c", has("y", 1), has("x"), at=(1, 8)),
        ],
    ),
    "a session that does not see its own write": (
        AnomalyKind.STALE_READ,
        [by("a", *append("x", 1)), by("a", has("x"))],
    ),
    "a snapshot before that of the session's last read": (
        AnomalyKind.STALE_READ,
        [by("a", has("x", 1)), by("b", *append("x", 1)), by("a", has("x"))],
    ),
    "a write that is seen before it began": (
        AnomalyKind.REAL_TIME,
        [by("a", has("x", 1), at=(1, 2)), by("b", *append("x", 1), at=(3, 4))],
    ),
    "an older id on top of a younger one": (
        AnomalyKind.IDS,
        [by("a", *append("x", 1), id=2), by("b", *append("x", 1, 2), id=1)],
    ),
    "an id that is not above those acknowledged before": (
        AnomalyKind.IDS,
        [by("a", has("x"), id=2, at=(1, 2)), by("b", has("y"), id=1, at=(3, 4))],
    ),
    "one id twice": (AnomalyKind.IDS, [by("a", has("x"), id=1), by("b", has("x"), id=1)]),
    "a younger register behind an older one": (
        AnomalyKind.STALE_READ,
        [by("a", Write("r", 1), id=1), by("b", Write("r", 2), id=2, at=(1, 2)), by("c", Read("r", 1), at=(3, 4))],
    ),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_an_anomaly_is_found(name: str) -> None:
    kind, history = FORBIDDEN[name]
    for order in (history, list(reversed(history)) if len({t.session for t in history}) == len(history) else history):
        verdict = check_history(order)
        assert kind in [anomaly.kind for anomaly in verdict.anomalies], verdict


ALLOWED: dict[str, list[T]] = {
    "nothing": [],
    "write skew": [by("a", has("x"), *append("y", 1), at=(1, 5)), by("b", has("y"), *append("x", 1), at=(2, 6))],
    "write skew of three": [
        by("a", has("x"), *append("y", 1)),
        by("b", has("y"), *append("z", 1)),
        by("c", has("z"), *append("x", 1)),
    ],
    "the read-only anomaly of Fekete, O'Neil and O'Neil": [
        by("a", *append("x", 1), at=(3, 4)),
        by("b", has("x"), *append("y", 2), at=(1, 9)),
        by("c", has("x", 1), has("y"), at=(5, 6)),
    ],
    "an old snapshot of a transaction that began early": [
        by("a", *append("x", 1), at=(2, 3)),
        by("b", has("x"), at=(1, 9)),
    ],
    "an unknown outcome that nobody saw": [
        by("a", *append("x", 1), status="unknown", at=(1, None)),
        by("b", has("x"), at=(5, 6)),
        by("c", *append("x", 2), at=(7, 8)),
    ],
    "an unknown outcome that somebody saw": [
        by("a", *append("x", 1), status="unknown", at=(1, None)),
        by("b", has("x"), at=(5, 6)),
        by("c", *append("x", 1, 2), at=(7, 8)),
    ],
    "blind appends that nobody saw": [
        by("a", Append("x", 1)),
        by("b", Append("x", 2), has("x", 1, 2)),
        by("c", Append("x", 3)),
        by("d", Append("x", 4)),
        by("e", has("x", 1, 2)),
    ],
    "an aborted transaction with a snapshot": [
        by("a", *append("x", 1), *append("y", 1)),
        by("b", *append("x", 1, 2), has("y", 1), status="aborted"),
        by("c", *append("x", 1, 3)),
    ],
    "own writes": [by("a", *append("x", 1), has("x", 1), Append("x", 2), has("x", 1, 2), Write("r", 1), Read("r", 1))],
    "registers overwritten blindly": [
        by("a", Write("r", 1), id=5, at=(1, 9)),
        by("b", Write("r", 2), id=3, at=(2, 8)),
        by("c", Read("r", 1), at=(10, 11)),
    ],
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_snapshot_isolation_allows_is_no_anomaly(name: str) -> None:
    history = ALLOWED[name]
    verdict = check_history(history)
    assert not verdict.anomalies, verdict
    assert verdict.transactions == len(history)


def test_an_anomaly_is_explained_by_its_smallest_cycle() -> None:
    others = [by(f"o{n}", *append("z", *range(n + 1)), at=(10 * n, 10 * n + 5)) for n in range(50)]
    skew = [
        by("a", Append("x", 1), Append("y", 2), id=7, at=(1, 900)),
        by("b", has("x", 1), has("z", *range(20)), has("y"), at=(190, 260)),
    ]
    verdict = check_history([*others, *skew])
    (found,) = verdict.anomalies
    assert (found.kind, set(found.transactions)) == (AnomalyKind.READ_SKEW, {50, 51})
    assert str(found) == (
        "read skew (G-single):\n"
        "  T50 → T51: T51 read 1 of 'x', which T50 wrote [wr]\n"
        "  T51 → T50: T51 read that key without 2 of 'y', which T50 wrote [rw]\n"
        "  T50: session a, ok, id 7, from 0.000000 s to 0.000001 s\n"
        "  T51: session b, ok, from 0.000000 s to 0.000000 s"
    )


@pytest.mark.parametrize(
    "history",
    [
        [by("a", Append("x", 1)), by("b", Append("x", 1))],
        [by("a", Append("x", 1)), by("b", Write("x", 2))],
        [by("a", at=(5, 4))],
        [by("a", at=(1, 4)), by("a", at=(3, 5))],
    ],
)
def test_what_is_no_history_is_refused(history: list[T]) -> None:
    with pytest.raises(ValueError, match="expected"):
        check_history(history)


# --- small histories of any kind, judged by trying every schedule ---------------------------------------------------

State = dict[str, tuple[int, ...]]


def is_snapshot_isolation(history: Sequence[T]) -> bool:
    """Look for an order of all starts and commits in which every read is right: the definition, by brute force."""
    unknown = [i for i, t in enumerate(history) if t.status == "unknown"]
    for choice in product([False, True], repeat=len(unknown)):
        commits = [t.status == "ok" for t in history]
        for i, chosen in zip(unknown, choice, strict=True):
            commits[i] = chosen
        if any(True for _ in schedules(history, commits, {}, {}, {})):
            return True
    return False


def schedules(
    history: Sequence[T], commits: list[bool], latest: State, snapshots: dict[int, State], ended: dict[int, None]
) -> Iterator[None]:
    if len(ended) == len(history):
        yield None
    waiting = [i for i in range(len(history)) if i not in ended]
    for i in waiting:
        t = history[i]
        before = [history[j] for j in waiting if j != i and history[j].status != "unknown"]
        if i not in snapshots:
            if any(o.session == t.session and history.index(o) < i for o in before):
                continue
            if t.begin is not None and any(o.end is not None and o.end < t.begin for o in before):
                continue
            if reads_right(t, latest):
                yield from schedules(history, commits, latest, {**snapshots, i: latest}, ended)
        else:
            written = {o.key for o in t.operations if isinstance(o, (Append, Write))} if commits[i] else set()
            if all(latest.get(key) == snapshots[i].get(key) for key in written):
                after = {**latest, **{key: final(t, key, latest) for key in written}}
                yield from schedules(history, commits, after, snapshots, {**ended, i: None})


def reads_right(t: T, state: State) -> bool:
    own: State = {}
    for o in t.operations:
        now = own.get(o.key, state.get(o.key, ()))
        if isinstance(o, ReadList) and o.values != now:
            return False
        if isinstance(o, Append):
            own[o.key] = (*now, o.value)
    return True


def final(t: T, key: str, state: State) -> tuple[int, ...]:
    return (*state.get(key, ()), *(o.value for o in t.operations if isinstance(o, Append) and o.key == key))


class Weak:
    """A database that is snapshot isolation except where it is told to be weak."""

    def __init__(self, generator: random.Random, *, clocks: bool, blind: bool) -> None:
        self.generator, self.clocks, self.blind = generator, clocks, blind
        self.versions: dict[str, list[tuple[int, ...]]] = {"x": [()], "y": [()]}
        self.step = self.value = 0
        self.open: dict[int, dict] = {}  # type: ignore[type-arg]
        self.done: list[T] = []

    def weak(self) -> bool:
        return self.generator.randint(0, 3) == 3

    def advance(self, client: int) -> None:
        self.step += 1
        t = self.open.setdefault(
            client, {"begin": self.step, "at": {k: len(v) - 1 for k, v in self.versions.items()}, "ops": [], "own": {}}
        )
        action = self.generator.randint(0, 5)
        key = "xy"[self.generator.randint(0, 1)]
        if len(t["ops"]) >= 4 or (t["ops"] and action == 5):
            self.end(client, t)
        elif action <= 2:
            self.read(t, key)
        else:
            self.append(t, key)

    def read(self, t: dict, key: str) -> None:  # type: ignore[type-arg]
        versions = self.versions[key]
        if key not in t["own"]:
            at = self.generator.randint(0, len(versions) - 1) if self.weak() else t["at"][key]
            t["own"][key] = versions[at]
            uncommitted = [o["own"][key] for o in self.open.values() if key in o["own"]]
            if uncommitted and self.generator.randint(0, 9) == 9:
                t["own"][key] = uncommitted[0]
        t["ops"].append(ReadList(key, t["own"][key]))

    def append(self, t: dict, key: str) -> None:  # type: ignore[type-arg]
        if key not in t["own"] and not self.blind:
            self.read(t, key)
        self.value += 1
        if key in t["own"]:
            t["own"][key] = (*t["own"][key], self.value)
        t["ops"].append(Append(key, self.value))

    def end(self, client: int, t: dict) -> None:  # type: ignore[type-arg]
        del self.open[client]
        written = {o.key for o in t["ops"] if isinstance(o, Append)}
        conflict = any(t["at"][key] < len(self.versions[key]) - 1 for key in written)
        told = ["ok", "ok", "ok", "aborted", "unknown"][self.generator.randint(0, 4)]
        if conflict and not self.weak():
            told = "aborted" if told == "ok" else told
        elif told == "ok" or (told == "unknown" and self.weak()):
            for key in written:
                own = tuple(o.value for o in t["ops"] if isinstance(o, Append) and o.key == key)
                base = t["own"][key][: -len(own)] if key in t["own"] and not self.blind else self.versions[key][-1]
                self.versions[key].append((*base, *own))
        end = self.step if self.clocks and told != "unknown" else None
        begin = t["begin"] if self.clocks else None
        session = f"{client}" if told != "unknown" or self.clocks else f"{client}, dead at {self.step}"
        self.done.append(T(session=session, operations=t["ops"], status=told, begin=begin, end=end))  # type: ignore[arg-type]

    def finish(self) -> list[T]:
        for client, t in list(self.open.items()):
            if t["ops"]:
                self.end(client, t)
        if self.blind:  # what nobody ever reads has no order that anybody could know
            self.step += 1
            everything = [ReadList(key, versions[-1]) for key, versions in self.versions.items()]
            begin = self.step if self.clocks else None
            self.done.append(T(session="last", operations=everything, begin=begin, end=begin))
        return self.done


def weak_history(seed: int) -> list[T]:
    generator = random.Random(seed)
    database = Weak(generator, clocks=generator.random() < 0.5, blind=generator.random() < 0.5)
    transactions, clients = generator.randint(2, 4), generator.randint(2, 3)
    while len(database.done) < transactions and database.step < 24:
        database.advance(generator.randrange(clients))
    return database.finish()


@settings(max_examples=1500, deadline=None)
@given(st.integers(0, 2**32))
def test_the_verdict_is_that_of_trying_every_schedule(seed: int) -> None:
    history = weak_history(seed)
    verdict = check_history(history)
    assert bool(verdict.anomalies) is not is_snapshot_isolation(history), (verdict, history)
