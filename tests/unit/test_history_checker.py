"""The history checker: it finds what snapshot isolation forbids, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support.histories import (
    AnomalyKind,
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
    "two blind appends whose writers read only their own": (
        AnomalyKind.LOST_UPDATE,
        [by("a", Append("x", 1), has("x", 1)), by("b", Append("x", 2), has("x", 2))],
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
        assert kind in [anomaly.kind for anomaly in verdict.anomalies], str(verdict)


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
    "an unknown outcome that takes effect after its client went on": [
        by("a", *append("x", 1), status="unknown", at=(1, None)),
        by("a", has("x"), at=(3, 4)),
        by("b", has("x", 1), at=(5, 6)),
    ],
    "an unknown outcome that takes effect after its client was told": [
        by("a", Append("x", 1), has("x", 1), status="unknown", at=(1, 2)),
        by("a", has("x"), *append("y", 1), at=(3, 4)),
        by("b", has("x", 1), at=(5, 6)),
    ],
    "a register written twice by one transaction": [
        by("a", Read("r", None), Write("r", 1), Read("r", 1), Write("r", 2), Read("r", 2), id=1),
        by("b", Read("r", 2), Write("r", 3), Write("r", 4), id=2),
        by("c", Read("r", 4)),
    ],
    "a blind append that its writer reads": [
        by("a", *append("x", 1)),
        by("b", Append("x", 2), has("x", 1, 2)),
        by("c", Append("x", 3), has("x", 1, 2, 3)),
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
    assert not verdict.anomalies, str(verdict)
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
        "  T50 → T51: T51 read 'x' with 1, which T50 wrote [wr]\n"
        "  T51 → T50: T51 read 'y' without 2, which T50 wrote [rw]\n"
        "  T50: session a, ok, id 7, from 0.000000 s to 0.000001 s\n"
        "  T51: session b, ok, from 0.000000 s to 0.000000 s"
    )


def test_a_long_cycle_gives_way_to_two_transactions_that_time_alone_convicts() -> None:
    history = [
        by("a", *append("x", 1), at=(1, 2)),
        by("b", *append("y", 1), at=(1, 4)),
        by("c", has("x", 1), has("y"), at=(3, 9)),
        by("d", has("x"), has("y", 1), at=(5, 9)),
    ]
    (found,) = check_history(history).anomalies
    assert (found.kind, set(found.transactions)) == (AnomalyKind.STALE_READ, {0, 3})


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

State = dict[str, tuple[tuple[int, ...], int]]
"""By key the values (of a register at most one) and the id of who wrote last."""
NOTHING: tuple[tuple[int, ...], int] = ((), -1)


def is_snapshot_isolation(history: Sequence[T]) -> bool:
    """Look for an order of all starts and commits in which every read is right: the definition, by brute force."""
    first = {
        i: {j for j, o in enumerate(history) if o.status != "unknown" and (is_before(o, t) or same_session(o, t, j, i))}
        for i, t in enumerate(history)
    }
    outcomes = [[t.status == "ok"] if t.status != "unknown" else [False, True] for t in history]
    return any(has_schedule(history, first, commits, {}, {}, set()) for commits in product(*outcomes))


def is_before(o: T, t: T) -> bool:
    return o.end is not None and t.begin is not None and o.end < t.begin


def same_session(o: T, t: T, j: int, i: int) -> bool:
    return o.session == t.session and j < i


def has_schedule(  # type: ignore[no-untyped-def]
    history: Sequence[T], first, commits: Sequence[bool], latest: State, snapshots: dict[int, State], ended: set[int]
) -> bool:
    for i in set(range(len(history))) - ended:
        t = history[i]
        if i not in snapshots:
            starts = first[i] <= ended and reads_right(t, latest)
            if starts and has_schedule(history, first, commits, latest, {**snapshots, i: latest}, ended):
                return True
        else:
            written = {o.key for o in t.operations if isinstance(o, (Append, Write))} if commits[i] else set()
            if all(latest.get(key) == snapshots[i].get(key) and is_younger(t, key, latest) for key in written):
                new = {**latest, **{key: (values_after(t, key, latest), number(t)) for key in written}}
                if has_schedule(history, first, commits, new, snapshots, ended | {i}):
                    return True
                if not written:
                    return False  # ending it earlier or later makes no difference
    return len(ended) == len(history)


def number(t: T) -> int:
    return -1 if t.id is None else t.id


def is_younger(t: T, key: str, state: State) -> bool:
    return t.id is None or state.get(key, NOTHING)[1] < t.id


def reads_right(t: T, state: State) -> bool:
    own: dict[str, tuple[int, ...]] = {}
    for o in t.operations:
        if isinstance(o, (ReadList, Read)) and o.key not in own and not is_younger(t, o.key, state):
            return False
        now = own.get(o.key, state.get(o.key, NOTHING)[0])
        if isinstance(o, ReadList) and o.values != now:
            return False
        if isinstance(o, Read) and (o.value,) != (now or (None,)):
            return False
        if isinstance(o, (Append, Write)):
            own[o.key] = after(now, o)
    return True


def after(now: tuple[int, ...], o: Append | Write) -> tuple[int, ...]:
    return (*now, o.value) if isinstance(o, Append) else (o.value,)


def values_after(t: T, key: str, state: State) -> tuple[int, ...]:
    now = state.get(key, NOTHING)[0]
    for o in t.operations:
        if isinstance(o, (Append, Write)) and o.key == key:
            now = after(now, o)
    return now


@dataclass
class Client:
    """One transaction in progress in :class:`Weak`."""

    begin: int
    snapshot: dict[str, int]
    """By key, how many versions there were."""
    operations: list[Operation] = field(default_factory=list)
    seen: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By key, what it has read, its own writes included."""


