"""Outcomes and idempotency keys are kept for a while, and what is forgotten is never told wrongly (I12, I14)."""

from __future__ import annotations

import time
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from export_queue import CommitOutcomeUnknown, CommitRefused, Store
from export_queue.core.drain import Counts, DrainRequest, Tally, tally
from export_queue.core.maintenance import Patience
from export_queue.core.maintenance import maintain as clean_up
from export_queue.core.store import schema
from export_queue.core.store.queries.outcomes import new_request

DAY_MS = 24 * 3600 * 1000
maintain = partial(clean_up, patience=Patience(between_calls=0))


def write(store: Store, idempotency_key: str | None = None) -> UUID:
    with store.transaction(idempotency_key=idempotency_key) as tx:
        tx.table("t").set("a", "n", b"1")
    return tx.request


def age(store: Store, table: sa.Table, column: str, days: float) -> None:
    """Make all rows of a table older than they are."""
    with store.database.begin() as work:
        older = {column: table.c[column] - int(days * DAY_MS)}
        if table is schema.idempotency:  # their ids tell a time, too
            older["id"] = table.c.id - int(days * DAY_MS) * 1_000_000
        work.connection.execute(table.update().values(older))


def aged(request: UUID, days: float) -> UUID:
    """The request as it would be had it been made earlier."""
    return UUID(int=request.int - (int(days * DAY_MS) << 80))


def make_old(store: Store, request: UUID, days: float) -> UUID:
    """Let a commit and its outcome be some days old."""
    older = aged(request, days)
    with store.database.begin() as work:
        work.connection.execute(
            schema.outcome.update()
            .where(schema.outcome.c.request == request)
            .values(request=older, decided_ms=schema.outcome.c.decided_ms - int(days * DAY_MS))
        )
    return older


def outcomes(store: Store) -> list[UUID]:
    with store.database.read() as work:
        return list(work.connection.scalars(sa.select(schema.outcome.c.request)))


def test_requests_are_unique_and_lie_in_the_order_of_time() -> None:
    before = time.time_ns() // 1_000_000
    made = [new_request() for _ in range(1000)]
    after = time.time_ns() // 1_000_000
    assert len(set(made)) == 1000
    assert all((request.version, request.variant) == (7, uuid4().variant) for request in made)
    assert all(before <= request.int >> 80 <= after for request in made)


def test_an_outcome_can_be_asked_for_a_day(store: Store) -> None:
    young, old = write(store), write(store)
    middle = make_old(store, write(store), 0.9)
    old = make_old(store, old, 1.1)
    assert maintain(store.database).outcomes == 1
    assert store.outcome(young).status == "committed"
    assert store.outcome(middle).status == "committed"
    with pytest.raises(CommitOutcomeUnknown, match="not known any more"):
        store.outcome(old)


def test_a_refusal_is_kept_while_its_transaction_is_in_progress(store: Store) -> None:
    """A long one may be in progress for longer than outcomes are kept, and what was refused stays so."""
    value = store.begin(timeout=7 * 24 * 3600)
    assert store.outcome(value["request"]).status == "refused"
    old = make_old(store, UUID(value["request"]), 2)
    with store.database.begin() as work:
        work.connection.execute(schema.active.update().values(request=old))
    value["request"] = old.hex
    maintain(store.database)
    with pytest.raises(CommitRefused):
        store.commit(value)
    assert outcomes(store) == [old]
    maintain(store.database)
    assert outcomes(store) == []


def test_a_forgotten_commit_is_never_called_refused(store: Store) -> None:
    old = make_old(store, write(store), 2)
    assert store.outcome(old).status == "committed"
    maintain(store.database)
    for _ in range(2):
        with pytest.raises(CommitOutcomeUnknown):
            store.outcome(old)
    assert store.outcome(new_request()).status == "refused"


def test_before_the_first_clean_up_every_outcome_is_known(store: Store) -> None:
    assert store.outcome(aged(new_request(), 30)).status == "refused"


def test_a_commit_of_today_is_kept_though_its_request_is_old(store: Store) -> None:
    # a long transaction, or a client whose clock is behind
    with store.database.begin() as work:
        work.connection.execute(schema.outcome.delete())
    request = aged(write(store), 3)
    with store.database.begin() as work:
        work.connection.execute(schema.outcome.update().values(request=request))
    assert maintain(store.database).outcomes == 0
    assert store.outcome(request).status == "committed"


def test_how_long_outcomes_and_tokens_are_kept_can_be_said(store: Store) -> None:
    make_old(store, write(store, idempotency_key="work"), 0.2)
    age(store, schema.idempotency, "committed_ms", 5)
    assert maintain(store.database).idempotency_keys == 0
    report = maintain(store.database, keep_outcomes=3600, keep_idempotency_keys=4 * 24 * 3600)
    assert (report.outcomes, report.idempotency_keys) == (1, 1)


def test_a_token_is_known_for_a_month(store: Store) -> None:
    calls: list[Any] = []

    def work(tx: Any) -> int:
        calls.append(1)
        tx.table("t").set("a", "n", b"1")
        return len(calls)

    assert store.run(work, idempotency_key="nightly") == 1
    age(store, schema.idempotency, "committed_ms", 29)
    assert maintain(store.database).idempotency_keys == 0
    assert store.run(work, idempotency_key="nightly") == 1
    age(store, schema.idempotency, "committed_ms", 2)
    assert maintain(store.database).idempotency_keys == 1
    assert not store.idempotency("nightly").committed


def test_tallies_of_a_drain_at_work_stay_though_keys_are_kept_for_less_time(store: Store) -> None:
    request = DrainRequest(queue_id="orders", sink_name="s")

    def add(entries: int) -> None:
        with store.database.begin() as work:
            counts = Counts(read=entries, acknowledged=entries)
            Tally(request, entries).add(work, counts, now_ms=work.now())

    def counted() -> int:
        with store.database.read() as work:
            return tally.counted(work, request).acknowledged

    add(5)
    write(store, idempotency_key="work")
    age(store, schema.idempotency, "committed_ms", 0.2)
    add(7)
    assert maintain(store.database, keep_idempotency_keys=3600).idempotency_keys == 1
    assert counted() == 12
    age(store, schema.idempotency, "committed_ms", 29.9)
    assert maintain(store.database, keep_idempotency_keys=3600).idempotency_keys == 1
    assert counted() == 7, "what nobody has taken away, as the drain was killed, goes all the same"


def test_forgetting_is_bounded_and_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export_queue.core.maintenance.pages.MOST_ROWS", 2)
    for _ in range(7):
        make_old(store, write(store), 2)
    found = []
    while True:
        report = maintain(store.database, limit=3)
        found.append(report.outcomes)
        if not report.more:
            break
    assert found == [3, 3, 1]
    assert outcomes(store) == []
