"""Transactions on both stores: snapshots, conflicts, outcomes, idempotency keys, time-outs (I1-I5, I12, I14)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from tests.support.contexts import begin, catalogue_of, opened_by
from tests.support.waiting import wait_until

from export_queue import (
    AlreadyCommitted,
    CommitRefused,
    ConflictError,
    InvalidArgument,
    OptionsDiffer,
    RegistrationLost,
    Retry,
    SnapshotTooOld,
    Store,
    StoreUnavailable,
    TransactionContext,
    TransactionEnded,
    TransactionError,
    TransactionTimeout,
)
from export_queue.core.store import Handle, Writes, schema
from export_queue.core.transactions import IdempotencyState, expire, prune, take_snapshot

EVERY_WAY = True


def read(store: Store, row: str, column: str = "n") -> bytes | None:
    with store.transaction() as tx:
        return tx.table("t").get(row, column)


def write(store: Store, row: str, value: bytes, column: str = "n") -> None:
    with store.transaction() as tx:
        tx.table("t").set(row, column, value)


def ask(tx: TransactionContext, statement: str) -> object:
    """Run a statement on the connection of a transaction's own; gives the first column of its first row."""

    def step(connection: Handle) -> object:
        raw = connection.connection.driver_connection if isinstance(connection, sa.Connection) else connection
        return raw.execute(statement).fetchone()[0]  # type: ignore[union-attr]

    return opened_by(tx)._session.call(step)


def test_a_snapshot_does_not_move(store: Store) -> None:
    write(store, "a", b"1")
    with store.transaction() as tx:
        assert tx.table("t").get("a", "n") == b"1"
        write(store, "a", b"2")
        write(store, "b", b"2")
        assert tx.table("t").get("a", "n") == b"1"
        assert tx.table("t").get("b", "n") is None
    assert read(store, "a") == b"2"


def test_a_later_start_sees_every_earlier_commit(store: Store) -> None:
    for i in range(20):
        write(store, "a", str(i).encode())
        assert read(store, "a") == str(i).encode()


def test_what_is_in_progress_is_invisible_also_after_it_committed(store: Store) -> None:
    older = begin(store)
    assert older.id
    older.table("t").set("x", "n", b"older")
    with store.transaction() as tx:
        assert tx.id > older.id
        assert tx.table("t").get("x", "n") is None
        opened_by(older).commit()
        assert tx.table("t").get("x", "n") is None
    assert read(store, "x") == b"older"


def test_asking_for_the_id_does_not_move_the_snapshot(store: Store) -> None:
    write(store, "a", b"1")
    with pytest.raises(ConflictError), store.transaction() as tx:
        assert tx.table("t").get("b", "n") is None
        write(store, "a", b"2")
        assert tx.id
        assert tx.table("t").get("a", "n") == b"1"
        tx.table("t").set("a", "n", b"3")
    assert read(store, "a") == b"2"


def test_a_row_that_is_written_again_since_the_first_read_conflicts(store: Store) -> None:
    for value in (b"1", b"2"):
        write(store, "a", value)
    with pytest.raises(ConflictError), store.transaction() as tx:
        assert tx.table("t").get("a", "n") == b"2"
        write(store, "a", b"3")
        tx.table("t").set("a", "n", b"lost")
    assert read(store, "a") == b"3"


@pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)  # whose ids come from no row
def test_a_read_registers_nothing_and_a_commit_draws_the_id(store: Store) -> None:
    with store.transaction() as tx:
        assert tx.table("t").get("a", "n") is None
        assert store.run(lambda other: other.id)
        with store.database.read() as work:
            assert work.connection.execute(sa.select(schema.active)).all() == []
        assert opened_by(tx)._id is None
        tx.table("t").set("a", "n", b"1")
    assert read(store, "a") == b"1"


