"""Histories over business rows *and* entries: the entries of a key are in the order of the users' commits (I3, I9).

Each client appends numbers to business rows in SQL transactions of its own, and adds each number to a queue in a bound
transaction: the block before or after the row, around it, with reads before it. Whatever commits, the numbers in a row
are those of its key's entries, in their order; the two orders of block and row may end in a deadlock, an error.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
from typing import Any

import orjson
import psycopg
import pytest
import sqlalchemy as sa
from tests.battery.shared import fork
from tests.battery.ways import Way
from tests.support.fixtures import Covered

from export_queue.core.client import Store, TransactionContext
from export_queue.core.errors import ExportQueueError
from export_queue.core.store import schema

WORKERS, ROWS = 3, 2
TRANSACTIONS = int(os.environ.get("EXPORT_QUEUE_BATTERY_TRANSACTIONS", "100000"))
HANGS = 7200


class Client:
    """One process with one connection of its own."""

    def __init__(self, way: Way, url: str, store: Store, number: int, generator: random.Random) -> None:
        self.way, self.url, self.store, self.number, self.generator = way, url, store, number, generator
        self.value = number * 1_000_000
        self.connection: Any = None

    def connect(self) -> Any:
        if self.way.database == "sqlite":
            return sqlite3.connect(str(sa.make_url(self.url).database), isolation_level=None, timeout=20)
        connection = psycopg.connect(self.url.replace("+psycopg", ""))
        connection.execute("set deadlock_timeout = '10ms'")
        connection.commit()
        return connection

    def transact(self) -> None:
        self.connection = self.connection or self.connect()
        try:
            if self.way.database == "sqlite":
                self.connection.execute(self.generator.choice(("begin", "begin immediate")))
            self.change(b"r%d" % self.generator.randrange(ROWS))
            if self.generator.random() < 0.1:
                self.connection.rollback()
            else:
                self.connection.commit()
        except (ExportQueueError, psycopg.Error, sqlite3.Error):
            with contextlib.suppress(psycopg.Error, sqlite3.Error):
                self.connection.rollback()

    def change(self, row: bytes) -> None:
        self.value += 1
        how = self.generator.choice(("row first", "block first", "within", "within"))
        if how == "row first":
            self.update(row)
        with self.store.transaction(connection=self.connection) as tx:
            self.look(tx)
            if how == "within":
                self.update(row)
                self.look(tx)
            tx.queue("q").add(row.decode(), self.value, exclusive=self.generator.random() < 0.1)
        if how == "block first":
            self.update(row)

    def look(self, tx: TransactionContext) -> None:
        what = self.generator.choice(("nothing", "reads", "asks for its id"))
        if what == "reads":
            tx.table("rates").get("eur", "usd")
        elif what == "asks for its id":
            _ = tx.id

    def update(self, row: bytes) -> None:
        self.connection.execute(
            f"update business set held = held || ' {self.value}' where id = '{row.decode()}'"  # both are ours
        )


def run(way: Way, url: str, number: int, seed: int, transactions: int) -> None:
    with way.open(url, number=number) as store:
        client = Client(way, url, store, number, random.Random(seed))
        for _ in range(transactions):
            client.transact()


@pytest.mark.timeout(HANGS)
@pytest.mark.parametrize(
    "transactions",
    [
        pytest.param(60, id="short"),
        pytest.param(TRANSACTIONS // WORKERS, id="long", marks=pytest.mark.full("as many as are asked for")),
    ],
)
def test_entries_are_in_the_order_of_the_business_rows_that_they_tell_of(
    way: Way, way_url: str, seed: int, transactions: int, covered: Covered
) -> None:
    with way.open(way_url) as store:
        store.configure_queue("q")
        store.configure_table("rates")
        prefix = "public." if store.database.dialect.name == "postgresql" else ""
        with store.database.begin() as work:
            work.connection.execute(sa.text(f"create table {prefix}business (id varchar(9) primary key, held text)"))
            for row in range(ROWS):
                work.connection.execute(sa.text(f"insert into {prefix}business values ('r{row}', '')"))
        store.database.close()
        chance = random.Random(seed)
        arguments = [(way, way_url, number, chance.randrange(10**9), transactions) for number in range(WORKERS)]
        processes = [fork.Process(target=run, args=one, daemon=True) for one in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join(HANGS)
        assert [process.exitcode for process in processes] == [0] * WORKERS
        committed = 0
        with store.database.read() as work:
            for row, held in work.connection.execute(sa.text(f"select id, held from {prefix}business")):
                e = schema.entry.c
                found = work.connection.scalars(sa.select(e.value).where(e.key == row.encode()).order_by(e.seq))
                assert [orjson.loads(value or b"") for value in found] == [int(value) for value in held.split()], row
                committed += len(held.split())
    covered(f"{WORKERS * transactions} transactions, {committed} committed, seed {seed}")
    assert committed > WORKERS * transactions / 4