class Weak:
    """A database that is snapshot isolation except now and then.

    :param clocks: whether its clients note times.
    :param way: ``append``: the database appends; ``write back``: clients write lists back that they read;
        ``registers``: there are registers as well, and transactions have ids.
    """

    def __init__(self, generator: random.Random, *, clocks: bool, way: str, weakness: float) -> None:
        self.generator, self.clocks, self.way, self.weakness = generator, clocks, way, weakness
        self.keys = ["x", "y", "r"] if way == "registers" else ["x", "y"]
        self.versions: dict[str, list[tuple[int, ...]]] = {key: [()] for key in self.keys}
        self.step = self.value = 0
        self.open: dict[int, Client] = {}
        self.done: list[T] = []
        self.late: list[Client] = []  # commits in flight: what becomes of them nobody was told

    def is_weak(self) -> bool:
        return self.generator.random() < self.weakness

    def advance(self, number: int) -> None:
        """Let a client do one thing."""
        self.step += 1
        if self.late and self.generator.random() < 0.3:
            self.commit(self.late.pop())
        if number not in self.open:
            self.open[number] = Client(self.step, {key: len(versions) - 1 for key, versions in self.versions.items()})
        client, key = self.open[number], self.generator.choice(self.keys)
        if len(client.operations) >= 4 or (client.operations and self.generator.random() < 0.15):
            self.end(number)
        elif self.generator.random() < 0.5:
            self.read(client, key)
        else:
            self.write(client, key)

    def read(self, client: Client, key: str) -> None:
        if key not in client.seen or (key != "r" and self.generator.random() < self.weakness / 5):
            versions = self.versions[key]
            at = self.generator.randrange(len(versions)) if self.is_weak() else client.snapshot[key]
            uncommitted = [other.seen[key] for other in self.open.values() if key in other.seen]
            dirty = uncommitted and self.generator.random() < self.weakness / 3
            found = self.generator.choice(uncommitted) if dirty else versions[at]
            client.seen[key] = (*found, *written(client, key))
        seen = client.seen[key]
        client.operations.append(Read("r", seen[0] if seen else None) if key == "r" else ReadList(key, seen))

    def write(self, client: Client, key: str) -> None:
        if key not in client.seen and key != "r" and self.way != "append":
            self.read(client, key)
        self.value += 1
        if key == "r":
            client.seen[key] = (self.value,)
        elif key in client.seen:
            client.seen[key] += (self.value,)
        client.operations.append(Write(key, self.value) if key == "r" else Append(key, self.value))

    def end(self, number: int) -> None:
        client = self.open.pop(number)
        told = self.generator.choice(("ok", "ok", "ok", "aborted", "unknown"))
        if told == "ok" and not self.commit(client):
            told = "aborted"
        if told == "unknown" and self.generator.random() < 0.5:
            self.late.append(client)
        answered = told != "unknown" or self.generator.random() < 0.5
        self.done.append(
            T(
                session=str(number),
                operations=client.operations,
                status=told,  # type: ignore[arg-type]
                id=client.begin if self.way == "registers" else None,
                begin=client.begin if self.clocks else None,
                end=self.step if self.clocks and answered else None,
            )
        )

    def commit(self, client: Client) -> bool:
        keys = {o.key for o in client.operations if isinstance(o, (Append, Write))}
        if any(client.snapshot[key] < len(self.versions[key]) - 1 for key in keys) and not self.is_weak():
            return False
        for key in keys:
            own = written(client, key)
            base = self.versions[key][-1] if self.way == "append" else client.seen[key][: -len(own)]
            self.versions[key].append(own[-1:] if key == "r" else (*base, *own))
        return True

    def finish(self) -> list[T]:
        """End all; what the database appended is read once more, for what nobody reads has no order to be known."""
        for number in [number for number, client in self.open.items() if client.operations]:
            self.end(number)
        while self.late and self.generator.random() < 0.7:
            self.commit(self.late.pop())
        if self.way == "append":
            everything = [ReadList(key, versions[-1]) for key, versions in self.versions.items()]
            at = self.step + 1 if self.clocks else None
            self.done.append(T(session="last", operations=everything, begin=at, end=at))
        return self.done


