"""Operations at the same time, in every order: after each schedule the sinks hold what was committed.

``EXPORT_QUEUE_SCHEDULE`` repeats a schedule that a failed test has printed:
``EXPORT_QUEUE_SCHEDULE='sqlite load_gone drain | …' ./run test tests/battery/test_schedules.py -k named``.
``EXPORT_QUEUE_SEED`` repeats what was drawn. With ``EXPORT_QUEUE_PREEMPTIONS=1`` all pairs and triples run every
schedule with one preemption, on both stores, which takes an hour; with ``2`` it takes many.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import STORES
from tests.support.drawn import drawn
from tests.support.fixtures import Covered
from tests.support.scheduled_operations import OPERATIONS, Theatre
from tests.support.scheduled_stores import PostgresStand, SqliteStand, Stand
from tests.support.schedules import parsed

pytestmark = pytest.mark.timeout(1800)  # some hundred runs, next to other work
OTHERS = {
    "load_value": {"load_gone", "drain", "compact", "move", "fall_back", "subscribe", "subscribe_first"},
    "urgent_drain": {"drain", "compact", "move", "fall_back", "take_over"},
    "mirror": {"load_gone", "short", "abort", "maintain", "move", "alter", "roll_back", "compact_state", "get"},
    "roll_back": {"mirror", "load_gone", "compact_state", "maintain"},
    "compact_state": {"mirror", "roll_back", "load_gone", "short", "maintain", "alter", "end_transactions", "get"},
    "move_state": {"load_gone", "alter", "get"},
    "get": {"load_gone", "short", "abort", "maintain", "alter", "mirror", "compact_state", "move_state"},
    "end_transactions": {
        "compact_state",
        "load_gone",
        "short",
        "abort",
        "drain",
        "compact",
        "subscribe",
        "subscribe_first",
    },
}
"""With what these meet in pairs; with others they would pass the points of ``load_gone``, ``drain``, ``maintain``."""
LOSES_ROWS = {"fall_back", "load_state"}
"""Not a pair: the file that the one loses would have rows of the other, a delete among them, which are then lost."""
PAIRS = [
    (one, other)
    for one, other in combinations(OPERATIONS, 2)
    if other in OTHERS.get(one, {other}) and one in OTHERS.get(other, {one})
    # a queue with subscriptions cannot get its first one
    if {one, other} != LOSES_ROWS
    if "subscribe_first" not in (one, other) or not OPERATIONS[one].subscriptions + OPERATIONS[other].subscriptions
] + [
    (name, f"{name}2") for name in ("load_gone", "compact", "maintain", "move", "fall_back", "mirror", "compact_state")
]
DEEP = [
    ("load_value", "drain"),
    ("load_gone", "drain"),
    ("load_gone", "compact"),
    ("short", "drain"),
    ("drain", "compact"),
    ("drain", "fall_back"),
    ("drain", "take_over"),
    ("drain", "unsubscribe"),
    ("load_gone", "subscribe_first"),
    ("compact", "compact2"),
]
"""Pairs that share most: SQLite always runs every schedule of theirs with one preemption."""
PREEMPTIONS = int(os.environ.get("EXPORT_QUEUE_PREEMPTIONS", "0"))
"""Every schedule with so many preemptions runs, on both stores; with 0, those that are drawn."""
SHARE, SHARE_OF_FENCED = 1 / 24, 1 / 3
"""Share of the other pairs, drawn anew in each run, whose schedules with one preemption all run on SQLite."""
TRIPLES = [
    ("load_gone", "compact", "drain"),
    ("compact", "urgent_drain", "drain"),
    ("load_gone", "alter", "maintain"),
    ("compact_state", "maintain", "get"),
]
"""Operations that meet in threes."""
FENCED = [
    ("load_gone", "drain"),
    ("drain", "urgent_drain"),
    ("drain", "take_over"),
    ("drain", "compact"),
    ("fall_back", "drain"),
    ("subscribe", "drain"),
    ("load_state", "drain"),
]
"""Pairs that also meet before a sink without ranks, which sees the order of deliveries."""
STATEMENTS = [
    ("load_gone", "drain"),
    ("load_gone", "subscribe_first"),
    ("compact", "drain"),
    ("alter", "load_gone"),
]
"""Pairs whose SQL transactions overlap."""
NAMED = [
    "sqlite load_gone drain | drain:11 load_gone drain",
    # the commit, a call without a cursor, waits for a lock of the alteration
    "postgresql+statements alter load_gone | load_gone:27 alter:8 load_gone alter",
]
"""Schedules that have found something once."""


SAMPLED, PLANS = 4, 3
"""Pairs that the quick tests draw, and schedules of each."""
ON_POSTGRESQL = 50
"""Pairs that also run on PostgreSQL, drawn anew in each run: a schedule takes three times as long there."""
DRAWN, DRAWN_OF_FENCED, DRAWN_IN_TRANSACTIONS = 2, 4, 10
"""Schedules with two preemptions that are drawn of each pair."""
DRAWN_OF_THREE = {"sqlite": 20, "postgresql": 4}
"""Schedules with two preemptions that are drawn of each triple."""


@pytest.fixture(scope="module", params=[pytest.param(kind, marks=STORES[kind]) for kind in ("sqlite", "postgresql")])
def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """One store, which is put back for each run."""
    yield from opened(request.param, request, tmp_path_factory.mktemp("stand"))


@pytest.fixture(scope="module")
def postgresql(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """A store in PostgreSQL."""
    yield from opened("postgresql", request, tmp_path_factory.mktemp("stand"))


def opened(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Stand]:
    if kind == "sqlite":
        yield SqliteStand(folder)
        return
    server = request.getfixturevalue("postgres_server")
    database = server.create_database(request.getfixturevalue("stores_to_copy")["postgresql"])
    stand = PostgresStand(server.url(database), folder)
    yield stand
    stand.close()
    server.drop_database(database)


def cases() -> Iterator[Any]:
    """Each pair on SQLite, and some on PostgreSQL."""
    some = drawn(PAIRS, len(PAIRS) if PREEMPTIONS else ON_POSTGRESQL, about="pairs")
    for kind, pairs in (("sqlite", PAIRS), ("postgresql", some)):
        for pair in pairs:
            yield pytest.param(kind, pair, marks=STORES[kind], id="-".join((kind, *pair)))


def is_chosen(seed: int, names: tuple[str, ...], share: float) -> bool:
    return random.Random(f"{seed} {names}").random() < share


def keeps_promises(theatre: Theatre, seed: int, number: int, covered: Covered, *, every: bool = False) -> None:
    """Run drawn schedules with two preemptions, and with ``every`` all that have one."""
    explorer = theatre.explorer(preemptions=PREEMPTIONS or 1)
    if every or PREEMPTIONS:
        explorer.all()
    explored = explorer.explored if PREEMPTIONS else explorer.sample(seed, number)
    covered(explored.line())
    assert not explored.failures, "\n\n".join(explored.failures)


@pytest.mark.brief
def test_a_sample_of_schedules_keeps_every_promise(stand: Stand, seed: int, covered: Covered) -> None:
    chance = random.Random(seed)
    runs = 0
    for pair in chance.sample(PAIRS, SAMPLED):
        explored = Theatre(stand, pair).explorer().sample(chance.randrange(10**6), PLANS)
        assert not explored.failures, explored.failures[0]
        runs += explored.runs
    covered(f"{runs} schedules of {SAMPLED} pairs")


@pytest.mark.full("some schedules of each pair")
@pytest.mark.parametrize(("stand", "names"), [*cases()], indirect=["stand"])
def test_schedules_of_two_operations_keep_every_promise(
    stand: Stand, names: tuple[str, ...], seed: int, covered: Covered
) -> None:
    every = stand.name == "sqlite" and (names in DEEP or is_chosen(seed, names, SHARE))
    keeps_promises(Theatre(stand, names), seed, DRAWN, covered, every=every)


@pytest.mark.full("some schedules of each pair, before another sink")
@pytest.mark.parametrize("names", FENCED, ids="-".join)
def test_schedules_before_a_sink_with_fences_keep_every_promise(
    stand: Stand, names: tuple[str, ...], seed: int, covered: Covered
) -> None:
    every = stand.name == "sqlite" and is_chosen(seed, names, SHARE_OF_FENCED)
    keeps_promises(Theatre(stand, names, guard="fence"), seed, DRAWN_OF_FENCED, covered, every=every)


@pytest.mark.full("some schedules of each triple")
@pytest.mark.parametrize("names", TRIPLES, ids="-".join)
def test_schedules_of_three_operations_keep_every_promise(
    stand: Stand, names: tuple[str, ...], seed: int, covered: Covered
) -> None:
    keeps_promises(Theatre(stand, names), seed, DRAWN_OF_THREE[stand.name], covered)


@pytest.mark.full("every statement of PostgreSQL is a point")
@pytest.mark.parametrize("names", STATEMENTS, ids="-".join)
def test_switches_inside_of_sql_transactions_keep_every_promise(
    postgresql: Stand, names: tuple[str, ...], seed: int, covered: Covered
) -> None:
    keeps_promises(Theatre(postgresql, names, every_statement=True), seed, DRAWN_IN_TRANSACTIONS, covered)


@pytest.mark.parametrize("schedule", [*NAMED, *filter(None, [os.environ.get("EXPORT_QUEUE_SCHEDULE")])])
def test_a_named_schedule_keeps_every_promise(schedule: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    kind, _, rest = schedule.partition(" ")
    names, _, plan = rest.partition("|")
    database, *variant = kind.split("+")
    with contextlib.contextmanager(opened)(database, request, tmp_path) as stand:
        guard = "fence" if "fence" in variant else "seq"
        run = Theatre(stand, names.split(), guard=guard, every_statement="statements" in variant).run(parsed(plan))
    assert run.failure is None, run.failure


def test_footprints_name_what_a_commit_writes(stand: Stand) -> None:
    run = Theatre(stand, ("load_gone", "short")).run(parsed("load_gone short"))
    written = {name: set().union(*(step.writes for step in run.trace if step.name == name)) for name in run.names}
    assert written["load_gone"] >= {"files", "xq_entry", "xq_segment_reader", "xq_active"}
    assert written["short"] >= {"xq_entry"}


@pytest.mark.full("schedules are run twice")
@pytest.mark.parametrize(("names", "preemptions"), [(("short", "drain"), 1), (("short", "alter"), 2)])
def test_leaving_out_equal_schedules_loses_no_outcome(tmp_path: Path, names: tuple[str, ...], preemptions: int) -> None:
    theatre = Theatre(SqliteStand(tmp_path), names)
    reduced, every = (theatre.explorer(preemptions=preemptions, reduces=reduces).all() for reduces in (True, False))
    assert reduced.runs < every.runs
    assert reduced.outcomes == every.outcomes
