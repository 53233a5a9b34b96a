"""Participants: every step of each one fails in every position, and nothing is left half done."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa
from tests.integration.test_transactions import read, wait_past, write
from tests.support.contexts import opened_by
from tests.support.store_urls import whole_url

from export_queue import (
    AfterCommitFailed,
    CommitOutcomeUnknown,
    ConflictError,
    InvalidArgument,
    Level,
    RegistrationLost,
    Retry,
    Store,
    StoreUnavailable,
    Transaction,
    TransactionContext,
)
from export_queue.core.transactions import expire, outcomes, prune, take_snapshot

STEPS = ("start", "update", "changes", "persist")
"""Those before the commit."""


class Broken(RuntimeError):
    """What a participant's own resource raises."""


class Resource:
    """Keeps what it was called for; fails in one step."""

    def __init__(self, name: str, fails_in: str = "") -> None:
        self.name = name
        self.fails_in = fails_in
        self.calls: list[str] = []
        self.data: dict[int, str] = {}
        self.transaction: Transaction | None = None

    def _call(self, step: str) -> None:
        self.calls.append(step)
        if step == self.fails_in:
            raise Broken(f"{self.name} failed in {step}")

    def start(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self._call("start")

    def update(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self._call("update")

    def changes(self) -> Iterator[bytes]:
        self._call("changes")
        yield b"record"

    def persist(self) -> None:
        assert self.transaction is not None
        self.data[self.transaction.write_pointers[-1]] = "written"
        self._call("persist")

    def rollback(self) -> None:
        self._call("rollback")
        assert self.transaction is not None
        for pointer in self.transaction.write_pointers:
            self.data.pop(pointer, None)

    def after_commit(self) -> None:
        self._call("after_commit")


def work(tx: TransactionContext, resources: list[Resource]) -> None:
    for resource in resources:
        tx.join(resource)
    tx.table("t").set("a", "n", b"1")
    tx.checkpoint()


def test_it_joins_before_the_first_read_or_not_at_all(store: Store) -> None:
    """A short transaction reads in a snapshot that has no id to tell others."""
    resource = Resource("late")
    with store.transaction() as tx:
        tx.table("t").get("a", "n")
        with pytest.raises(InvalidArgument, match="before the first read"):
            tx.join(resource)
        assert tx.id
        with pytest.raises(InvalidArgument, match="before the first read"):
            tx.join(resource)
        tx.table("t").set("a", "n", b"1")
    assert resource.calls == []
    assert read(store, "a") == b"1"


def test_all_are_called_in_order(store: Store) -> None:
    resources = [Resource("first"), Resource("second")]
    with store.transaction() as tx:
        work(tx, resources)
        pointers = opened_by(tx).value.write_pointers
    for resource in resources:
        assert resource.calls == ["start", "update", "changes", "persist", "after_commit"]
        assert resource.data == {pointers[-1]: "written"}
    assert read(store, "a") == b"1"


@pytest.mark.parametrize(
    ("step", "position"),
    [(step, position) for step in STEPS for position in range(3)],
)
def test_a_failure_before_the_commit_rolls_all_back(store: Store, step: str, position: int) -> None:
    resources = [Resource(f"r{i}", step if i == position else "") for i in range(3)]
    with pytest.raises(Broken, match=f"r{position} failed in {step}"), store.transaction() as tx:
        work(tx, resources)
    assert read(store, "a") is None
    assert take_snapshot(store.database).excluded == ()
    joined = resources[: position + 1] if step == "start" else resources
    for resource in joined:
        assert resource.calls[-1] == "rollback"
        assert resource.data == {}
    assert all(not resource.calls for resource in resources if resource not in joined)


@pytest.mark.parametrize("position", range(3))
def test_a_failing_rollback_is_told_and_makes_the_id_invalid_for_good(store: Store, position: int) -> None:
    resources = [Resource(f"r{i}", "rollback" if i == position else "") for i in range(3)]
    pointers: tuple[int, ...] = ()
    with pytest.raises(KeyError) as caught, store.transaction() as tx:
        work(tx, resources)
        pointers = opened_by(tx).value.write_pointers
        raise KeyError("the user's own error")
    assert [f"r{position}" in note and "rollback" in note for note in caught.value.__notes__] == [True]
    assert all("rollback" in resource.calls for resource in resources)
    assert take_snapshot(store.database).excluded == pointers, "what it wrote there must stay hidden"
    assert [(kept.id, kept.left_to) for kept in store.kept_invalid()] == [(own, f"r{position}") for own in pointers]


class Versions(Resource):
    """Keeps one value under each write pointer."""

    def put(self, value: str) -> None:
        assert self.transaction is not None
        self.data[self.transaction.write_pointers[-1]] = value

    def persist(self) -> None:
        """Everything is written already."""

    def shown(self, level: Level) -> str | None:
        assert self.transaction is not None
        reader = replace(self.transaction, level=level)
        return next(
            (value for pointer, value in sorted(self.data.items(), reverse=True) if reader.is_visible(pointer)), None
        )


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_a_checkpoint_is_a_line_for_participants_too(store: Store, long: bool, commits: bool) -> None:
    versions, table = Versions("versions"), "t"
    with contextlib.suppress(KeyError), store.transaction(long=long) as tx:
        tx.join(versions)
        for value in ("1", "2", "3"):
            if value > "1":
                tx.checkpoint()
            versions.put(value)
            tx.table(table).set("a", "n", value.encode())
        for level, expected in ((Level.SNAPSHOT_EXCLUDE_CURRENT, "2"), (Level.SNAPSHOT, "3")):
            tx.level = level
            assert versions.shown(level) == expected
            assert tx.table(table).get("a", "n") == expected.encode()
        pointers = opened_by(tx).value.write_pointers
        assert len(pointers) == 3
        assert take_snapshot(store.database).excluded == pointers, "in progress"
        if not commits:
            raise KeyError
    assert take_snapshot(store.database).excluded == ()
    assert list(versions.data) == (list(pointers) if commits else [])
    assert read(store, "a") == (b"3" if commits else None)


def test_every_write_pointer_of_a_failing_rollback_stays_hidden(store: Store) -> None:
    resource = Resource("r", "rollback")
    pointers: tuple[int, ...] = ()
    with pytest.raises(KeyError), store.transaction(long=True) as tx:
        work(tx, [resource])
        pointers = opened_by(tx).value.write_pointers
        raise KeyError("the user's own error")
    assert len(pointers) == 2
    assert take_snapshot(store.database).excluded == pointers
    assert [kept.id for kept in store.kept_invalid()] == list(pointers)


def test_a_rollback_that_fails_after_the_sweep_keeps_what_the_sweep_made_invalid(store: Store) -> None:
    resource = Resource("r", "rollback")
    pointers: tuple[int, ...] = ()
    with pytest.raises(RegistrationLost), store.transaction(long=True, timeout=0.05) as tx:
        work(tx, [resource])
        pointers = opened_by(tx).value.write_pointers
        wait_past(store, opened_by(tx).value.deadline_ms)
        assert expire(store.database) == 1
    assert prune(store.database) == 0, "what the participant wrote is not ours to delete"
    assert take_snapshot(store.database).excluded == pointers
    assert [(kept.id, kept.left_to) for kept in store.kept_invalid()] == [(own, "r") for own in pointers]


def test_nobody_is_called_while_the_outcome_is_unknown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither undone, since it may have committed, nor told that it has."""
    resource = Resource("r")

    def unanswered(*arguments: object) -> None:
        raise StoreUnavailable("cut")

    with pytest.raises(CommitOutcomeUnknown), store.transaction() as tx:
        tx.join(resource)
        monkeypatch.setattr(store.database.dialect.steps, "commit", unanswered)
        monkeypatch.setattr(store.database.dialect.steps, "decide", unanswered)
        monkeypatch.setattr(outcomes, "ASKING", Retry(attempts=1))
    assert resource.calls == ["start", "changes", "persist"]


def test_the_first_error_carries_all_others(store: Store) -> None:
    first, second, third = Resource("first", "rollback"), Resource("second", "persist"), Resource("third", "rollback")
    with pytest.raises(Broken, match="second failed in persist") as caught, store.transaction() as tx:
        work(tx, [first, second, third])
    assert [note.split(":")[0] for note in caught.value.__notes__] == [
        "besides, participant 'third' failed in rollback",
        "besides, participant 'first' failed in rollback",
    ]


@pytest.mark.parametrize("position", range(3))
def test_a_failure_after_the_commit_leaves_it_committed(store: Store, position: int) -> None:
    resources = [Resource(f"r{i}", "after_commit" if i == position else "") for i in range(3)]
    calls = 0

    def once(tx: TransactionContext) -> None:
        nonlocal calls
        calls += 1
        work(tx, resources)

    with pytest.raises(AfterCommitFailed, match=f"r{position} failed in after_commit") as caught:
        store.run(once)
    assert isinstance(caught.value.__cause__, Broken)
    assert calls == 1, "run() must not repeat what has committed"
    assert read(store, "a") == b"1"
    for resource in resources:
        assert resource.calls[-1] == "after_commit", "all are told"
        assert resource.data != {}


def test_a_conflict_of_the_store_rolls_all_back(store: Store) -> None:
    resource = Resource("r")
    with pytest.raises(ConflictError), store.transaction() as tx:
        work(tx, [resource])
        tx.table("t").get("a", "n")
        write(store, "a", b"other")
    assert resource.calls[-2:] == ["persist", "rollback"]
    assert resource.data == {}


def test_two_transactions_that_change_the_same_record_of_a_participant_conflict(store: Store) -> None:
    first, second = Resource("r"), Resource("r")
    with pytest.raises(ConflictError, match="participant r: record"), store.transaction() as tx:
        tx.join(first)
        with store.transaction() as other:
            other.join(second)
    assert (first.data, len(second.data)) == ({}, 1)


def test_participants_of_different_names_do_not_meet(store: Store) -> None:
    with store.transaction() as tx:
        tx.join(Resource("r"))
        with store.transaction() as other:
            other.join(Resource("s"))


def test_a_transaction_that_only_has_participants_commits(store: Store) -> None:
    resource = Resource("r")
    with store.transaction() as tx:
        tx.join(resource)
    assert store.outcome(tx.request).status == "committed"
    assert resource.calls[-1] == "after_commit"


def test_a_bound_transaction_takes_no_participants(store: Store) -> None:
    with (
        sa.create_engine(whole_url(store)).begin() as connection,
        pytest.raises(InvalidArgument, match="bound"),
        store.transaction(connection=connection) as tx,
    ):
        tx.join(Resource("r"))


def test_a_resumed_transaction_takes_no_participants(store: Store) -> None:
    """Nobody would call them at the commit, which may happen in another process."""
    value = store.begin()
    with store.resume(value) as tx, pytest.raises(InvalidArgument, match="resumed"):
        tx.join(Resource("r"))
    store.abort(value)
