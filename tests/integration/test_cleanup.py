"""Clean-up drops nothing that a live snapshot can read, and shows nothing that was hidden (I11, I12)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.support.contexts import begin, opened_by
from tests.support.patience import AT_ONCE
from tests.support.waiting import wait_until

from export_queue import (
    ConflictError,
    InvalidArgument,
    MemorySink,
    Retry,
    SnapshotTooOld,
    Store,
    TransactionContext,
    drain,
)
from export_queue.core.maintenance import MaintenanceReport, Patience, maintain
from export_queue.core.maintenance import pages as clean_pages
from export_queue.core.maintenance.pages import Page
from export_queue.core.store import Span, schema
from export_queue.core.store.queries import cleanup
from export_queue.core.transactions import expire, scan_cells

fork = multiprocessing.get_context("fork")


def clean(store: Store, *, age: float = 0.0, **options: Any) -> MaintenanceReport:
    """Clean up until nothing is left; with no age of snapshots, so that it bites at once."""
    while True:
        report = maintain(store.database, patience=Patience(seconds=age, between_calls=0), **options)
        if not report.more and not report.busy:
            return report


def commit(tx: TransactionContext) -> None:
    opened_by(tx).commit()


def write(store: Store, row: str, value: bytes | None, table: str = "t") -> None:
    with store.transaction() as tx:
        if value is None:
            tx.table(table).delete(row, "n")
        else:
            tx.table(table).set(row, "n", value)


def read(store: Store, row: str, table: str = "t") -> bytes | None:
    with store.transaction() as tx:
        return tx.table(table).get(row, "n")


def rows(store: Store, table: sa.Table) -> list[Any]:
    with store.database.read() as work:
        return list(work.connection.execute(sa.select(table)))


def age_marks(store: Store, *, seconds: int) -> None:
    """Let the low-water marks look as if they had been recorded earlier."""
    with store.database.begin() as work:
        mark = schema.low_watermark.c.at_ms
        work.connection.execute(schema.low_watermark.update().values(at_ms=mark - 1000 * seconds))


def horizon(store: Store) -> int:
    with store.database.read() as work:
        return cleanup.horizon(work)


def test_only_the_newest_version_stays_and_no_tombstone(store: Store) -> None:
    for table, conflict in (("t", "row"), ("cells", "cell"), ("free", "none")):
        store.configure_table(table, conflict=conflict)
        for value in (b"1", b"2", b"3"):
            write(store, "a", value, table)
            write(store, "b", value, table)
        write(store, "b", None, table)
    report = clean(store)
    assert (report.versions, report.conflict_keys) == (3 * (2 + 4), 4)
    assert [bytes(row.value) for row in rows(store, schema.cell)] == [b"3"] * 3
    assert rows(store, schema.conflict_key) == []
    for table in ("t", "cells", "free"):
        assert (read(store, "a", table), read(store, "b", table)) == (b"3", None)


def test_nothing_goes_before_the_longest_short_transaction_has_passed(store: Store) -> None:
    write(store, "a", b"1")
    write(store, "a", b"2")
    report = clean(store, age=3600.0)
    assert (report.versions, report.conflict_keys, report.horizon) == (0, 0, 0)
    age_marks(store, seconds=3600)
    assert clean(store, age=3600.0).versions == 1
    assert len(rows(store, schema.low_watermark)) == 2  # the one that was used, and a new one


def test_marks_do_not_pile_up(store: Store) -> None:
    for _ in range(5):
        clean(store, age=3600.0)
    assert len(rows(store, schema.low_watermark)) == 1


def test_the_horizon_is_never_lowered(store: Store) -> None:
    write(store, "a", b"1")
    before = clean(store).horizon
    with store.database.begin() as work:
        work.connection.execute(schema.low_watermark.delete())
        cleanup.add_watermark(work, before - 5)
        assert cleanup.raise_horizon(work, before_ms=work.now()) == before


def test_a_scan_does_not_bring_back_what_clean_up_removes_between_its_pages(store: Store) -> None:
    for page in range(1, 6):
        name = f"pages-of-{page}"
        for row in ("a", "b", "c"):
            write(store, row, b"there", name)
        write(store, "b", None, name)
        with store.transaction(long=True) as tx:
            table = tx.table(name)
            assert table.get("b", "n") is None
            cells = scan_cells(opened_by(tx), table._options.number, Span(), page=page)
            found = [next(cells)]
            assert clean(store).versions == 2
            assert [row for row, _, _ in [*found, *cells]] == [b"a", b"c"], name


def test_a_short_snapshot_keeps_every_version_that_it_sees(store: Store) -> None:
    write(store, "a", b"1")
    write(store, "b", b"1")
    clean(store)
    age_marks(store, seconds=60)
    with store.transaction() as tx:
        assert tx.table("t").get("a", "n") == b"1"
        for value in (b"2", b"3"):
            write(store, "a", value)
            write(store, "b", value)
        write(store, "b", None)
        clean(store, age=60)
        assert tx.table("t").get("a", "n") == b"1"
        assert tx.table("t").get_many([("a", "n"), ("b", "n")]) == {(b"a", b"n"): b"1", (b"b", b"n"): b"1"}
        assert [value for _, _, value in tx.table("t").scan()] == [b"1", b"1"]
    clean(store)
    assert [(row.row_key, row.value) for row in rows(store, schema.cell)] == [(b"a", b"3")]


@pytest.fixture
def straddling(store: Store) -> Iterator[Callable[..., tuple[TransactionContext, Callable[[], None]]]]:
    """Makes a transaction below whose own id another one was in progress, which has written "a" and committed."""
    opened: list[TransactionContext] = []

    def make(**options: Any) -> tuple[TransactionContext, Callable[[], None]]:
        write(store, "a", b"before")
        write(store, "gone", b"before")
        older = begin(store, kind="long")
        older.table("t").set("a", "n", b"older")
        older.table("t").delete("gone", "n")
        older.flush()
        younger = begin(store, **options)
        opened.extend((older, younger))
        _ = opened_by(younger).snapshot
        return younger, lambda: commit(older)

    yield make
    for tx in opened:
        opened_by(tx).abort()


def test_a_short_snapshot_that_reaches_below_the_horizon_is_refused_not_answered_wrongly(
    store: Store, straddling: Any
) -> None:
    younger, commit_older = straddling()
    commit_older()
    clean(store)
    for look in (
        lambda: younger.table("t").get("a", "n"),
        lambda: younger.table("t").get_many([("a", "n")]).get((b"a", b"n")),
        lambda: {row: value for row, _, value in younger.table("t").scan()}.get(b"a"),
    ):
        with pytest.raises(SnapshotTooOld):
            look()


def test_a_short_snapshot_that_straddles_is_answered_if_clean_up_waits_as_it_must(
    store: Store, straddling: Any
) -> None:
    younger, commit_older = straddling()
    commit_older()
    clean(store, age=3600.0)
    assert younger.table("t").get("a", "n") == b"before"


@pytest.mark.parametrize("travels", [False, True])
def test_a_long_snapshot_keeps_what_it_recorded_at_its_start(
    store: Store, store_url: str, straddling: Any, travels: bool
) -> None:
    younger, commit_older = straddling(kind="long")
    value = younger.to_json()
    commit_older()
    write(store, "a", b"after")
    clean(store)
    if travels:
        with Store.open(store_url) as elsewhere, elsewhere.resume(value) as resumed:
            assert resumed.table("t").get("a", "n") == b"before"
            assert resumed.table("t").get("gone", "n") == b"before"
    assert younger.table("t").get("a", "n") == b"before"
    assert [v for row, _, v in younger.table("t").scan() if row == b"gone"] == [b"before"]
    opened_by(younger).abort()
    assert clean(store).versions > 0
    assert [(row.row_key, row.value) for row in rows(store, schema.cell)] == [(b"a", b"after")]


def test_no_update_is_lost_when_its_conflict_key_has_been_purged(store: Store, straddling: Any) -> None:
    younger, commit_older = straddling()
    assert younger.table("t").get("a", "n") == b"before"
    commit_older()
    clean(store)
    younger.table("t").set("a", "n", b"younger")
    with pytest.raises((SnapshotTooOld, ConflictError)):
        commit(younger)
    assert read(store, "a") == b"older"


def test_a_conflict_key_above_a_horizon_that_rises_stays(store: Store, straddling: Any) -> None:
    holder = begin(store, kind="long")
    assert holder.id
    younger, commit_older = straddling()
    assert younger.table("t").get("a", "n") == b"before"
    commit_older()
    assert clean(store).horizon == holder.id
    younger.table("t").set("a", "n", b"younger")
    with pytest.raises(ConflictError):
        commit(younger)
    opened_by(holder).abort()
    assert read(store, "a") == b"older"


def test_a_staged_version_hides_nothing_and_is_hidden(store: Store) -> None:
    write(store, "a", b"1")
    write(store, "deleted", b"1")
    tx = begin(store, kind="long")
    tx.table("t").set("a", "n", b"staged")
    tx.table("t").delete("deleted", "n")
    tx.flush()
    clean(store)
    write(store, "b", b"2")
    clean(store)
    assert (read(store, "a"), read(store, "deleted")) == (b"1", b"1")
    assert tx.table("t").get("a", "n") == b"staged"
    opened_by(tx).abort()
    clean(store)
    assert (read(store, "a"), read(store, "deleted")) == (b"1", b"1")


def test_an_invalid_version_hides_nothing_and_is_hidden_before_and_after_pruning(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "a", b"1")
    write(store, "deleted", b"1")
    late = begin(store, kind="long", timeout=0.05)
    late.table("t").set("a", "n", b"invalid")
    late.table("t").set("new", "n", b"invalid")
    late.table("t").delete("deleted", "n")
    late.flush()
    wait_until(lambda: expire(store.database), "the transaction was not swept")

    def nothing_shows() -> None:
        clean(store)
        write(store, "z", b"2")
        clean(store)
        assert (read(store, "a"), read(store, "deleted"), read(store, "new")) == (b"1", b"1", None)

    with monkeypatch.context() as patch:
        patch.setattr("export_queue.core.maintenance.cleanup.prune", lambda database, *, limit: 0)
        nothing_shows()
        assert len(rows(store, schema.invalid)) == 1
        assert horizon(store) <= late.id
    assert clean(store).pruned == 1
    nothing_shows()
    assert horizon(store) > late.id
    assert sorted(bytes(row.row_key) for row in rows(store, schema.cell)) == [b"a", b"deleted", b"z"]


def test_an_id_that_became_invalid_below_a_mark_still_keeps_the_horizon(store: Store) -> None:
    with store.transaction() as tx:
        own = tx.id
    write(store, "a", b"1")
    with store.database.begin() as work:
        work.connection.execute(schema.invalid.insert().values(id=own, since_ms=0))
        cleanup.add_watermark(work, own + 1_000_000)
        assert cleanup.raise_horizon(work, before_ms=own // 1_000_000 + 10**9) <= own


def test_cells_expire_and_those_that_still_live_stay(sqlite_url: str) -> None:
    now = [time.time_ns() // 1_000_000]
    with Store.open(sqlite_url, clock=lambda: now[0]) as store:
        store.create()
        store.configure_table("t", ttl=1000)
        write(store, "old", b"1")
        write(store, "renewed", b"1")
        now[0] += 900_000
        write(store, "renewed", b"2")
        with store.transaction(timeout=3000) as tx:
            assert tx.table("t").get("old", "n") == b"1"
            now[0] += 200_000
            clean(store, age=3000)
            assert tx.table("t").get("old", "n") == b"1"
        assert (read(store, "old"), read(store, "renewed")) == (None, b"2")
        store.run(lambda tx: tx.id)  # the horizon follows the newest id
        clean(store)
        assert [(row.row_key, row.value) for row in rows(store, schema.cell)] == [(b"renewed", b"2")]
        assert (read(store, "old"), read(store, "renewed")) == (None, b"2")


def test_work_is_bounded_and_the_next_call_goes_on(
    store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export_queue.core.maintenance.pages.MOST_KEYS", 4)
    store.configure_table("free", conflict="none")
    for value in (b"1", b"2", b"3"):
        with store.transaction() as tx:
            for i in range(20):
                tx.table("t").set(f"row{i}", "n", value)
                tx.table("free").set(f"row{i}", "n", value)
    calls, left = 0, 120
    more = True
    while more:
        with Store.open(store_url) as process:  # what is remembered is in the store
            report = maintain(process.database, limit=10, patience=AT_ONCE)
        more, calls = report.more, calls + 1
        assert left - len(rows(store, schema.cell)) <= 30
        left = len(rows(store, schema.cell))
        assert calls < 100
    assert calls > 4
    assert left == 40
    assert all(row.value == b"3" for row in rows(store, schema.cell))


@pytest.mark.parametrize("conflict", ["row", "none"])
def test_a_cell_with_many_versions_is_cleaned_in_pages(
    store: Store, monkeypatch: pytest.MonkeyPatch, conflict: str
) -> None:
    monkeypatch.setattr("export_queue.core.maintenance.pages.MOST_ROWS", 7)
    store.configure_table("hot", conflict=conflict)
    for i in range(30):
        write(store, "a", str(i).encode(), "hot")
    write(store, "a", None, "hot")
    write(store, "b", b"stays", "hot")
    while (report := maintain(store.database, limit=7, patience=AT_ONCE)).more:
        assert report.versions <= 14
        assert read(store, "a", "hot") is None
    assert [row.row_key for row in rows(store, schema.cell)] == [b"b"]
    assert rows(store, schema.conflict_key) == []


def test_a_pass_ends_though_its_keys_must_stay(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export_queue.core.maintenance.pages.MOST_KEYS", 4)
    write(store, "a", b"1")
    with store.transaction(long=True) as holder:
        _ = holder.id
        with store.transaction() as tx:
            for i in range(11):
                tx.table("t").set(f"young{i:02}", "n", b"1")
        report = maintain(store.database, limit=100, patience=AT_ONCE)
    assert (report.conflict_keys, report.more) == (1, False)
    assert len(rows(store, schema.conflict_key)) == 11


def test_much_that_was_deleted_is_reclaimed(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export_queue.core.maintenance.cleanup.VACUUM_AFTER", 500)
    with Store.open(postgres_url) as store:
        store.create()
        for value in (b"1", None):
            with store.transaction() as tx:
                for i in range(300):
                    if value:
                        tx.table("t").set(f"row{i}", "n", value)
                    else:
                        tx.table("t").delete(f"row{i}", "n")
        assert clean(store).versions == 600
        with store.database.connect() as connection:
            assert connection.exec_driver_sql("select pg_relation_size('export_queue.xq_cell')").scalar() == 0


def test_dead_rows_of_many_runs_are_reclaimed_together(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run, and each drain, removes less than would be worth a vacuum.

    A session tells the server of its dead rows when it ends, and the server counts them some time later.
    """
    monkeypatch.setattr("export_queue.core.maintenance.cleanup.VACUUM_AFTER", 500)
    monkeypatch.setattr("export_queue.core.drain.one_drain.TIDY_AFTER", 500)
    sink = MemorySink()
    sizes: dict[str, list[int]] = {"xq_cell": [], "xq_entry": []}
    for _ in range(10):
        with Store.open(postgres_url) as store:
            store.create()
            store.configure_queue("q")
            with store.database.begin() as work:  # the server's own vacuum may come at any time
                for table in sizes:
                    work.connection.exec_driver_sql(
                        f"alter table export_queue.{table} set (autovacuum_enabled = false)"
                    )
            with store.transaction() as tx:
                for i in range(200):
                    tx.queue("q").add(f"key{i}", i)
                    tx.table("t").set(f"row{i}", "n", b"1")
            with store.transaction() as tx:
                for i in range(200):
                    tx.table("t").delete(f"row{i}", "n")
            assert drain(store, "q", sink, sink_name="memory").acknowledged == 200
            assert clean(store).versions == 400
            with store.database.connect() as connection:
                for table, found in sizes.items():
                    size = f"select pg_relation_size('export_queue.{table}')"
                    found.append(int(connection.exec_driver_sql(size).scalar() or 0))
        if all(0 in found[1:] for found in sizes.values()):
            break
    assert sizes["xq_entry"][0] > 0
    assert all(0 in found[1:] for found in sizes.values()), sizes


