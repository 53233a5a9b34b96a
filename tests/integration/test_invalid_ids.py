"""Ids that become invalid: one step, sweeps that no row stops, and commits that are refused (I1, I12)."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.integration.test_participants import Resource
from tests.integration.test_transactions import read, wait_past, write
from tests.support.waiting import wait_until

from export_queue import RegistrationLost, Store
from export_queue.core.store import schema
from export_queue.core.transactions import expire, prune, take_snapshot

EVERY_WAY = True
fork = multiprocessing.get_context("fork")


def begin(store: Store, row: str, **options: Any) -> dict[str, Any]:
    """Begin a long transaction with a staged cell."""
    value = store.begin(**options)
    with store.resume(value) as tx:
        tx.table("t").set(row, "n", b"staged")
    return value


def keep_invalid(store: Store, number: int) -> None:
    """Bring an id into the state that two SQL transactions, one for each table, would leave between them."""
    with store.database.begin() as work:
        work.connection.execute(schema.invalid.insert().values(id=number, since_ms=0, left_to="files"))


def fail_at(store: Store, table: sa.Table, column: str, number: int) -> None:
    """Let the database refuse to insert or delete the rows of one id."""
    event = "insert" if table is schema.invalid else "delete"
    row = "new" if event == "insert" else "old"
    with store.database.begin() as work:
        if work.connection.dialect.name == "sqlite":
            work.connection.exec_driver_sql(
                f"create trigger refuse before {event} on {table.name} when {row}.{column} = {number} "
                "begin select raise(abort, 'a bad row'); end"
            )
            return
        work.connection.exec_driver_sql(
            "create function public.refuse() returns trigger language plpgsql as "
            "$$ begin raise exception 'a bad row'; end $$"
        )
        work.connection.exec_driver_sql(
            f"create trigger refuse before {event} on export_queue.{table.name} for each row "
            f"when ({row}.{column} = {number}) execute function public.refuse()"
        )


def test_a_sweep_that_meets_an_id_which_is_invalid_already_ends_it(store: Store) -> None:
    value = begin(store, "a", timeout=0.05)
    keep_invalid(store, int(value["id"]))
    wait_past(store, value["deadline_ms"])
    assert expire(store.database) == 1
    assert expire(store.database) == 0
    write(store, "b", b"1")
    assert [(kept.id, kept.left_to) for kept in store.kept_invalid()] == [(int(value["id"]), "files")]


@pytest.mark.parametrize("swept", ["expiry", "pruning"])
def test_a_sweep_goes_on_past_a_transaction_that_it_cannot_end(
    store: Store, swept: str, caplog: pytest.LogCaptureFixture
) -> None:
    values = [begin(store, row, timeout=0.05) for row in "abc"]
    bad = int(values[0]["id"])
    wait_past(store, values[-1]["deadline_ms"])
    if swept == "expiry":
        fail_at(store, schema.invalid, "id", bad)
    else:
        fail_at(store, schema.staged_cell, "id", bad)
    with caplog.at_level(logging.WARNING, "export_queue.transactions"):
        assert expire(store.database) == (2 if swept == "expiry" else 3)
        assert prune(store.database) == 2
    assert take_snapshot(store.database).excluded == (bad,)
    assert [f"transaction {bad}: a bad row" in line for line in caplog.messages] == [True]


def test_a_run_of_clean_up_prunes_all_but_the_transaction_that_it_cannot_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export_queue.core.maintenance.cleanup.MOST_PRUNED", 2)
    values = [begin(store, row, timeout=0.05) for row in "abcde"]
    wait_past(store, values[-1]["deadline_ms"])
    fail_at(store, schema.staged_cell, "id", int(values[0]["id"]))
    assert store.maintain().pruned == 4


def test_a_commit_of_an_invalid_id_is_refused_and_its_writes_stay_hidden(store: Store) -> None:
    value = begin(store, "a")
    keep_invalid(store, int(value["id"]))
    with pytest.raises(RegistrationLost, match="invalid"):
        store.commit(value)
    assert store.outcome(value["request"]).status == "refused"
    assert store.forget_invalid(int(value["id"]))
    store.maintain()
    assert read(store, "a") is None


def test_a_kill_while_an_id_becomes_invalid_leaves_it_in_progress_or_invalid_not_both(
    store: Store, store_kind: str, store_url: str, open_store: Callable[[], Store]
) -> None:
    if store_kind == "sqlite":
        pytest.skip("a process that is killed between two statements has no lock that another could hold")
    store.configure_table("t")

    def work() -> None:
        with open_store() as mine, mine.transaction(long=True) as tx:
            tx.join(Resource("files", fails_in="rollback"))
            tx.table("t").set("a", "n", b"1")
            raise KeyError("the user's own error")

    def waiting() -> list[int]:
        with store.database.read() as reading:
            found = reading.connection.exec_driver_sql(
                "select pid from pg_stat_activity where datname = current_database() "
                "and wait_event_type = 'Lock' and query like '%%xq_abort%%'"
            )
            return [row[0] for row in found]

    with psycopg.connect(store_url.replace("+psycopg", "")) as holder:
        holder.execute("lock table export_queue.xq_staged_key in access exclusive mode")  # the abort stops there
        child = fork.Process(target=work, daemon=True)
        child.start()
        wait_until(waiting, "the abort does not come")
        assert child.pid
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        for pid in waiting():
            holder.execute("select pg_terminate_backend(%s)", (pid,))
    wait_until(lambda: not waiting(), "the abort goes on")
    with store.database.read() as reading:
        active = set(reading.connection.scalars(sa.select(schema.active.c.id)))
        invalid = set(reading.connection.scalars(sa.select(schema.invalid.c.id)))
    assert len(active | invalid) == 1
    assert not active & invalid
