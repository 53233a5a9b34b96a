"""Histories of many processes under kills, judged by the checker: strong snapshot isolation, and truthful answers.

``EXPORT_QUEUE_BATTERY_TRANSACTIONS`` sets how many transactions each store runs, ``EXPORT_QUEUE_SEED`` what the
processes do and what befalls them (not when: that is the machine's).
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.battery.workload import (
    Client,
    Journal,
    Shared,
    Told,
    ask_for_the_dead,
    configure,
    read_journals,
    run_client,
    run_janitor,
)

from export_queue.core.client import Store
from export_queue.core.errors import TransactionError
from export_queue.core.store import schema
from export_queue.core.testing.histories import Append, HistoryTransaction, Verdict, Write, check_history
from export_queue.core.transactions import observe, prune, sweep

fork = multiprocessing.get_context("fork")

TRANSACTIONS = int(os.environ.get("EXPORT_QUEUE_BATTERY_TRANSACTIONS", "10000"))
MANY = 100_000
CLIENTS, JANITORS = 6, 1
SLOWEST = 40
"""Transactions a second that even a slow machine must manage; what is not done by then is left out."""


class Run:
    """One run of the workload on one store."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        print(f"EXPORT_QUEUE_SEED={seed}")
        self.url, self.folder = url, folder
        self.chance = random.Random(seed)
        self.shared = Shared(
            done=fork.RawArray("q", CLIENTS),
            generations=fork.RawArray("q", 64),
            pruned=fork.RawValue("q", 0),
            stop=fork.RawValue("b", 0),
            clock_offset=fork.RawValue("q", 0),
        )
        self.journals = [folder / f"journal-{number}" for number in range(CLIENTS)]
        self.sessions = 0
        self.processes: list[BaseProcess] = []
        self.stopped: dict[int, float] = {}  # by number of the process, when it may go on
        self.events: Counter[str] = Counter()

    @property
    def done(self) -> int:
        return sum(self.shared.done)

    def run(self, transactions: int, *, torment: bool = True) -> None:
        """Let the clients work until so many transactions have ended, or for as long as a slow machine takes."""
        goal = self.done + transactions
        end = time.monotonic() + 30 + transactions / SLOWEST
        self.shared.stop.value = 0
        self.processes = [self.start(number, cuts=torment) for number in range(CLIENTS + JANITORS)]
        try:
            while self.done < goal and time.monotonic() < end:
                time.sleep(self.chance.uniform(0.01, 0.2))
                self.resume(time.monotonic())
                self.notice_crashes()
                if torment:
                    self.torment()
            self.shared.stop.value = 1
            self.resume(float("inf"))
            for process in self.processes:
                process.join(30)
            self.notice_crashes()
        finally:
            for process in self.processes:
                process.kill()
                process.join(30)
            self.events["long transactions pruned"] = self.shared.pruned.value
            print(f"{self.done} transactions; {dict(self.events)}")

    def start(self, number: int, *, cuts: bool) -> BaseProcess:
        self.sessions += 1
        if number < CLIENTS:
            seed = self.chance.randrange(1 << 30)
            arguments = (self.url, self.journals[number], number, self.sessions, seed, self.shared, cuts)
            process = fork.Process(target=run_client, args=arguments, daemon=True)
        else:
            process = fork.Process(target=run_janitor, args=(self.url, self.shared), daemon=True)
        process.start()
        return process

    def torment(self) -> None:
        number = self.chance.randrange(len(self.processes))
        is_server = self.url.startswith("postgresql")
        match self.chance.choice(("kill", "stop", "stop", "session" if is_server else "clock")):
            case "kill":
                self.processes[number].kill()
                self.processes[number].join(30)
                self.stopped.pop(number, None)
                self.processes[number] = self.start(number, cuts=True)
                self.events["processes killed"] += 1
            case "stop" if number not in self.stopped:
                self.send(number, signal.SIGSTOP)
                self.stopped[number] = time.monotonic() + self.chance.choice((0.01, 0.1, 0.1, 0.5, 1.0))
                self.events["processes stopped"] += 1
            case "session":
                self.events["server sessions ended"] += self.end_session()
            case "clock":
                self.shared.clock_offset.value = self.chance.randrange(-2000, 2000)
                self.events["clock steps"] += 1

    def resume(self, now: float) -> None:
        for number in [number for number, end in self.stopped.items() if end <= now]:
            del self.stopped[number]
            self.send(number, signal.SIGCONT)

    def send(self, number: int, what: signal.Signals) -> None:
        pid = self.processes[number].pid
        if pid is not None and self.processes[number].is_alive():
            os.kill(pid, what)

    def end_session(self) -> int:
        how = self.chance.choice(("pg_terminate_backend", "pg_terminate_backend", "pg_cancel_backend"))
        statement = (
            f"select {how}(pid) from pg_stat_activity where datname = current_database() "
            "and pid <> pg_backend_pid() order by random() limit 1"
        )
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            return len(connection.execute(statement.encode()).fetchall())

    def notice_crashes(self) -> None:
        codes = {process.name: process.exitcode for process in self.processes}
        assert all(code in (None, 0) for code in codes.values()), f"a process ended by itself: {codes}"

    def settle(self) -> None:
        """Ask for the last requests of the dead, wait until nothing is in progress, and read everything once more."""
        self.shared.clock_offset.value = 0
        with Store.open(self.url, clock=self.shared.clock) as store:
            for path in self.journals:
                if path.exists():
                    ask_for_the_dead(store, Journal(path))
            end = time.monotonic() + 60
            while observe(store.database).excluded:
                assert time.monotonic() < end, "an id stays in progress for ever"
                sweep(store.database)
                prune(store.database)
                time.sleep(0.05)
            self.sessions += 1
            last = self.folder / f"journal-last-{self.sessions}"
            Client(store, Journal(last), self.sessions, self.chance, self.shared).read_everything()
            self.journals.append(last)

    def check(self) -> Verdict:
        """Compare what the clients were told with the outcomes on record, and check the history."""
        self.settle()
        with Store.open(self.url) as store, store.database.read() as work:
            columns = schema.outcome.c
            rows = work.connection.execute(sa.select(columns.request, columns.status, columns.id))
            outcomes = {request.hex: (status, number) for request, status, number in rows}
        begun = time.monotonic()
        verdict = check_history(true_history(read_journals(self.journals), outcomes))
        print(f"checked in {time.monotonic() - begun:.1f} s: {verdict}")
        return verdict


