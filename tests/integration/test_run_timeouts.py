"""``store.run`` and a time-out: a function that itself takes too long runs once, one that was held up runs again."""

from __future__ import annotations

import contextlib
import logging
import re
import sqlite3
import threading
from collections.abc import Iterator

import psycopg
import pytest
from tests.support.waiting import wait_until

from export_queue import ConflictError, Retry, Store, TransactionContext, TransactionTimeout
from export_queue.core.transactions import expire

TIMEOUT = 0.3
HELD_UP_TIMEOUT = 2.0
"""More than the work itself takes on a loaded machine."""
AGAIN = Retry(attempts=3, first_pause=0.001)


def store_now(store: Store) -> int:
    with store.database.read() as work:
        return work.now()


def pass_deadline(store: Store, tx: TransactionContext) -> None:
    """Let the time-out pass after the first read of a transaction."""
    tx.table("t").get("a", "n")
    end = store_now(store) + TIMEOUT * 1000
    wait_until(lambda: store_now(store) > end, "the store's clock stands")


@pytest.mark.parametrize("then", ["commit", "read again", "lose its registration"])
def test_a_function_that_takes_longer_than_its_time_out_runs_once(store: Store, then: str) -> None:
    store.configure_table("t")
    runs = []

    def work(tx: TransactionContext) -> None:
        runs.append(1)
        pass_deadline(store, tx)
        if then == "read again":
            tx.table("t").get("b", "n")
        if then == "lose its registration":
            expire(store.database)
        tx.table("t").set("a", "n", b"1")

    with pytest.raises(TransactionTimeout) as caught:
        store.run(work, timeout=TIMEOUT, retry=AGAIN, idempotency_key="nightly")
    assert len(runs) == 1
    told = rf"took \d\S+ s from its first read, and may take {TIMEOUT:g} s \(its time-out\); the store (.*)"
    found = re.search(told, str(caught.value))
    assert found
    assert re.match(r"did not hold it up|held it up for 0\.\d\d s", found[1])
    assert not caught.value.transient
    assert "timeout= of store.run" in str(caught.value.hint)
    assert not store.idempotency("nightly").committed


@contextlib.contextmanager
def held_up(url: str) -> Iterator[None]:
    """Hold a lock for which every commit waits, and in PostgreSQL every read, too."""
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw:
            raw.execute("BEGIN IMMEDIATE")
            yield
    else:
        with psycopg.connect(url.replace("+psycopg", "")) as raw:
            raw.execute("LOCK TABLE export_queue.xq_cell")
            yield


def test_a_function_that_the_store_held_up_runs_again(
    store: Store, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.configure_table("t")
    is_held_up, runs = threading.Event(), 0

    def hold_up() -> None:
        with held_up(store_url):
            is_held_up.set()
            end = store_now(store) + HELD_UP_TIMEOUT * 1000 + 100
            wait_until(lambda: store_now(store) > end, "the store's clock stands")

    holder = threading.Thread(target=hold_up, daemon=True)

    def work(tx: TransactionContext) -> str:
        nonlocal runs
        runs += 1
        tx.table("t").get("a", "n")
        if runs == 1:
            holder.start()
            assert is_held_up.wait(60)
            tx.table("t").get("b", "n")
        tx.table("t").set("a", "n", b"1")
        return "done"

    with caplog.at_level(logging.WARNING):
        assert store.run(work, timeout=HELD_UP_TIMEOUT, retry=AGAIN) == "done"
    holder.join(60)
    assert runs == 2
    told = "run 1 of a function was too late and is repeated: .* may take 2 s .*; the store held it up for 2"
    assert any(re.search(told, message) for message in caplog.messages)


def test_the_last_error_says_how_often_the_function_ran(store: Store) -> None:
    def work(tx: TransactionContext) -> None:
        tx.table("t").get("a", "n")
        store.run(lambda other: other.table("t").set("a", "n", b"2"))
        tx.table("t").set("a", "n", b"1")

    store.configure_table("t")
    with pytest.raises(ConflictError) as caught:
        store.run(work, retry=AGAIN)
    assert any("the function was run 3 times in" in note for note in caught.value.__notes__)
