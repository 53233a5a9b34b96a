"""Drains that nobody waits for: what the store says of their drivers, and what ends these."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from tests.support.waiting import wait_until

from export_queue import InvalidArgument, LeaseLost, MemorySink, Owner, Store, StoreUnavailable
from export_queue.core.drain import DrainRequest, SubmittedDrain, drain_as_requested
from export_queue.core.locks import begin_attempt, last_sign, revoke, show_life
from export_queue.core.spark import life
from export_queue.core.store import schema

OPERATOR = Owner("dag/run/task", "1")


@pytest.fixture
def asked(store: Store) -> DrainRequest:
    store.configure_queue("q")
    return DrainRequest(queue_id="q", sink_name="memory", owner=OPERATOR, drain_id="d")


@pytest.fixture
def drain(store: Store, asked: DrainRequest) -> SubmittedDrain:
    begin_attempt(store.database, store.queue("q"), OPERATOR)
    return SubmittedDrain.of(store.database, asked, start_timeout=600)


def state(store: Store, drain: SubmittedDrain) -> str:
    with store.database.read() as work:
        return drain.state(work)


def age(store: Store, drain: SubmittedDrain, seconds: int) -> SubmittedDrain:
    """Move everything that is known of a drain into the past."""
    attempts = schema.attempt
    with store.database.begin() as work:
        work.connection.execute(attempts.update().values(at_ms=attempts.c.at_ms - seconds * 1000))
    return replace(drain, since_ms=drain.since_ms - seconds * 1000)


def test_a_driver_may_take_its_start_timeout_to_begin(store: Store, drain: SubmittedDrain) -> None:
    assert state(store, drain) == "starting"
    later = age(store, drain, 590)
    assert state(store, later) == "starting"
    assert state(store, age(store, later, 20)) == "silent"


def test_a_driver_that_has_begun_and_shows_no_life_for_a_minute_is_silent(store: Store, drain: SubmittedDrain) -> None:
    driver = OPERATOR.submitted()
    show_life(store.database, driver)
    assert state(store, drain) == "running"
    later = age(store, drain, 50)
    assert state(store, later) == "running"
    later = age(store, later, 20)
    assert state(store, later) == "silent"
    show_life(store.database, driver)
    assert state(store, later) == "running"


def test_the_stored_report_ends_the_wait_however_the_drain_ended(
    store: Store, drain: SubmittedDrain, asked: DrainRequest
) -> None:
    with store.transaction() as tx:
        tx.queue("q").add("anna", {})
    driver = asked.another_attempt()
    show_life(store.database, driver.owner)
    drain_as_requested(store, MemorySink(), driver)
    assert state(store, drain) == "reported"
    show_life(store.database, driver.owner)  # a last sign of life brings the attempt not back
    with store.database.read() as work:
        assert last_sign(work, OPERATOR) is None
    assert state(store, replace(drain, drain_id="another")) == "silent"


def test_a_driver_learns_from_its_sign_of_life_that_it_was_revoked(store: Store, drain: SubmittedDrain) -> None:
    revoke(store.database, OPERATOR.task, attempt=OPERATOR.attempt)
    with pytest.raises(LeaseLost):
        show_life(store.database, OPERATOR.submitted())
    assert state(store, drain) == "running", "it may store its report yet"
    assert state(store, age(store, drain, 70)) == "silent"


def test_a_later_attempt_of_the_task_ends_the_driver_of_the_earlier_one(store: Store, drain: SubmittedDrain) -> None:
    begin_attempt(store.database, store.queue("q"), Owner(OPERATOR.task, "2"))
    with pytest.raises(LeaseLost):
        show_life(store.database, OPERATOR.submitted())


def test_a_driver_is_stopped_once_when_its_submission_is_revoked(
    store: Store, drain: SubmittedDrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[str] = []
    beats: list[float] = []
    answers = iter([None, StoreUnavailable("away"), None])

    def beat(database: Any, owner: Owner) -> None:
        if (answer := next(answers, None)) is not None:
            raise answer
        show_life(database, owner)

    def wait(event: threading.Event, seconds: float) -> bool:
        beats.append(seconds)
        if len(beats) == 3:
            assert stops == [], "a store that does not answer stops nobody"
            revoke(store.database, OPERATOR.task, attempt=OPERATOR.attempt)
        return event.is_set()

    monkeypatch.setattr(life, "show_life", beat)
    with life.life_shown(store.database, OPERATOR.submitted(), stop=stops.append, wait=wait):
        wait_until(lambda: bool(stops), "the driver is not stopped")
    assert len(stops) == 1
    assert "was revoked" in stops[0]
    assert beats == [life.BEAT_SECONDS] * 3


def test_fields_that_describe_no_drain_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="submitted drain.*missing required field"):
        SubmittedDrain.from_dict({"task": "t"})