@pytest.mark.parametrize("kind", ["short", "long"])
def test_of_two_that_start_at_once_the_younger_one_excludes_the_older_one(store: Store, kind: str) -> None:
    """A smaller id is registered before anybody with a greater one looks around, and stays so to the end."""
    together = threading.Barrier(2, timeout=60)

    def start() -> TransactionContext:
        tx = begin(store, kind=kind)
        together.wait()
        assert tx.id
        return tx

    with ThreadPoolExecutor(2) as threads:
        for _ in range(20):
            begun = [threads.submit(start) for _ in range(2)]
            older, younger = sorted((one.result() for one in begun), key=lambda tx: tx.id)
            assert older.id in opened_by(younger).value.excluded
            for tx in (older, younger):
                opened_by(tx).abort()


def test_own_writes_and_deletes_are_read_back(store: Store) -> None:
    write(store, "a", b"1")
    with store.transaction() as tx:
        table = tx.table("t")
        table.set("a", "n", b"2")
        assert table.get("a", "n") == b"2"
        table.delete("a", "n")
        assert table.get("a", "n", b"gone") == b"gone"
        table.set("a", "n", b"")
        assert table.get("a", "n") == b""
    assert read(store, "a") == b""


def test_a_delete_hides_older_versions_from_later_snapshots_only(store: Store) -> None:
    write(store, "a", b"1")
    with store.transaction() as before:
        assert before.table("t").get("a", "n") == b"1"
        with store.transaction() as tx:
            tx.table("t").delete("a", "n")
        assert before.table("t").get("a", "n") == b"1"
    assert read(store, "a") is None


def test_of_two_overlapping_writers_of_a_row_the_first_to_commit_wins(store: Store) -> None:
    write(store, "a", b"0")
    with pytest.raises(ConflictError, match="table t: a") as refused, store.transaction() as tx:
        tx.table("t").get("a", "n")
        write(store, "a", b"other")
        tx.table("t").set("a", "n", b"mine")
        tx.table("t").set("b", "n", b"mine")
    assert "committed" in str(refused.value) or "commit of transaction" in str(refused.value)
    assert "run the function again" in str(refused.value)
    assert read(store, "a") == b"other"
    assert read(store, "b") is None


def test_an_older_transaction_that_commits_first_wins(store: Store) -> None:
    older = begin(store)
    assert older.id
    with pytest.raises(ConflictError), store.transaction() as younger:
        assert younger.id > older.id
        younger.table("t").get("a", "n")
        older.table("t").set("a", "n", b"older")
        opened_by(older).commit()
        younger.table("t").set("a", "n", b"younger")
    assert read(store, "a") == b"older"


def test_conflict_levels(store: Store) -> None:
    store.configure_table("by_cell", conflict="cell")
    store.configure_table("free", conflict="none")

    def overlap(table: str, mine: str, theirs: str) -> None:
        with store.transaction() as tx:
            tx.table(table).get("r", mine)
            with store.transaction() as other:
                other.table(table).set("r", theirs, b"x")
            tx.table(table).set("r", mine, b"y")

    overlap("by_cell", "a", "b")
    overlap("free", "a", "a")
    with pytest.raises(ConflictError, match="r/a"):
        overlap("by_cell", "a", "a")
    with pytest.raises(ConflictError, match=": r"):
        overlap("by_row", "a", "b")


def test_write_skew_is_allowed(store: Store) -> None:
    with store.transaction() as one:
        one.table("t").get("a", "n")
        with store.transaction() as two:
            two.table("t").get("b", "n")
            two.table("t").set("a", "n", b"2")
        one.table("t").set("b", "n", b"1")
    assert (read(store, "a"), read(store, "b")) == (b"2", b"1")


def test_a_blind_write_never_conflicts(store: Store) -> None:
    with store.transaction() as reader:
        reader.table("t").get("a", "n")
        write(store, "a", b"1")
        write(store, "a", b"2")
    assert read(store, "a") == b"2"


