"""Histories over business rows, entries *and* cells, under a clock that steps (I1-I3, I9).

Each client appends numbers to business rows in SQL transactions of its own; a bound transaction adds each number to a
queue, and often to a list in a cell: the block before or after the row, around it, with reads before it. Other
transactions, not bound, read the lists and append to them. Whatever commits, the numbers in a row are those of its
key's entries, in their order, and what all of them saw is snapshot isolation; the two orders of block and row may end
in a deadlock, an error. The store's clock steps by minutes to weeks meanwhile, forward and back, and is maintained.
"""

from __future__ import annotations

import contextlib
import math
import random
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
import sqlalchemy as sa
from tests.battery import plants
from tests.battery.clocks import DAY, HOUR, MINUTE, SteppingClock
from tests.battery.journals import LETTERS, Journal, read_journals
from tests.battery.processes import end_all
from tests.battery.shared import fork
from tests.battery.size import HANGS, TRANSACTIONS
from tests.battery.ways import Way
from tests.support.fixtures import Covered
from tests.support.histories import Append, Operation, ReadList, check_history

from export_queue import ExportQueueError, Store, TransactionContext
from export_queue.core.store import schema

WORKERS, ROWS, LISTS = 3, 2, 3
LIST_LENGTH = 30
ROW_LENGTH = 300
"""Transactions of all clients after which they take other rows: these and the lists would grow for ever."""
CLOCK_STEPS = (10 * MINUTE, 8 * HOUR, 8 * HOUR, 3 * DAY)
BETWEEN_STEPS = 0.2
TIMEOUT = 3600.0
"""Seconds that a transaction may take by the store's clock, which steps under it."""

Clock = Callable[[], int]


def row_of(generation: int, number: int) -> str:
    """Name a business row, which is its entries' key, too."""
    return f"r{generation}-{number}"