def test_a_clean_up_that_finds_another_one_at_it_leaves_the_work_to_it(postgres_url: str) -> None:
    with Store.open(postgres_url) as store, psycopg.connect(postgres_url.replace("+psycopg", "")) as other:
        store.create()
        write(store, "a", b"1")
        clean(store)
        write(store, "a", b"2")
        other.execute("select 1 from export_queue.xq_cleaning where subject = 'turn' for update")
        report = maintain(store.database, patience=AT_ONCE)
        assert (report.busy, report.versions) == (True, 0)
        other.rollback()
        assert clean(store).versions == 1


def test_a_store_at_rest_is_not_gone_through_again(store: Store) -> None:
    store.configure_table("free", conflict="none")
    write(store, "a", b"1")
    write(store, "a", b"1", "free")
    clean(store)
    clean(store)
    statements: list[str] = []

    @sa.event.listens_for(store.database.engine, "before_cursor_execute")
    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        statements.append(statement)

    clean(store)
    assert [text for text in statements if "xq_cell" in text or "xq_conflict_key" in text] == []
    assert len(statements) > 3


def test_cells_that_nobody_writes_are_not_looked_at(store: Store) -> None:
    with store.transaction() as tx:
        for i in range(500):
            tx.table("t").set(f"cold{i}", "n", b"1")
    clean(store)
    write(store, "hot", b"1")
    write(store, "hot", b"2")
    report = maintain(store.database, limit=10, patience=AT_ONCE)
    assert (report.versions, report.conflict_keys, report.more) == (1, 1, False)