def test_a_blind_write_that_a_younger_one_has_overtaken_is_drawn_anew(postgres_url: str) -> None:
    """The order of ids is the order of commits, also of transactions that never read."""
    with Store.open(postgres_url) as store, psycopg.connect(postgres_url.replace("+psycopg", "")) as younger:
        store.create()
        write(store, "a", b"0")
        with ThreadPoolExecutor(1) as thread:
            younger.execute("update export_queue.xq_conflict_key set writer = writer")
            older = thread.submit(write, store, "a", b"1")  # has its id, and waits for the key
            wait_until(lambda: waits_for_a_lock(store, "xq_commit"), "no commit came")
            with store.database.read() as work:
                number = store.database.dialect.steps.draw(work.connection)
            younger.execute("update export_queue.xq_conflict_key set writer = %s", (number,))
            younger.commit()
            older.result(60)
        with store.database.read() as work:
            assert work.connection.execute(sa.select(schema.conflict_key.c.writer)).scalar_one() > number


def waits_for_a_lock(store: Store, function: str) -> bool:
    statement = (
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like :what "
        "and datname = current_database()"
    )
    with store.database.read() as work:
        return bool(work.connection.execute(sa.text(statement), {"what": f"%{function}%"}).scalar())


def test_ids_increase_and_the_id_is_the_sequence(store: Store) -> None:
    store.configure_queue("q")
    ids = []
    for i in range(5):
        with store.transaction() as tx:
            ids.append(tx.id)
            tx.queue("q").add(f"k{i}", i)
    assert ids == sorted(set(ids))
    assert sorted(unit.oldest_seq for unit in store.backlog("q"))[0] == ids[0]


def test_an_exception_leaves_nothing(store: Store) -> None:
    store.configure_queue("q")
    for long in (False, True):
        with pytest.raises(KeyError), store.transaction(long=long) as tx:
            tx.table("t").set("a", "n", b"1")
            tx.queue("q").add("k", 1)
            if long:
                tx.flush()
            raise KeyError
    assert read(store, "a") is None
    assert store.backlog("q") == []
    with store.database.read() as work:
        for table in (schema.cell, schema.entry, schema.staged_cell, schema.staged_entry, schema.active):
            assert work.connection.execute(table.select()).all() == []


def test_a_transaction_cannot_be_used_after_its_end(store: Store) -> None:
    with store.transaction() as tx:
        table = tx.table("t")
    for use in (lambda: table.get("a", "n"), lambda: table.set("a", "n", b""), lambda: tx.table("t"), lambda: tx.id):
        with pytest.raises(TransactionEnded):
            use()


def test_a_long_transaction_is_invisible_until_it_commits(store: Store) -> None:
    store.configure_queue("q")
    with store.transaction(long=True) as tx:
        tx.table("t").set("a", "n", b"1")
        tx.queue("q").add("k", 1)
        tx.flush()
        assert tx.table("t").get("a", "n") == b"1"
        tx.table("t").set("a", "n", b"2")
        tx.flush()
        assert read(store, "a") is None
        assert store.backlog("q") == []
    assert read(store, "a") == b"2"
    assert sum(unit.entries for unit in store.backlog("q")) == 1


def test_a_long_transaction_goes_on_in_another_process(store: Store, open_store: Callable[[], Store]) -> None:
    tx = begin(store, kind="long")
    tx.table("t").set("a", "n", b"1")
    with open_store() as elsewhere:
        elsewhere.commit(tx.to_json())
    assert read(store, "a") == b"1"
    opened_by(tx).abort()  # by a process that does not know of the commit
    assert read(store, "a") == b"1"


def test_a_long_transaction_conflicts_on_what_it_staged(store: Store) -> None:
    with pytest.raises(ConflictError), store.transaction(long=True) as tx:
        tx.table("t").set("a", "n", b"1")
        tx.flush()
        write(store, "a", b"other")
    assert read(store, "a") == b"other"


def test_a_staged_write_after_abort_is_refused(store: Store) -> None:
    tx = begin(store, kind="long")
    with pytest.raises(RegistrationLost), store.resume(tx.to_json()) as other:
        opened_by(tx).abort()
        other.table("t").set("a", "n", b"late")
    assert read(store, "a") is None