class Client:
    """One process with one connection of its own."""

    def __init__(self, way: Way, url: str, store: Store, journal: Journal, number: int, seed: int, done: Any) -> None:
        self.way, self.url, self.store, self.journal, self.number, self.done = way, url, store, journal, number, done
        self.generator = random.Random(seed)
        self.value = number * 1_000_000
        self.generations = [0] * LISTS
        """Of each list the one that is in use; a full one is left, since reading it would take ever longer."""
        self.operations: list[Operation] = []
        self.request = ""
        self.connection: Any = None

    def connect(self) -> Any:
        if self.way.database == "sqlite":
            return sqlite3.connect(str(sa.make_url(self.url).database), isolation_level=None, timeout=20)
        connection = psycopg.connect(self.url.replace("+psycopg", ""))
        connection.execute("set deadlock_timeout = '10ms'")
        connection.commit()
        return connection

    def chance(self, probability: float) -> bool:
        return self.generator.random() < probability

    def transact(self) -> None:
        self.value += 1
        self.operations, self.request = [], ""
        row = row_of(sum(self.done) // ROW_LENGTH, self.generator.randrange(ROWS))
        begin, is_bound = time.monotonic_ns(), self.chance(0.7)
        answer = self.transact_bound(row) if is_bound else self.transact_freely()
        self.done[self.number] += 1
        if self.request:
            noted = [(LETTERS[type(operation)], *operation) for operation in self.operations]
            told = {"session": self.number, "begin": begin, "request": self.request, "operations": noted}
            more = {"row": row, "value": self.value} if is_bound else {}
            self.journal.write(**told, **more, answer=answer, end=time.monotonic_ns())

    def transact_freely(self) -> str:
        try:
            with self.store.transaction(long=self.chance(0.5), timeout=TIMEOUT) as tx:
                self.request = tx.request.hex
                for slot in self.generator.sample(range(LISTS), 2):
                    self.read(tx, slot)
                    self.pause()
                self.pause()
                if self.chance(0.5):
                    self.append(tx, slot)
                else:
                    self.read(tx, slot)
                self.pause()
        except ExportQueueError:
            return "refused"
        return "committed"

    def transact_bound(self, row: str) -> str:
        self.connection = self.connection or self.connect()
        try:
            if self.way.database == "sqlite":
                self.connection.execute(self.generator.choice(("begin", "begin immediate")))
            self.change(row)
            self.pause()
            if self.chance(0.9):
                self.connection.commit()
                return "committed"
        except (ExportQueueError, psycopg.Error, sqlite3.Error):
            pass
        with contextlib.suppress(psycopg.Error, sqlite3.Error):
            self.connection.rollback()
        return "refused"

    def change(self, row: str) -> None:
        how = self.generator.choice(("row first", "block first", "within", "within"))
        if how == "row first":
            self.update(row)
        with self.store.transaction(connection=self.connection, timeout=TIMEOUT) as tx:
            self.request = tx.request.hex
            self.look(tx)
            if how == "within":
                self.update(row)
                self.look(tx)
            tx.queue("q").add(row, self.value, exclusive=self.chance(0.1))
        if how == "block first":
            self.update(row)

    def look(self, tx: TransactionContext) -> None:
        what = self.generator.choice(("nothing", "reads", "appends", "asks for its id"))
        slot = self.generator.randrange(LISTS)
        if what == "reads":
            self.read(tx, slot)
        elif what == "appends" and not any(isinstance(o, Append) for o in self.operations):
            self.append(tx, slot)
        elif what == "asks for its id":
            _ = tx.id

    def read(self, tx: TransactionContext, slot: int) -> tuple[str, tuple[int, ...]]:
        while True:
            key = f"l{slot}-{self.generations[slot]}"
            values = tuple(map(int, (tx.table("lists").get(key, "v") or b"").split()))
            self.operations.append(ReadList(key, values))
            if len(values) < LIST_LENGTH:
                return key, values
            self.generations[slot] += 1

    def append(self, tx: TransactionContext, slot: int) -> None:
        key, values = self.read(tx, slot)
        tx.table("lists").set(key, "v", " ".join(map(str, (*values, self.value))).encode())
        self.operations.append(Append(key, self.value))

    def update(self, row: str) -> None:
        self.connection.execute(
            f"update business set held = held || ' {self.value}' where id = '{row}'"  # both are ours
        )

    def pause(self) -> None:
        if self.chance(0.1):
            time.sleep(self.generator.choice((0.003, 0.01, 0.1)) * self.generator.random())


def run(way: Way, url: str, clock: Clock, path: Path, number: int, seed: int, transactions: int, done: Any) -> None:
    with way.open(url, number=number, clock=clock) as store:
        plants.follow_the_stores_clock(store)
        client = Client(way, url, store, Journal(path), number, seed, done)
        for _ in range(transactions):
            client.transact()


@pytest.mark.timeout(HANGS)
@pytest.mark.parametrize(
    "all_ways",
    [
        pytest.param(600, id="short", marks=pytest.mark.brief),
        pytest.param(TRANSACTIONS, id="long", marks=pytest.mark.full("as many transactions as are asked for")),
    ],
)
def test_bound_transactions_are_in_the_order_of_the_business_rows_and_snapshot_isolation(
    way: Way, way_url: str, tmp_path: Path, seed: int, all_ways: int, covered: Covered, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset, done = fork.RawValue("q", 0), fork.RawArray("q", WORKERS)

    def clock() -> int:
        return time.time_ns() // 1_000_000 + int(offset.value)

    chance = random.Random(seed)
    stepping = SteppingClock(chance, CLOCK_STEPS)
    paths = [tmp_path / f"journal-{number}" for number in range(WORKERS)]
    each, steps = math.ceil(way.part_of(all_ways) / WORKERS), 0
    with way.open(way_url, clock=clock) as store:
        is_server = store.database.dialect.name == "postgresql"
        set_up(store, way_url if is_server else "", WORKERS * each // ROW_LENGTH + 1)
        if is_server:
            monkeypatch.setattr(store.database.dialect.steps, "now", lambda connection: clock())
        store.database.close()
        arguments = [
            (way, way_url, clock, path, number, chance.randrange(10**9), each, done)
            for number, path in enumerate(paths)
        ]
        processes = [fork.Process(target=run, args=one, daemon=True) for one in arguments]
        for process in processes:
            process.start()
        while any(process.is_alive() for process in processes):
            offset.value = stepping.step()
            if is_server:
                plants.set_clock(way_url, offset.value)
            steps += 1
            if chance.random() < 0.2:
                store.maintain()
            processes[steps % WORKERS].join(chance.uniform(0, BETWEEN_STEPS))
        assert [process.exitcode for process in processes] == [0] * WORKERS
        failures: list[str] = []
        verdict = check_history(told.transaction for told in read_journals(paths, failures))
        assert not verdict.anomalies, str(verdict)
        end_all(store)
        committed = compare(store, paths)
    covered(f"{verdict.transactions} transactions, {committed} committed, {steps} steps of the clock, seed {seed}")
    assert verdict.transactions > WORKERS * each * 0.8
    assert committed > WORKERS * each / 4


def set_up(store: Store, server: str, generations: int) -> None:
    """Create what the clients use, and a clock of the store's own.

    :param server: URL of a PostgreSQL store; else empty.
    """
    store.configure_queue("q")
    store.configure_table("lists")
    prefix = "public." if server else ""
    with store.database.begin() as work:
        work.connection.execute(sa.text(f"create table {prefix}business (id varchar(9) primary key, held text)"))
        for row in (row_of(generation, number) for generation in range(generations) for number in range(ROWS)):
            work.connection.execute(sa.text(f"insert into {prefix}business values ('{row}', '')"))
    if server:
        plants.give_the_store_a_clock_of_its_own(server)
        plants.follow_the_stores_clock(store)


def compare(store: Store, paths: list[Path]) -> int:
    """Compare rows, entries and cells with each other and with what the clients were told; returns what committed."""
    rows: dict[str, list[int]] = defaultdict(list)
    appended: list[tuple[bytes, int]] = []
    committed = 0
    for path in paths:
        for event in map(orjson.loads, path.read_bytes().splitlines()):
            if event["answer"] == "committed":
                committed += 1
                if "row" in event:
                    rows[event["row"]].append(event["value"])
                appended += [(key.encode(), value) for letter, key, value in event["operations"] if letter == "A"]
    entries: dict[str, list[int]] = defaultdict(list)
    with store.database.read() as work:
        e = schema.entry.c
        for key, value in work.connection.execute(sa.select(e.key, e.value).order_by(e.seq)):
            entries[key.decode()].append(orjson.loads(value))
        prefix = "public." if store.database.dialect.name == "postgresql" else ""
        for row, text in work.connection.execute(sa.text(f"select id, held from {prefix}business")):
            held = [int(value) for value in text.split()]
            assert entries.pop(row, []) == held, row
            assert sorted(rows[row]) == sorted(held), row
    assert not entries
    with store.transaction(read_only=True) as tx:
        cells = [(row, int(value)) for row, _, values in tx.table("lists").scan() for value in values.split()]
    assert sorted(cells) == sorted(appended)
    return committed