@pytest.mark.parametrize("options", [{"limit": 0}, {"keep_outcomes": 0}, {"keep_idempotency_keys": -1}])
def test_a_limit_of_nothing_is_refused(store: Store, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="expected"):
        maintain(store.database, **options)


def state(store: Store) -> dict[tuple[bytes, bytes], bytes]:
    with store.transaction() as tx:
        return {(row, column): value for row, column, value in tx.table("t").scan()}


@pytest.mark.parametrize("pages", [0, 1, 3])
@pytest.mark.parametrize("committed", [False, True])
def test_clean_up_that_is_killed_leaves_the_state_before_or_after_a_page(
    store: Store, store_url: str, pages: int, committed: bool
) -> None:
    for value in (b"1", b"2", None, b"4"):
        with store.transaction() as tx:
            for i in range(30):
                if value is None and i % 3:
                    tx.table("t").delete(f"row{i}", "n")
                else:
                    tx.table("t").set(f"row{i}", "n", value or b"3")
                if value == b"4" and i % 3 == 1:
                    tx.table("t").delete(f"row{i}", "n")
    expected = state(store)

    def work() -> None:
        clean_pages.MOST_KEYS = 5
        real, done = clean_pages.clean_conflict_keys, 0

        def dying(sql: Any, limit: int) -> Page:
            nonlocal done
            if committed and done == pages:
                os.kill(os.getpid(), signal.SIGKILL)
            page = real(sql, limit)
            if not committed and done == pages:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            return page

        clean_pages.clean_conflict_keys = dying
        with Store.open(store_url) as mine:
            maintain(mine.database, patience=AT_ONCE)

    child = fork.Process(target=work, daemon=True)
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert state(store) == expected
    wait_until(
        lambda: maintain(store.database, patience=AT_ONCE).busy is False, "the turn of the dead is not given back"
    )
    clean(store)
    assert state(store) == expected
    cells, keys = rows(store, schema.cell), rows(store, schema.conflict_key)
    assert (len(cells), keys) == (len(expected), [])
    clean(store)  # recovering twice is recovering once
    assert (rows(store, schema.cell), state(store)) == (cells, expected)