def test_a_write_that_is_staged_while_the_transaction_is_aborted_is_refused(store: Store) -> None:
    """The step itself refuses it, whatever was looked up before."""
    tx = begin(store, kind="long")
    own = tx.id
    opened_by(tx).abort()
    late = Writes(cells=[(catalogue_of(store).table("t").number, b"a", b"n", b"late")])
    with store.database.connect() as connection, pytest.raises(RegistrationLost):
        store.database.dialect.steps.stage(connection, own, late, own + 1, store_id=store.id, load=None)
    assert read(store, "a") is None


def test_a_commit_after_an_abort_elsewhere_is_refused(store: Store) -> None:
    tx = begin(store, kind="long")
    tx.table("t").set("a", "n", b"1")
    tx.flush()
    store.abort(tx.to_json())
    with pytest.raises(RegistrationLost):
        opened_by(tx).commit()
    assert read(store, "a") is None
    assert store.outcome(tx.request).status == "refused"


def test_a_commit_after_the_deadline_is_refused_and_stays_refused(store: Store) -> None:
    tx = begin(store, timeout=0.05)
    tx.table("t").get("a", "n")
    tx.table("t").set("a", "n", b"1")
    call = opened_by(tx)._call(None)
    wait_past(store, call.deadline_ms)
    with pytest.raises(TransactionTimeout):
        opened_by(tx).commit()
    assert store.outcome(tx.request).status == "refused"
    with pytest.raises((CommitRefused, RegistrationLost)):
        begin(store)._transaction._send(call)
    assert read(store, "a") is None


def wait_past(store: Store, moment: int) -> None:
    def is_past() -> bool:
        with store.database.read() as work:
            return work.now() > moment

    wait_until(is_past, "the clock does not move")


def test_a_swept_long_transaction_is_invalid_until_it_is_pruned(store: Store) -> None:
    tx = begin(store, kind="long", timeout=0.05)
    tx.table("t").set("a", "n", b"late")
    tx.flush()
    wait_past(store, opened_by(tx).value.deadline_ms)
    assert expire(store.database) == 1
    with pytest.raises(RegistrationLost):
        opened_by(tx).commit()
    assert read(store, "a") is None
    assert prune(store.database) == 1
    assert read(store, "a") is None
    with store.database.read() as work:
        assert work.connection.execute(schema.cell.select()).all() == []
        assert work.connection.execute(schema.invalid.select()).all() == []


def test_a_snapshot_below_the_horizon_is_refused_for_reads_and_commits(store: Store) -> None:
    def raise_horizon() -> None:
        with store.database.begin() as work:
            store.database.dialect.steps.draw(work.connection)  # of a snapshot that ends before it, nothing is lost
            above = store.database.dialect.steps.draw(work.connection)
            work.connection.execute(schema.store.update().values(horizon=above))

    with pytest.raises(SnapshotTooOld), store.transaction() as tx:
        tx.table("t").get("a", "n")
        raise_horizon()
        tx.table("t").get("b", "n")
    with pytest.raises(SnapshotTooOld), store.transaction() as tx:
        tx.table("t").get("a", "n")
        tx.table("t").set("a", "n", b"1")
        raise_horizon()
    assert read(store, "a") is None


def test_asking_for_an_outcome_decides_it(store: Store) -> None:
    with store.transaction() as tx:
        tx.table("t").set("a", "n", b"1")
    assert store.outcome(tx.request).status == "committed"
    with pytest.raises(CommitRefused), store.transaction() as tx:
        tx.table("t").set("b", "n", b"1")
        assert store.outcome(tx.request).status == "refused"
    assert read(store, "b") is None
    assert store.outcome(uuid4()).status == "refused"


def test_the_same_commit_again_is_one_commit(store: Store) -> None:
    store.configure_queue("q")
    with store.transaction() as tx:
        tx.table("t").set("a", "n", b"1")
        tx.queue("q").add("k", 1)
        call = opened_by(tx)._call(None)
        first = opened_by(tx)._send(call)
        assert opened_by(tx)._send(call) == first
    assert sum(unit.entries for unit in store.backlog("q")) == 1


