"""A long transaction that others have ended gets no further, whatever it tries next (I1, I3, I4)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import sqlalchemy as sa
from tests.battery.processes import clean_up
from tests.battery.shared import fork
from tests.battery.ways import Way
from tests.support.contexts import context_of
from tests.support.waiting import wait_until

from export_queue import RegistrationLost, Store, Transaction, TransactionContext, TransactionError, TransactionTimeout
from export_queue.core.store import Span, schema
from export_queue.core.store.seams import Writes
from export_queue.core.transactions import OpenTransaction, expire, read_cell, scan_cells, take_snapshot

ROWS = [f"row {i}" for i in range(9)]
WAIT = 60.0


@dataclass
class Zombie:
    """A long transaction with staged writes; its own process has them, others may end it."""

    store: Store
    others: Store
    opened: OpenTransaction
    tx: TransactionContext
    id: int

    def elsewhere(self) -> OpenTransaction:
        """The same transaction in another process."""
        return OpenTransaction.resume(self.others.database, Transaction.from_json(self.tx.to_json()))


Begin = Callable[[], Zombie]


@pytest.fixture
def store(way: Way, way_url: str) -> Iterator[Store]:
    with way.open(way_url) as store:
        store.configure_queue("q", buckets=4, buckets_per_range=4)
        store.observe("noted", "n", lambda tx, row, column: None)
        yield store


@pytest.fixture
def begin(way: Way, way_url: str, store: Store) -> Iterator[Begin]:
    """Begins a transaction that stages all rows, an entry and a notification."""
    begun: list[OpenTransaction] = []
    with way.open(way_url, number=1) as others:

        def begin_one() -> Zombie:
            opened = OpenTransaction(store.database, kind="long")
            begun.append(opened)
            tx = context_of(store, opened)
            for row in ROWS:
                tx.table("rows").set(row, "c", b"own")
            tx.table("noted").set("early", "n", b"")
            tx.queue("q").add("early", None)
            tx.flush()
            return Zombie(store, others, opened, tx, opened.value.id)

        yield begin_one
        for opened in begun:
            opened.abort()


# --- ways to end it --------------------------------------------------------------------------------------------------


def expired(z: Zombie) -> None:
    with z.others.database.begin() as work:  # its deadline has passed
        work.connection.execute(sa.update(schema.active).values(deadline_ms=1).where(schema.active.c.id == z.id))
    assert expire(z.others.database) == 1


def swept_and_pruned(z: Zombie) -> None:
    expired(z)
    assert clean_up(z.others) == 1


def aborted_elsewhere(z: Zombie) -> None:
    z.elsewhere().abort()


def committed_elsewhere(z: Zombie) -> None:
    assert z.elsewhere().commit() == z.id


def refused_elsewhere(z: Zombie) -> None:
    """Another process tried to commit it and met a conflict."""
    rival = OpenTransaction(z.others.database)
    context_of(z.others, rival).table("rows").set(ROWS[0], "c", b"rival")
    rival.commit()
    with pytest.raises(TransactionError):
        z.elsewhere().commit()


ENDS = [expired, swept_and_pruned, aborted_elsewhere, committed_elsewhere, refused_elsewhere]


# --- ways to go on ---------------------------------------------------------------------------------------------------


def reads_a_cell(z: Zombie) -> None:
    z.tx.table("rows").get(ROWS[0], "c")


def reads_a_cell_that_it_did_not_write(z: Zombie) -> None:
    z.tx.table("other").get("row", "c")


def reads_many_cells(z: Zombie) -> None:
    z.tx.table("rows").get_many((row, "c") for row in ROWS)


def scans(z: Zombie) -> None:
    list(z.tx.table("rows").scan(prefix="row"))


def deletes_a_row(z: Zombie) -> None:
    z.tx.table("rows").delete_row(ROWS[0])


def stages_a_cell(z: Zombie) -> None:
    z.tx.table("rows").set("late", "c", b"late")
    z.tx.flush()


def stages_an_entry(z: Zombie) -> None:
    z.tx.queue("q").add("late", None, replace=True)
    z.tx.flush()


def stages_a_notification(z: Zombie) -> None:
    z.tx.table("noted").set("late", "n", b"late")
    z.tx.flush()


def commits_more(z: Zombie) -> None:
    z.tx.table("rows").set("late", "c", b"late")
    z.tx.queue("q").add("late", None, replace=True)
    z.tx.table("noted").set("late", "n", b"late")
    z.opened.commit()


def travels_on(z: Zombie) -> None:
    read_cell(z.elsewhere(), (1, b"x", b"y"))


STEPS: list[Callable[[Zombie], None]] = [
    reads_a_cell,
    reads_a_cell_that_it_did_not_write,
    reads_many_cells,
    scans,
    deletes_a_row,
    stages_a_cell,
    stages_an_entry,
    stages_a_notification,
    commits_more,
    travels_on,
]


def held(store: Store, number: int) -> list[tuple[bytes, ...]]:
    """Give what the store holds under an id: cells, entries, notifications."""
    c, e, n = schema.cell.c, schema.entry.c, schema.notification.c
    with store.database.read() as work:
        rows = [
            *work.connection.execute(sa.select(c.row_key, c.column_key).where(c.version == number)),
            *work.connection.execute(sa.select(e.key).where(e.seq == number)),
            *work.connection.execute(sa.select(n.row_key, n.column_key).where(n.version == number)),
        ]
    return sorted(tuple(row) for row in rows)


def right_end(z: Zombie, end: Callable[[Zombie], None], before: list[tuple[bytes, ...]]) -> None:
    """See that the store holds all that was committed under the id, or nothing."""
    z.opened.abort()  # as leaving the block does
    while take_snapshot(z.others.database).excluded:
        clean_up(z.others)
    committed = end is committed_elsewhere
    assert held(z.others, z.id) == (before if committed else [])
    assert z.others.outcome(z.opened.request).status == ("committed" if committed else "refused")


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_a_transaction_that_others_ended_goes_no_further(begin: Begin, end: Callable[[Zombie], None]) -> None:
    for step in STEPS:
        zombie = begin()
        before = held(zombie.others, zombie.id)
        assert len(before) == len(ROWS) + 3
        end(zombie)
        for expected in (RegistrationLost, TransactionError):  # and what is tried again fails again
            try:
                step(zombie)
            except expected:
                continue
            pytest.fail(f"it was {end.__name__} and {step.__name__}")
        right_end(zombie, end, before)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_a_commit_after_the_end_tells_the_truth(begin: Begin, end: Callable[[Zombie], None]) -> None:
    zombie = begin()
    before = held(zombie.others, zombie.id)
    end(zombie)
    if end is committed_elsewhere:
        assert zombie.opened.commit() == zombie.id
    else:
        with pytest.raises(TransactionError):
            zombie.opened.commit()
    right_end(zombie, end, before)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_a_scan_ends_at_the_page_behind_the_end(begin: Begin, end: Callable[[Zombie], None]) -> None:
    zombie = begin()
    before = held(zombie.others, zombie.id)
    table = zombie.tx.table("rows")._options.number
    cells = scan_cells(zombie.opened, table, Span(), page=3)
    assert [value for _, _, value in (next(cells), next(cells))] == [b"own", b"own"]
    end(zombie)
    with pytest.raises(RegistrationLost):
        list(cells)
    right_end(zombie, end, before)


def test_clean_up_removes_what_is_being_staged_while_it_runs(way: Way, begin: Begin) -> None:
    zombie = begin()
    with zombie.others.database.begin() as work:  # its deadline has passed
        work.connection.execute(sa.update(schema.active).values(deadline_ms=1).where(schema.active.c.id == zombie.id))
    steps = zombie.store.database.dialect.steps
    late = Writes(cells=[(zombie.tx.table("rows")._options.number, b"late", b"c", b"late")])
    with ThreadPoolExecutor(1) as pool:
        with zombie.store.database.begin() as work:
            assert steps.stage(work.connection, zombie.id, late, zombie.id + 1, store_id=zombie.store.id, load=None)
            cleaning = pool.submit(clean_up, zombie.others)
            if way.database != "sqlite":  # where it waits for its turn
                cleaning.result(WAIT)
        cleaning.result(WAIT)
    clean_up(zombie.others)
    with pytest.raises(RegistrationLost):
        reads_a_cell(zombie)
    assert held(zombie.others, zombie.id) == []


def test_a_process_that_was_stopped_past_its_deadline_ends_nothing_and_stages_nothing(
    way: Way, way_url: str, store: Store
) -> None:
    told = fork.SimpleQueue()

    def begin_and_go_on() -> None:
        with way.open(way_url, number=1) as mine:
            opened = OpenTransaction(mine.database, kind="long", timeout=WAIT)
            tx = context_of(mine, opened)
            tx.table("rows").set("a", "c", b"own")
            tx.flush()
            told.put(opened.value.id)
            signal.raise_signal(signal.SIGSTOP)
            for step in (lambda: tx.table("rows").get("a", "c"), lambda: write_more(tx), opened.commit):
                try:
                    step()
                    told.put("went through")
                except TransactionError as error:
                    told.put(type(error).__name__)

    def write_more(tx: TransactionContext) -> None:
        tx.table("rows").set("b", "c", b"late")
        tx.flush()

    process = fork.Process(target=begin_and_go_on, daemon=True)
    process.start()
    try:
        own = told.get()
        wait_until(lambda: stopped(process.pid or 0), "the process is not stopped")
        with store.database.begin() as work:
            work.connection.execute(sa.update(schema.active).values(deadline_ms=1).where(schema.active.c.id == own))
        clean_up(store)
        os.kill(process.pid or 0, signal.SIGCONT)
        assert [told.get() for _ in range(3)] == ["RegistrationLost"] * 3
        process.join(WAIT)
    finally:
        process.kill()
        process.join()
    assert held(store, own) == []


def test_a_short_transaction_past_its_deadline_reads_its_snapshot_and_commits_nothing(
    way: Way, way_url: str, store: Store
) -> None:
    with pytest.raises((RegistrationLost, TransactionTimeout)), store.transaction(timeout=0.001) as tx:
        assert tx.table("rows").get("a", "c") is None
        tx.table("rows").set("a", "c", b"own")
        with way.open(way_url, number=1) as others:
            now = others.database.dialect.steps.now
            with others.database.connect() as connection:
                start = now(connection)
                wait_until(lambda: now(connection) > start + 5, "the clock does not move")
            clean_up(others)
            with others.transaction() as rival:
                rival.table("rows").set("a", "c", b"rival")
        assert tx.table("rows").get("a", "c") == b"own"
        assert tx.table("rows").get_many([("a", "c")]) == {(b"a", b"c"): b"own"}
    with store.transaction() as tx:
        assert tx.table("rows").get("a", "c") == b"rival"


def stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"