def true_history(journals: Iterable[Told], outcomes: dict[str, tuple[str, int | None]]) -> Iterator[HistoryTransaction]:
    """Give what the clients were told, after a look at what the store has on record."""
    for told in journals:
        transaction = told.transaction
        status, number = outcomes.get(told.request, ("refused", None))
        writes = any(isinstance(o, (Append, Write)) for o in transaction.operations)
        if transaction.status == "aborted":
            assert status == "refused", f"told that it was refused, which is wrong: {told}"
        elif writes:
            assert status == "committed", f"told that it committed, which is wrong: {told}"
            assert transaction.id in (None, number), f"committed under another id, {number}: {told}"
            transaction = replace(transaction, id=number)
        yield transaction


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("EXPORT_QUEUE_SEED", random.SystemRandom().randrange(10**6)))


def seconds(transactions: int) -> float:
    return 120 + transactions / SLOWEST * 2


@pytest.mark.parametrize(
    "transactions",
    [
        pytest.param(TRANSACTIONS, marks=pytest.mark.timeout(seconds(TRANSACTIONS)), id="some"),
        pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(seconds(MANY))], id="many"),
    ],
)
def test_what_clients_see_under_kills_is_strong_snapshot_isolation(
    store: Store, store_url: str, tmp_path: Path, seed: int, transactions: int
) -> None:
    configure(store)
    store.close()
    run = Run(store_url, tmp_path, seed)
    run.run(transactions)
    verdict = run.check()
    assert not verdict.anomalies, str(verdict)
    assert verdict.committed > min(500, transactions / 10), "the workload hardly ran"


def test_a_long_transaction_that_was_ended_by_others_does_not_read_on_without_its_own_writes(store: Store) -> None:
    with pytest.raises(TransactionError), store.transaction(long=True, timeout=0.001) as tx:
        tx.table("rows").set("a", "b", b"staged")
        tx.flush()
        end = time.monotonic() + 30
        while not sweep(store.database):
            assert time.monotonic() < end
        prune(store.database)
        found = tx.table("rows").get("a", "b")
        pytest.fail(f"expected an error or b'staged', found {found!r}")


def function_with_a_pause(connection: psycopg.Connection[Any], *, gate: bool) -> str:
    """Give the store's function that draws ids, with a pause between drawing and registering."""
    found = connection.execute("select pg_get_functiondef('export_queue.xq_draw_v1'::regproc)").fetchone()
    assert found
    paused, count = re.subn(r"(\n *t := case [^;]*;)", r"\1 perform pg_sleep(random() * 0.005);", found[0])
    assert count == 1
    if not gate:
        paused, count = re.subn(r"pg_advisory_(un)?lock\(mask\)", "true", paused)
        assert count == 5
    return paused


@pytest.fixture
def paused_run(request: pytest.FixtureRequest, postgres_url: str, tmp_path: Path, seed: int) -> Run:
    with Store.open(postgres_url) as store, psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
        store.create()
        configure(store)
        connection.execute(function_with_a_pause(connection, gate=request.param).encode())
    return Run(postgres_url, tmp_path, seed)


@pytest.mark.parametrize("paused_run", [True], indirect=True)
def test_a_pause_between_drawing_and_registering_an_id_is_harmless_under_the_gate(paused_run: Run) -> None:
    paused_run.run(2000, torment=False)
    verdict = paused_run.check()
    assert not verdict.anomalies, str(verdict)


@pytest.mark.parametrize("paused_run", [False], indirect=True)
def test_the_same_pause_without_the_gate_is_caught(paused_run: Run) -> None:
    for _ in range(10):
        paused_run.run(1000, torment=False)
        if paused_run.check().anomalies:
            return
    pytest.fail("the checker is blind: ids registered out of order went unnoticed")
