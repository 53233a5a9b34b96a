"""What a session of a PostgreSQL server remembers may be dropped: by the driver, by a pooler, by anybody."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections.abc import Callable

import pytest
from tests.support.pgbouncer import PgBouncer

from export_queue import InvalidArgument, MemorySink, Store, StoreUnavailable, drain

DROPS = ("deallocate all", "discard all", "discard plans", "reset all", "select pg_advisory_unlock_all()", "unlisten *")
"""Each takes something from a session, and the driver sees it."""
NUMBERS = itertools.count()
UNSEEN = "do $$ begin execute 'deallocate all'; end $$"


def on_session(store: Store, statement: str) -> None:
    with store.database.connect() as connection:
        # The driver looks at what comes of a statement only when it meets its text for the first time.
        connection.exec_driver_sql(f"{statement} -- {next(NUMBERS)}")


class Walk:
    """One client that does what a store offers in any order, and knows what must come out."""

    def __init__(self, store: Store, seed: str) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.cells: dict[str, bytes] = {}
        self.added = self.exported = 0
        self.sink = MemorySink()

    def step(self) -> None:
        act: Callable[[], None] = self.random.choice(
            [self.write, self.read, self.read, self.scan, self.long, self.roll_back, self.refuse, self.drain]
        )
        for _ in range(self.random.choice([1, 1, 7])):  # the driver prepares by itself what is run six times
            act()

    def row(self) -> str:
        return self.random.choice("abc")

    def write(self) -> None:
        row, value = self.row(), b"%d" % self.random.randrange(1000)
        with self.store.transaction() as tx:
            if self.random.random() < 0.5:
                assert tx.table("t").get(row, "n") == self.cells.get(row)
            tx.table("t").set(row, "n", value)
            tx.queue("q").add(f"k{self.added}", "v")
        self.cells[row] = value
        self.added += 1

    def read(self) -> None:
        with self.store.transaction(read_only=True) as tx:
            for row in {self.row(), self.row()}:
                assert tx.table("t").get(row, "n") == self.cells.get(row)

    def scan(self) -> None:
        with self.store.transaction(read_only=True) as tx:
            assert {row.decode(): value for row, _, value in tx.table("t").scan()} == self.cells

    def long(self) -> None:
        row = self.row()
        with contextlib.suppress(KeyError), self.store.transaction(long=True) as tx:
            assert tx.table("t").get(row, "n") == self.cells.get(row)
            tx.table("t").set(row, "n", b"long")
            tx.flush()
            assert tx.table("t").get(row, "n") == b"long"
            if self.random.random() < 0.5:
                raise KeyError  # aborted
            self.cells[row] = b"long"

    def roll_back(self) -> None:
        with contextlib.suppress(KeyError), self.store.transaction() as tx:
            tx.table("t").get(self.row(), "n")
            tx.table("t").set(self.row(), "n", b"never")
            raise KeyError

    def refuse(self) -> None:
        with pytest.raises(InvalidArgument):
            self.store.waive_first_load("q")  # inside of a SQL transaction, which is rolled back

    def drain(self) -> None:
        assert sum(part.entries for part in self.store.backlog("q")) == self.added - self.exported
        self.exported += drain(self.store, "q", self.sink).acknowledged
        assert self.exported == self.added


def walk(store: Store, steps: int, *, drops: tuple[str, ...]) -> None:
    store.configure_table("t")
    store.configure_queue("q", buckets=4, buckets_per_range=2)
    seed = os.environ.get("EXPORT_QUEUE_SEED") or str(random.randrange(1 << 32))
    print("EXPORT_QUEUE_SEED", seed)
    walking = Walk(store, seed)
    for _ in range(steps):
        walking.step()
        if drops and walking.random.random() < 0.3:
            on_session(store, walking.random.choice(drops))
    walking.drain()


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("drops", [(), DROPS], ids=["rollbacks", "drops"])
def test_a_session_that_loses_what_it_remembers_goes_on(store: Store, drops: tuple[str, ...]) -> None:
    walk(store, 60, drops=drops)


def test_sessions_of_a_pooler_that_lose_what_they_remember_go_on(postgres_url: str, pgbouncer: PgBouncer) -> None:
    with Store.open(pgbouncer.url(postgres_url.rpartition("/")[2]), behind_pooler=True) as store:
        store.create()
        walk(store, 60, drops=DROPS)


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("first", ["write", "read"])
def test_a_statement_prepared_after_the_driver_dropped_all_is_not_prepared_twice(store: Store, first: str) -> None:
    store.configure_table("t")
    store.configure_queue("q")

    def write() -> None:
        with store.transaction() as tx:
            tx.table("t").set("r", "n", b"1")

    def read() -> None:
        with store.transaction(read_only=True) as tx:
            tx.table("t").get("r", "n")

    one, other = (write, read) if first == "write" else (read, write)
    one()
    for _ in range(12):  # the driver prepares a statement of its own
        store.backlog("q")
    with pytest.raises(InvalidArgument):
        store.waive_first_load("q")
    store.backlog("q")
    other()
    for _ in range(4):
        one()
        other()


def test_a_pooler_that_was_not_named_is_noticed(postgres_url: str, pgbouncer: PgBouncer) -> None:
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("q")
    with contextlib.ExitStack() as closing:
        url = pgbouncer.url(postgres_url.rpartition("/")[2])
        stores = [closing.enter_context(Store.open(url)) for _ in range(3)]
        for turn in range(12):
            for number, store in enumerate(stores):
                with store.transaction() as tx:
                    tx.queue("q").add(f"{turn}/{number}", "v")
                assert store.backlog("q")
        with stores[0].database.connect() as connection:
            assert connection.exec_driver_sql("select count(*) from pg_prepared_statements").scalar() == 0


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_session_that_changes_without_notice_is_told_with_the_remedy(store: Store) -> None:
    store.configure_queue("q")
    for _ in range(8):
        store.backlog("q")
    on_session(store, UNSEEN)
    with pytest.raises(StoreUnavailable) as caught:
        store.backlog("q")
    assert "behind_pooler=True" in caught.value.hint
    assert (caught.value.transient, caught.value.sent) == (True, False)
    store.backlog("q")


def test_stores_of_one_database_prepare_under_names_of_their_own(postgres_url: str) -> None:
    names = []
    for schema in ("one", "two"):
        with Store.open(postgres_url, schema=schema) as store:
            store.create()
            store.configure_queue("q")
            with store.transaction() as tx:
                tx.queue("q").add("k", "v")
            with store.database.connect() as connection:
                found = connection.exec_driver_sql("select name from pg_prepared_statements where name like 'xq_%%'")
                names.append({row.name for row in found})
    assert names[0]
    assert not names[0] & names[1]
