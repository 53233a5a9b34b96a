"""The state diagrams of the page about transaction ids are those of the code: no state or step more, none less.

What the process sees is compared with the table of steps that the code checks itself against. What becomes of an id
in the store is played: one scenario at least for each arrow, and no scenario without its arrow.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.integration.test_participants import Resource
from tests.integration.test_transactions import begin, wait_past, write
from tests.support.contexts import opened_by

from export_queue import ConflictError, RegistrationLost, Store, TransactionContext, TransactionTimeout
from export_queue.core.store import schema
from export_queue.core.transactions import expire, prune, take_snapshot
from export_queue.core.transactions.value import TRANSITIONS, State

EVERY_WAY = True

PAGE = (Path(__file__).parents[2] / "docs" / "transaction-ids.md").read_text()
START = "[*]"
Edge = tuple[str, str]


def diagrams() -> list[str]:
    found = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", PAGE, re.DOTALL)
    assert len(found) == PAGE.count("```mermaid") == 2
    return found


def edges(diagram: str) -> set[Edge]:
    """Read the arrows; every line must be one, or a state's longer name."""
    found = []
    for line in diagram.splitlines():
        arrow = re.fullmatch(r" +(\S+) --> (\w+)(: \S.*)?", line)
        if arrow:
            found.append((arrow[1], arrow[2]))
        else:
            assert re.fullmatch(r' +state "[^"]+" as \w+', line), line
    assert len(found) == len(set(found)), "an arrow stands there twice"
    named = set(re.findall(r'state "[^"]+" as (\w+)', diagram))
    assert named <= {state for edge in found for state in edge}
    return set(found)


# --- as its process sees it -------------------------------------------------------------------------------------------


def test_what_the_process_sees_is_drawn_as_the_code_has_it() -> None:
    def name(state: State) -> str:
        return state.value.replace(" ", "_")

    expected = {(name(source), name(target)) for source, targets in TRANSITIONS.items() for target in targets}
    assert edges(diagrams()[0]) == {(START, name(State.NEW))} | expected
    assert set(TRANSITIONS) == set(State)
    for state in State:
        if " " in state.value:
            assert f'state "{state.value}" as {name(state)}\n' in diagrams()[0]


# --- its id in the store ----------------------------------------------------------------------------------------------

Scenario = Callable[[Store], Iterator[int]]
"""Gives an id in the state that it comes from, goes the step, and gives it again."""
SCENARIOS: dict[Edge, list[Scenario]] = defaultdict(list)


def goes(source: str, target: str) -> Callable[[Scenario], Scenario]:
    """Say which arrow a scenario plays; one from nowhere gives its id only at the end."""

    def add(scenario: Scenario) -> Scenario:
        SCENARIOS[source, target].append(scenario)
        return scenario

    return add


def state_of(store: Store, own: int) -> str:
    """Look an id up in all that the store knows."""
    with store.database.read() as work:
        row = work.connection.execute(sa.select(schema.invalid.c.left_to).where(schema.invalid.c.id == own)).first()
        outcomes = sa.select(schema.outcome.c.status).where(schema.outcome.c.id == own)
        statuses = list(work.connection.scalars(outcomes))
    states = []
    if row is not None:
        assert own in take_snapshot(store.database).excluded, "a snapshot could see it"
        states.append("invalid" if row.left_to is None else "kept")
    elif own in take_snapshot(store.database).excluded:
        states.append("in_progress")
    states += statuses
    assert len(states) <= 1, states
    return states[0] if states else "forgotten"


def staged(store: Store, timeout: float | None = None) -> TransactionContext:
    """A long transaction that has staged a cell."""
    tx = begin(store, kind="long", timeout=timeout)
    tx.table("t").set("a", "n", b"staged")
    tx.flush()
    return tx


def expired(store: Store) -> TransactionContext:
    """A long transaction that was ended at its time-out, and has a participant that cannot undo what it writes."""
    tx = begin(store, kind="long", timeout=0.05)
    tx.join(Resource("r", "rollback"))
    wait_past(store, opened_by(tx).value.deadline_ms)
    assert expire(store.database) == 1
    return tx


@goes(START, "in_progress")
def by_the_first_read(store: Store) -> Iterator[int]:
    tx = begin(store)
    tx.table("t").get("a", "n")
    yield tx.id
    opened_by(tx).abort()


@goes(START, "in_progress")
def by_a_checkpoint(store: Store) -> Iterator[int]:
    tx = begin(store, kind="long")
    tx.checkpoint()
    yield opened_by(tx).value.write_pointers[1]
    opened_by(tx).abort()