def written(client: Client, key: str) -> tuple[int, ...]:
    return tuple(o.value for o in client.operations if isinstance(o, (Append, Write)) and o.key == key)


def weak_history(seed: int) -> list[T]:
    generator = random.Random(seed)
    way = generator.choice(("append", "write back", "registers"))
    weakness = generator.choice((0.0, 0.1, 0.3))
    database = Weak(generator, clocks=generator.random() < 0.5, way=way, weakness=weakness)
    transactions, clients = generator.randint(2, 4), generator.randint(2, 3)
    while len(database.done) < transactions and database.step < 24:
        database.advance(generator.randrange(clients))
    return database.finish()


@settings(max_examples=1500)
@given(st.integers(0, 2**32))
def test_the_verdict_is_that_of_trying_every_schedule(seed: int) -> None:
    history = weak_history(seed)
    verdict = check_history(history)
    assert bool(verdict.anomalies) is not is_snapshot_isolation(history), (verdict, history)


def any_history(generator: random.Random) -> list[T]:
    """Make up transactions that no database need have run; whoever reads knows some of what is appended before."""
    history: list[T] = []
    appended: dict[str, list[int]] = {"x": [], "y": []}
    value = 0
    for _ in range(generator.randint(2, 4)):
        operations: list[Operation] = []
        base: dict[str, tuple[int, ...]] = {}
        own: dict[str, list[int]] = {"x": [], "y": []}
        for _ in range(generator.randint(1, 4)):
            key = generator.choice("xxy")
            if generator.random() < 0.5:
                value += 1
                operations.append(Append(key, value))
                own[key].append(value)
            else:
                base.setdefault(key, tuple(v for v in appended[key] if generator.random() < 0.8))
                operations.append(ReadList(key, (*base[key], *own[key])))
        for key in own:
            appended[key] += own[key]
        status = generator.choice(("ok", "ok", "ok", "aborted", "unknown"))
        history.append(T(session=str(generator.randint(0, 3)), operations=operations, status=status))  # type: ignore[arg-type]
    return history


