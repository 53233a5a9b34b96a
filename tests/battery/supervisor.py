"""One run of the workload: its processes, what befalls them, and what is checked when they have ended."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import sqlalchemy as sa
from tests.battery import plants
from tests.battery.clocks import DAY, HOUR, MINUTE, SteppingClock
from tests.battery.journals import Journal, Told, ask_for_the_dead, read_journals
from tests.battery.processes import clean_up, run_client, run_janitor
from tests.battery.shared import STAGES, Shared, configure, fork
from tests.battery.ways import Way
from tests.battery.workload import Client
from tests.support.histories import HistoryTransaction, Verdict, check_history

from export_queue import Store
from export_queue.core.store import schema
from export_queue.core.transactions import take_snapshot

CLIENTS, JANITORS = 10, 2
EVENT_EVERY = 40
"""Transactions between two blows, on average."""
STALLED_SECONDS = 120
"""Nothing at all has ended for so long: something hangs, whatever the machine."""
STOPS = (0.01, 0.1, 0.1, 0.5, 1.0)
CLOCK_STEPS = (2000, 2000, 2000, 10 * MINUTE, 3 * HOUR, 3 * DAY)


class Run:
    """A run on one store.

    :param url: of a store that has been created and is empty.
    """

    def __init__(self, way: Way, url: str, folder: Path, seed: int) -> None:
        self.way, self.url, self.folder = way, url, folder
        self.chance = random.Random(seed)
        self.clock = SteppingClock(self.chance, CLOCK_STEPS)
        self.shared = Shared.create(folder, CLIENTS)
        self.journals = [folder / f"journal-{number}" for number in range(CLIENTS + JANITORS)]
        self.sessions = 0
        self.processes: list[BaseProcess] = []
        self.stopped: dict[int, float] = {}  # by number of the process, when it may go on
        self.events: Counter[str] = Counter()
        self.failures: list[str] = []  # what clients found wrong by themselves
        with way.open(url) as store:
            configure(store)
        if self.is_server:
            plants.give_the_store_a_clock_of_its_own(url)
            plants.pause_now_and_then(url)

    @property
    def is_server(self) -> bool:
        return self.way.database == "postgresql"

    @property
    def done(self) -> int:
        """Transactions that have ended so far."""
        return sum(self.shared.done)

    @property
    def ended_late(self) -> dict[str, int]:
        """How often a transaction that others had ended was refused, by what it was about to do."""
        return {stage: sum(self.shared.ended_late[i :: len(STAGES)]) for i, stage in enumerate(STAGES)}

    # --- processes, and what befalls them ---------------------------------------------------------------------------

    def run(self, transactions: int, *, torment: bool = True) -> None:
        """Let the clients work until so many transactions have ended."""
        goal, tormented = self.done + transactions, self.done
        self.shared.stop.value = 0
        self.processes = [self.start(number) for number in range(CLIENTS + JANITORS)]
        progress, seen = time.monotonic(), -1
        try:
            while self.done < goal:
                time.sleep(0.01)
                if self.done != seen:
                    progress, seen = time.monotonic(), self.done
                assert time.monotonic() < progress + STALLED_SECONDS, f"nothing ends any more: {self.summary()}"
                self.resume(time.monotonic())
                self.notice_crashes()
                while torment and tormented + EVENT_EVERY <= self.done:
                    tormented += EVENT_EVERY
                    self.torment()
            self.shared.stop.value = 1
            end = time.monotonic() + STALLED_SECONDS
            while any(process.is_alive() for process in self.processes):
                assert time.monotonic() < end, "a process does not end"
                self.resume(float("inf"))
                time.sleep(0.01)
            self.notice_crashes()
        finally:
            for process in self.processes:
                process.kill()
                process.join(30)
            print(self.summary())

    def summary(self) -> str:
        self.events["long transactions pruned"] = self.shared.pruned.value
        return f"{self.way.name}: {self.done} transactions; {dict(self.events)}; ended by others: {self.ended_late}"

    def start(self, number: int) -> BaseProcess:
        self.sessions += 1
        arguments = (
            self.way,
            self.url,
            self.journals[number],
            number,
            self.sessions,
            self.chance.randrange(1 << 30),
            self.shared,
        )
        process = fork.Process(target=run_client if number < CLIENTS else run_janitor, args=arguments, daemon=True)
        process.start()
        return process

    def torment(self) -> None:
        number = self.chance.randrange(len(self.processes))
        match self.chance.choice(
            ("kill", "stop", "stop", "clock", "clock", *(["session"] * 2 if self.is_server else []))
        ):
            case "kill":
                self.processes[number].kill()
                self.processes[number].join(30)
                self.stopped.pop(number, None)
                if number < CLIENTS:
                    self.shared.asleep_until[number] = 0
                self.processes[number] = self.start(number)
                self.events["processes killed"] += 1
            case "stop" if number not in self.stopped:
                self.send(number, signal.SIGSTOP)
                self.stopped[number] = time.monotonic() + self.chance.choice(STOPS)
                self.events["processes stopped"] += 1
            case "session":
                self.events["server sessions ended"] += self.end_session()
            case "clock":
                self.set_clock(self.clock.step())
                self.events["clock steps"] += 1

    def resume(self, now: float) -> None:
        """Let those go on whose time has come: whom we stopped, and who stopped themselves."""
        for number in [number for number, end in self.stopped.items() if end <= now]:
            del self.stopped[number]
            self.send(number, signal.SIGCONT)
        for number, until in enumerate(self.shared.asleep_until):
            if until and until / 1e9 <= now and number not in self.stopped:
                self.send(number, signal.SIGCONT)  # again and again, until it says that it is awake

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
        # A connection for this once: one that is kept would be shared with every process that is started.
        with plants.connect(self.url) as connection:
            return len(connection.execute(statement.encode()).fetchall())

    def set_clock(self, milliseconds: int) -> None:
        self.shared.clock_offset.value = milliseconds
        if self.is_server:
            plants.set_clock(self.url, milliseconds)

    def notice_crashes(self) -> None:
        codes = {process.name: process.exitcode for process in self.processes}
        assert all(code in (None, 0) for code in codes.values()), f"a process ended by itself: {codes}"

    # --- afterwards -------------------------------------------------------------------------------------------------

    def check(self) -> Verdict:
        """Compare what the clients were told with what the store holds, and check the history."""
        self.settle()
        with self.way.open(self.url) as store:
            outcomes = read_outcomes(store)
            begun = time.monotonic()
            committed = Committed()
            self.failures = []
            journals = read_journals([path for path in self.journals if path.exists()], self.failures)
            verdict = check_history(true_history(journals, outcomes, committed))
            print(f"checked in {time.monotonic() - begun:.1f} s: {verdict}", *self.failures[:20], sep="\n")
            committed.compare(store, outcomes)
        return verdict

    def settle(self) -> None:
        """Ask for the last requests of the dead, wait until nothing is in progress, and read everything once more."""
        self.set_clock(self.clock.highest + DAY + MINUTE)  # what dead clients registered has timed out
        with self.way.open(self.url, clock=self.shared.clock) as store:
            plants.follow_the_stores_clock(store)
            for path in self.journals:
                if path.exists():
                    ask_for_the_dead(store, Journal(path))
            end = time.monotonic() + STALLED_SECONDS
            while take_snapshot(store.database).excluded:
                assert time.monotonic() < end, "an id stays in progress for ever"
                clean_up(store)
                time.sleep(0.05)
            clean_up(store)
            self.set_clock(0)
            self.sessions += 1
            last = self.folder / f"journal-last-{self.sessions}"
            Client(store, Journal(last), 0, self.sessions, self.chance, self.shared).read_everything()
            self.journals.append(last)


Outcomes = dict[str, tuple[str, int | None]]
"""By request: the outcome on record, and the id."""


def read_outcomes(store: Store) -> Outcomes:
    with store.database.read() as work:
        columns = schema.outcome.c
        rows = work.connection.execute(sa.select(columns.request, columns.status, columns.id))
        return {request.hex: (status, number) for request, status, number in rows}


class Committed:
    """What the store must hold when all is over, beside the lists and registers: exactly what was committed (I3)."""

    def __init__(self) -> None:
        self.entries: set[tuple[int, bytes]] = set()
        self.notifications: set[tuple[int, bytes]] = set()

    def compare(self, store: Store, outcomes: Outcomes) -> None:
        ids = {number for status, number in outcomes.values() if status == "committed"}
        e, n, c, k = schema.entry.c, schema.notification.c, schema.cell.c, schema.conflict_key.c
        with store.database.read() as work:
            rows = work.connection.execute
            for what, statement, expected in (
                ("entries", sa.select(e.seq, e.key), self.entries),
                ("notifications", sa.select(n.version, n.row_key), self.notifications),
            ):
                found = {(number, key) for number, key in rows(statement)}
                too_many, missing = sorted(found - expected)[:10], sorted(expected - found)[:10]
                assert not too_many, f"{what} that nobody committed: {too_many}"
                assert not missing, f"{what} that were committed and are not there: {missing}"
            for column in (c.version, k.writer):
                left = {number for (number,) in rows(sa.select(column).distinct())} - ids
                assert not left, f"{column}: ids that did not commit: {sorted(left)[:10]}"
            for table in (schema.active, schema.invalid, schema.staged_cell, schema.staged_entry, schema.staged_key):
                left_over = rows(sa.select(table).limit(10)).fetchall()
                assert not left_over, f"{table.name} holds {left_over} after clean-up"


def true_history(journals: Iterable[Told], outcomes: Outcomes, committed: Committed) -> Iterator[HistoryTransaction]:
    """Give what the clients were told, after a look at what the store has on record."""
    for told in journals:
        transaction = told.transaction
        status, number = outcomes.get(told.request, ("refused", None))
        if transaction.status == "aborted":
            assert status == "refused", f"told that it was refused, which is wrong: {told}"
        elif told.writes:
            assert status == "committed", f"told that it committed, which is wrong: {told}"
            assert transaction.id in (None, number), f"committed under another id, {number}: {told}"
            assert number is not None
            transaction = replace(transaction, id=number)
            committed.entries |= {(number, key) for key in told.entries}
            committed.notifications |= {(number, row) for row in told.notifications}
        yield transaction