@goes(START, "committed")
def by_a_commit_that_never_read(store: Store) -> Iterator[int]:
    tx = begin(store)
    tx.table("t").set("a", "n", b"1")
    own = opened_by(tx).commit()
    assert own is not None
    yield own


@goes("in_progress", "committed")
def by_a_commit(store: Store) -> Iterator[int]:
    tx = begin(store)
    yield tx.id
    tx.table("t").set("a", "n", b"1")
    yield opened_by(tx).commit() or 0


@goes("in_progress", "committed")
def by_the_commit_of_a_long_one(store: Store) -> Iterator[int]:
    tx = staged(store)
    yield tx.id
    yield opened_by(tx).commit() or 0


@goes("in_progress", "forgotten")
def by_the_end_of_one_that_only_read(store: Store) -> Iterator[int]:
    tx = begin(store)
    yield tx.id
    yield opened_by(tx).commit() or 0


@goes("in_progress", "forgotten")
def by_an_abort(store: Store) -> Iterator[int]:
    tx = staged(store)
    own = tx.id
    yield own
    opened_by(tx).abort()
    yield own


@goes("in_progress", "forgotten")
def by_a_refusal(store: Store) -> Iterator[int]:
    tx = begin(store)
    own = tx.id
    yield own
    write(store, "a", b"first")
    tx.table("t").set("a", "n", b"second")
    with pytest.raises(ConflictError):
        opened_by(tx).commit()
    yield own


@goes("in_progress", "forgotten")
def by_the_time_out_of_a_short_one(store: Store) -> Iterator[int]:
    tx = begin(store, timeout=0.05)
    own = tx.id
    yield own
    wait_past(store, opened_by(tx).value.deadline_ms)
    tx.table("t").set("a", "n", b"late")
    with pytest.raises((TransactionTimeout, RegistrationLost)):
        opened_by(tx).commit()
    expire(store.database)  # where a row registered it
    yield own


@goes("in_progress", "invalid")
def by_the_time_out_of_a_long_one(store: Store) -> Iterator[int]:
    tx = staged(store, timeout=0.05)
    yield tx.id
    wait_past(store, opened_by(tx).value.deadline_ms)
    assert expire(store.database) == 1
    yield tx.id


@goes("in_progress", "kept")
def by_a_participant_that_cannot_undo(store: Store) -> Iterator[int]:
    tx = begin(store)
    own = tx.id
    tx.join(Resource("r", "rollback"))
    yield own
    opened_by(tx).abort()
    yield own


@goes("invalid", "forgotten")
def by_clean_up(store: Store) -> Iterator[int]:
    tx = staged(store, timeout=0.05)
    own = tx.id
    wait_past(store, opened_by(tx).value.deadline_ms)
    expire(store.database)
    yield own
    assert prune(store.database) == 1
    with store.database.read() as work:
        assert work.connection.execute(sa.select(schema.cell).where(schema.cell.c.version == own)).all() == []
    yield own


@goes("invalid", "kept")
def by_a_participant_after_the_time_out(store: Store) -> Iterator[int]:
    tx = expired(store)
    own = tx.id
    yield own
    opened_by(tx).abort()
    yield own


@goes("forgotten", "kept")
def by_a_participant_after_clean_up(store: Store) -> Iterator[int]:
    tx = expired(store)
    own = tx.id
    assert prune(store.database) == 1
    yield own
    opened_by(tx).abort()
    yield own


@goes("kept", "invalid")
def by_somebody_who_has_cleaned_up(store: Store) -> Iterator[int]:
    tx = begin(store)
    own = tx.id
    tx.join(Resource("r", "rollback"))
    opened_by(tx).abort()
    assert prune(store.database) == 0
    yield own
    assert store.forget_invalid(own)
    yield own


def test_every_arrow_has_a_scenario_and_every_scenario_an_arrow() -> None:
    assert edges(diagrams()[1]) == set(SCENARIOS)


@pytest.mark.parametrize(
    ("edge", "scenario"),
    [
        pytest.param(edge, scenario, id=scenario.__name__)
        for edge, scenarios in SCENARIOS.items()
        for scenario in scenarios
    ],
)
def test_an_id_goes_from_state_to_state_as_drawn(store: Store, edge: Edge, scenario: Scenario) -> None:
    source, target = edge
    steps = scenario(store)
    if source != START:
        assert state_of(store, next(steps)) == source
    assert state_of(store, next(steps)) == target
    assert list(steps) == []