def test_a_commit_that_hangs_is_neither_overtaken_nor_lost(postgres_url: str) -> None:
    with Store.open(postgres_url) as store, psycopg.connect(postgres_url.replace("+psycopg", "")) as blocker:
        store.create()
        store.configure_queue("q")
        write(store, "a", b"1")
        blocker.execute("lock table export_queue.xq_entry in exclusive mode")
        ended: list[bool] = []

        def hang() -> None:
            with store.transaction(timeout=0.5) as tx:
                tx.table("t").set("a", "n", b"2")
                tx.queue("q").add("a", 1)
            ended.append(True)

        thread = threading.Thread(target=hang, daemon=True)
        thread.start()
        waiting = sa.text(
            "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%xq_commit%' "
            "and datname = current_database()"
        )
        with store.database.read() as work:
            wait_until(lambda: work.connection.execute(waiting).scalar(), "no commit came")
        (hanging,) = [row.id for row in holders(store) if row.kind == "short"]
        for value in (b"3", b"4"):
            write(store, "b", value)
            clean(store)
        time.sleep(0.6)  # past its deadline
        write(store, "b", b"5")
        clean(store)
        assert horizon(store) <= hanging
        assert read(store, "a") == b"1"
        blocker.rollback()
        thread.join(30)
        assert ended
        assert (read(store, "a"), read(store, "b")) == (b"2", b"5")
        clean(store)
        assert horizon(store) > hanging
        assert (read(store, "a"), read(store, "b")) == (b"2", b"5")