def test_a_commit_whose_answer_is_lost_is_told_truthfully(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = store.database.dialect.steps.commit

    def lose(*arguments: object) -> None:
        commit(*arguments)  # type: ignore[arg-type]
        raise StoreUnavailable("connection lost")

    monkeypatch.setattr(store.database.dialect.steps, "commit", lose)
    write(store, "a", b"1")
    assert read(store, "a") == b"1"


def test_a_start_leaves_the_commit_durable(store: Store) -> None:
    """A start need not be flushed; what that takes must not stay behind on the connection."""
    setting, durable = {"sqlite": ("pragma synchronous", 2), "postgresql": ("show synchronous_commit", "on")}[
        store.database.dialect.name
    ]
    with store.transaction() as tx:
        assert tx.table("t").get("a", "n") is None
        assert ask(tx, setting) == durable


def test_an_idempotency_key_takes_effect_once(store: Store) -> None:
    calls = []

    def work(tx: object) -> dict[str, int]:
        calls.append(tx)
        tx.table("t").set(f"r{len(calls)}", "n", b"1")  # type: ignore[attr-defined]
        return {"n": len(calls)}

    assert store.run(work, idempotency_key="load/1") == {"n": 1}
    assert store.run(work, idempotency_key="load/1") == {"n": 1}
    assert len(calls) == 1
    with pytest.raises(AlreadyCommitted) as again, store.transaction(idempotency_key="load/1"):
        raise AssertionError("the block is not entered")
    assert again.value.result == {"n": 1}


def test_two_attempts_under_one_idempotency_key_at_once_take_effect_once(store: Store) -> None:
    def attempt(tx: object) -> str:
        tx.table("t").set("mine", "n", b"1")  # type: ignore[attr-defined]
        if not store.idempotency("t").committed:
            store.run(lambda other: other.table("t").set("theirs", "n", b"1") or "theirs", idempotency_key="t")
        return "mine"

    assert store.run(attempt, idempotency_key="t") == "theirs"
    assert read(store, "mine") is None


def test_an_attempt_behind_another_one_whose_key_was_closed_returns_its_result(store: Store) -> None:
    attempts: list[str] = []

    def work(tx: object) -> dict[str, int]:
        attempts.append("begun")
        if len(attempts) == 1:
            assert store.run(lambda other: {"rows": 7}, idempotency_key="t") == {"rows": 7}
            assert store.close_idempotency_key("t", generation=1)
        tx.table("t").set("mine", "n", b"1")  # type: ignore[attr-defined]
        return {"rows": 8}

    assert store.run(work, idempotency_key="t") == {"rows": 7}
    assert read(store, "mine") is None


def test_two_threads_at_once_in_one_transaction_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would get each other's answers; taking turns is allowed."""
    entered, goes_on, read_cell = threading.Event(), threading.Event(), store.database.dialect.steps.read_cell

    def stop(*arguments: Any) -> Any:
        entered.set()
        assert goes_on.wait(60)
        return read_cell(*arguments)

    with store.transaction() as tx, ThreadPoolExecutor(1) as thread:
        table = tx.table("t")
        assert thread.submit(table.get, "a", "n").result(60) is None
        monkeypatch.setattr(store.database.dialect.steps, "read_cell", stop)
        reading = thread.submit(table.get, "a", "n")
        assert entered.wait(60)
        with pytest.raises(TransactionError, match="two threads"):
            table.get("b", "n")
        with pytest.raises(TransactionError, match="two threads"):
            table.set("b", "n", b"1")
        goes_on.set()
        assert reading.result(60) is None
        table.set("b", "n", b"2")
    assert read(store, "b") == b"2"


@pytest.mark.parametrize("by_value", [True, False])
def test_an_abort_that_does_not_reach_the_store_says_so_and_is_made_up_for(
    store: Store, monkeypatch: pytest.MonkeyPatch, by_value: bool
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise StoreUnavailable("the disk is full")

    with pytest.raises((KeyError, StoreUnavailable)) as caught, store.transaction(long=True) as tx:
        tx.table("t").set("a", "n", b"1")
        value = tx.to_json()
        monkeypatch.setattr(store.database.dialect.steps, "abort", full)
        if by_value:
            store.abort(value)
        raise KeyError
    told = [str(caught.value), *getattr(caught.value, "__notes__", [])]
    assert any("the disk is full" in line for line in told)
    assert len(take_snapshot(store.database).excluded) == 1
    monkeypatch.undo()
    expire(store.database)  # as starts do, and maintenance
    assert take_snapshot(store.database).excluded == ()
    assert store.database.left_behind == set()


def test_a_closed_idempotency_key_is_new_work(store: Store) -> None:
    results = iter("ab")
    assert store.run(lambda tx: next(results), idempotency_key="t") == "a"
    assert store.close_idempotency_key("t")
    assert not store.close_idempotency_key("t")
    assert store.idempotency("t") == IdempotencyState(2, committed=False, previous="a")
    assert not store.close_idempotency_key("t", generation=1)
    assert store.run(lambda tx: next(results), idempotency_key="t") == "b"
    assert store.run(lambda tx: next(results), idempotency_key="t") == "b"


def test_run_repeats_the_function_not_its_writes(store: Store) -> None:
    write(store, "a", b"1")
    seen = []

    def double(tx: object) -> None:
        value = tx.table("t").get("a", "n")  # type: ignore[attr-defined]
        seen.append(value)
        if len(seen) == 1:
            write(store, "a", b"10")
        tx.table("t").set("a", "n", value * 2)  # type: ignore[attr-defined]

    store.run(double)
    assert seen == [b"1", b"10"]
    assert read(store, "a") == b"1010"


def test_run_gives_up_after_its_attempts(store: Store) -> None:
    def always_late(tx: object) -> None:
        tx.table("t").get("a", "n")  # type: ignore[attr-defined]
        write(store, "a", b"1")
        tx.table("t").set("a", "n", b"2")  # type: ignore[attr-defined]

    with pytest.raises(ConflictError):
        store.run(always_late, retry=Retry(attempts=3))


def test_only_a_reading_transaction_leaves_nothing_behind(store: Store) -> None:
    with store.transaction() as tx:
        tx.table("t").get("a", "n")
    with store.database.read() as work:
        for table in (schema.active, schema.outcome):
            assert work.connection.execute(table.select()).all() == []
    assert store.database.engine.connect().close() is None


@pytest.mark.parametrize("timeout", [0, -1, 1e9])
def test_a_timeout_out_of_bounds_is_refused(store: Store, timeout: float) -> None:
    with pytest.raises(InvalidArgument, match="timeout"), store.transaction(timeout=timeout):
        pass


def test_other_options_for_a_table_are_refused(store: Store) -> None:
    store.configure_table("t", conflict="cell")
    store.configure_table("t", conflict="cell")
    with pytest.raises(OptionsDiffer, match="conflict: expected 'row', found 'cell'"):
        store.configure_table("t", conflict="row")


@pytest.mark.parametrize(("row", "column"), [("", "n"), ("a", ""), ("a" * 1025, "n"), (1, "n")])
def test_a_bad_row_or_column_is_refused(store: Store, row: str, column: str) -> None:
    with pytest.raises(InvalidArgument, match="1 to 1024 bytes"), store.transaction() as tx:
        tx.table("t").set(row, column, b"")


def test_any_bytes_are_a_row(store: Store) -> None:
    rows = [b"\x00", b"\xff\xfe", b"a\x00b", "Zürich".encode(), b"x" * 1024]
    with store.transaction() as tx:
        for row in rows:
            tx.table("t").set(row, row, row)
    with store.transaction() as tx:
        assert [tx.table("t").get(row, row) for row in rows] == rows


def test_a_pooled_connection_keeps_no_id_in_progress(store: Store) -> None:
    """After many transactions that read, aborted or conflicted, nothing is left that a snapshot would exclude."""
    for i in range(10):
        with pytest.raises(KeyError), store.transaction() as tx:
            tx.table("t").get("a", "n")
            if i % 2:
                tx.table("t").set("a", "n", b"1")
                write(store, "a", b"2")
                with pytest.raises(ConflictError):
                    opened_by(tx).commit()
            raise KeyError
    with store.transaction() as tx:
        assert opened_by(tx).value.excluded == frozenset()