@settings(max_examples=1500)
@given(st.integers(0, 2**32))
def test_what_is_reported_no_schedule_explains_even_where_appends_were_never_read(seed: int) -> None:
    history = any_history(random.Random(seed))
    verdict = check_history(history)
    assert not (verdict.anomalies and is_snapshot_isolation(history)), (verdict, history)


# --- longer histories, right until one thing in them is changed -----------------------------------------------------


def right_history(generator: random.Random, transactions: int = 60) -> list[T]:
    database = Weak(generator, clocks=True, way="write back", weakness=0.0)
    while len(database.done) < transactions:
        database.advance(generator.randrange(5))
    return database.finish()


def test_what_is_derived_grows_in_step_with_the_history() -> None:
    few, many = (check_history(right_history(random.Random(1), n)) for n in (200, 2000))
    assert few.dependencies / few.transactions == pytest.approx(many.dependencies / many.transactions, rel=0.1)


def first_reads(t: T) -> dict[str, tuple[int, ...]]:
    return {o.key: o.values for o in reversed(t.operations) if isinstance(o, ReadList)}


def without(t: T, key: str, *values: int) -> T:
    operations = [
        ReadList(key, tuple(v for v in o.values if v not in values)) if isinstance(o, ReadList) and o.key == key else o
        for o in t.operations
    ]
    return replace(t, operations=operations)


def writers(history: Sequence[T]) -> dict[int, T]:
    return {o.value: t for t in history for o in t.operations if isinstance(o, Append)}


Change = tuple[T, T]


def overlook_what_was_acknowledged(history: Sequence[T]) -> Iterator[Change]:
    writer = writers(history)
    for t in history:
        for key, values in first_reads(t).items():
            if values and writer[values[-1]].status == "ok" and is_before(writer[values[-1]], t):
                yield t, without(t, key, values[-1])


def write_over_an_append(history: Sequence[T]) -> Iterator[Change]:
    writer = writers(history)  # of an unknown outcome nobody else may have seen anything
    for t in history:
        for key, values in first_reads(t).items():
            over = values and t.status == "ok" and writer[values[-1]].status == "ok"
            if over and any(isinstance(o, Append) and o.key == key for o in t.operations):
                yield t, without(t, key, values[-1])


def see_half_of_a_transaction(history: Sequence[T]) -> Iterator[Change]:
    writer = writers(history)
    for t in history:
        x, y = (first_reads(t).get(key) for key in "xy")
        if x and y and writer[x[-1]] is writer[y[-1]]:
            own = [o.value for o in writer[x[-1]].operations if isinstance(o, Append) and o.key == "x"]
            yield t, without(t, "x", *own)


def see_values_in_another_order(history: Sequence[T]) -> Iterator[Change]:
    for t in history:
        for key, (*values, a, b) in ((key, values) for key, values in first_reads(t).items() if len(values) > 1):
            if not any(isinstance(o, Append) and o.key == key for o in t.operations):
                swapped = ReadList(key, (*values, b, a))
                same = [swapped if isinstance(o, ReadList) and o.key == key else o for o in t.operations]
                yield t, replace(t, operations=same)


def see_what_was_aborted(history: Sequence[T]) -> Iterator[Change]:
    seen = {value for t in history for values in first_reads(t).values() for value in values}
    for value, t in writers(history).items():
        if value in seen:
            yield t, replace(t, status="aborted")


CHANGES = [
    overlook_what_was_acknowledged,
    write_over_an_append,
    see_half_of_a_transaction,
    see_values_in_another_order,
    see_what_was_aborted,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_a_right_history_passes_and_a_changed_one_is_caught(
    change: Callable[[Sequence[T]], Iterator[Change]], seed: int
) -> None:
    generator = random.Random(seed)
    history = right_history(generator)
    assert not check_history(history).anomalies
    changes = list(change(history))
    assume(changes)
    old, new = generator.choice(changes)
    verdict = check_history([new if t is old else t for t in history])
    assert verdict.anomalies, (old, new)