def holders(store: Store) -> list[Any]:
    with store.database.read() as work:
        view = sa.Table(
            "horizon_holders", sa.MetaData(), *map(sa.Column, ("id", "kind", "low", "started_ms", "client", "session"))
        )
        return list(work.connection.execute(sa.select(view).order_by(view.c.low)))


ACCOUNTS, MONEY = 6, 600


def total(tx: Any) -> int:
    return sum(int(value) for _, _, value in tx.table("bank").scan())


def transfer(tx: Any, pick: Any) -> None:
    bank = tx.table("bank")
    giver, taker = pick.sample(range(ACCOUNTS), 2)
    has = int(bank.get(f"{giver}", "money", b"0"))
    amount = has if pick.random() < 0.3 else pick.randint(0, has)
    kept = has - amount
    if kept:
        bank.set(f"{giver}", "money", str(kept).encode())
    else:
        bank.delete(f"{giver}", "money")  # an empty account leaves a tombstone
    bank.set(f"{taker}", "money", str(int(bank.get(f"{taker}", "money", b"0")) + amount).encode())


def test_the_bank_keeps_its_total_beside_two_clean_ups(store: Store, store_url: str) -> None:
    import random

    store.configure_table("bank", conflict="cell")
    with store.transaction() as tx:
        for i in range(ACCOUNTS):
            tx.table("bank").set(f"{i}", "money", str(MONEY // ACCOUNTS).encode())
    stop, deleted = fork.Value("b", 0), fork.Value("q", 0)

    def writer(seed: int) -> None:
        pick = random.Random(seed)
        with Store.open(store_url) as mine:
            for i in range(60):
                mine.run(lambda tx: transfer(tx, pick), retry=Retry(attempts=100))
                if i % 4 == 0:
                    assert mine.run(total, retry=Retry(attempts=100)) == MONEY
                if i % 20 == 0:
                    with mine.transaction(long=True) as tx:
                        assert total(tx) == MONEY
                        time.sleep(0.02)
                        assert total(tx) == MONEY

    def cleaner() -> None:
        with Store.open(store_url) as mine:
            while not stop.value:
                report = maintain(mine.database, patience=AT_ONCE)
                with deleted.get_lock():
                    deleted.value += report.versions

    writers = [fork.Process(target=writer, args=(seed,), daemon=True) for seed in range(3)]
    cleaners = [fork.Process(target=cleaner, daemon=True) for _ in range(2)]
    for process in (*writers, *cleaners):
        process.start()
    for process in writers:
        process.join(100)
    stop.value = 1
    for process in cleaners:
        process.join(30)
    assert [process.exitcode for process in (*writers, *cleaners)] == [0] * 5
    assert deleted.value > 0
    assert store.run(total) == MONEY
    clean(store)
    assert store.run(total) == MONEY
    assert len(rows(store, schema.cell)) <= ACCOUNTS
