"""Many processes, real kills: nothing lost, nothing twice, every snapshot whole (I1-I3, I5, I12, I14).

The workload is a bank whose accounts move money between them, and per account a counter whose every change adds
``{old, new}`` to a queue. Whatever is killed, afterwards the total is what it was, each counter equals the
transactions that committed on it, and each account's entries form one unbroken chain.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import orjson
import pytest
from tests.battery.processes import clean_up
from tests.battery.shared import fork
from tests.battery.ways import Way
from tests.support.fixtures import Covered
from tests.support.waiting import wait_until

from export_queue import Range, Store, TransactionContext, TransactionError
from export_queue.core.queue import read_entries
from export_queue.core.transactions import take_snapshot

ACCOUNTS, OPENING, WORKERS = 12, 100, 4
TIMEOUT = 5.0
STALLED, HANGS = 120, 1800


def number(tx: TransactionContext, account: str, column: str) -> int:
    return int(tx.table("bank").get(account, column, b"0"))


def transfer(tx: TransactionContext, source: str, target: str, amount: int) -> None:
    table, queue = tx.table("bank"), tx.queue("moves")
    for account, change in ((source, -amount), (target, amount)):
        balance, count = number(tx, account, "balance"), number(tx, account, "count")
        table.set(account, "balance", str(balance + change).encode())
        table.set(account, "count", str(count + 1).encode())
        queue.add(account, {"old": count, "new": count + 1})


def work(way: Way, url: str, number: int, seed: int, journal: str) -> None:
    """Move money until killed; what was reported as committed is noted, one line a commit, before going on."""
    random.seed(seed)
    with way.open(url, number=number) as store, open(journal, "ab", buffering=0) as lines:
        while True:
            source, target = random.sample([f"a{i}" for i in range(ACCOUNTS)], 2)
            long = random.random() < 0.1
            try:
                with store.transaction(long=long, timeout=TIMEOUT) as tx:
                    transfer(tx, source, target, random.randint(1, 5))
                    if long:
                        tx.flush()
                    if random.random() < 0.1:
                        raise KeyError("given up")
            except (KeyError, TransactionError):
                continue
            lines.write(f"{source} {target}\n".encode())


def check_total(way: Way, url: str, failures: str) -> None:
    """Read all accounts in one snapshot, and clean up, again and again."""
    with way.open(url) as store:
        while True:
            with contextlib.suppress(TransactionError):
                clean_up(store)
            with contextlib.suppress(TransactionError), store.transaction(timeout=TIMEOUT) as tx:
                total = sum(number(tx, f"a{i}", "balance") for i in range(ACCOUNTS))
                if total != ACCOUNTS * OPENING:
                    with open(failures, "a") as file:
                        file.write(f"a snapshot saw a total of {total}\n")


@contextlib.contextmanager
def ending(processes: list[BaseProcess]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join(30)


@pytest.mark.timeout(HANGS)
@pytest.mark.parametrize(
    "transfers",
    [
        pytest.param(300, id="short", marks=pytest.mark.brief),
        pytest.param(1000, id="long", marks=pytest.mark.full("a thousand transfers")),
    ],
)
def test_a_bank_under_kills_keeps_its_total_and_an_unbroken_chain_per_account(
    way: Way, way_url: str, tmp_path: Path, seed: int, transfers: int, covered: Covered
) -> None:
    chance = random.Random(seed)
    with way.open(way_url) as store:
        kills = run_bank(way, way_url, store, tmp_path, chance, transfers)
    covered(f"{transfers} transfers, {kills} kills, seed {seed}")


def run_bank(way: Way, way_url: str, store: Store, tmp_path: Path, chance: random.Random, transfers: int) -> int:
    """Run the bank, judge it, and return how many processes were killed."""
    queue = store.configure_queue("moves", buckets=8, buckets_per_range=8)
    with store.transaction() as tx:
        for i in range(ACCOUNTS):
            tx.table("bank").set(f"a{i}", "balance", str(OPENING).encode())
    store.database.close()
    failures = tmp_path / "failures"
    journals = [tmp_path / f"journal-{i}" for i in range(WORKERS)]

    def worker(i: int) -> BaseProcess:
        arguments = (way, way_url, i, chance.randrange(10**9), str(journals[i]))
        process = fork.Process(target=work, args=arguments, daemon=True)
        process.start()
        return process

    checker = fork.Process(target=check_total, args=(way, way_url, str(failures)), daemon=True)
    processes = [worker(i) for i in range(WORKERS)]
    with ending([checker]), ending(processes):
        checker.start()
        kills = done = 0
        while done < transfers:
            wait_for(done + chance.randint(1, 30), journals)
            done = told_lines(journals)
            victim = chance.randrange(WORKERS)
            process = processes[victim]
            if chance.random() < 0.3 and process.pid:
                # Stopped past its time-out at times: a registration that outlives it must not commit.
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(chance.uniform(0, 0.3))
                os.kill(process.pid, signal.SIGCONT)
            else:
                process.kill()
                process.join(30)
                processes[victim] = worker(victim)
                kills += 1

    assert not failures.exists(), failures.read_text()
    settle(store)
    snapshot = take_snapshot(store.database)
    assert snapshot.excluded == ()
    with store.database.read() as sql:
        entries = read_entries(sql, queue, snapshot, Range(0, 8), rows=10**7, size=1 << 40)
    chains: dict[str, list[dict[str, int]]] = defaultdict(list)
    for key, value in zip(entries.keys, entries.values, strict=True):
        assert value is not None
        chains[key.decode()].append(orjson.loads(value))  # ascending by seq
    with store.transaction() as tx:
        assert sum(number(tx, f"a{i}", "balance") for i in range(ACCOUNTS)) == ACCOUNTS * OPENING
        for i in range(ACCOUNTS):
            account = f"a{i}"
            count = number(tx, account, "count")
            assert chains[account] == [{"old": n, "new": n + 1} for n in range(count)]
    told: dict[str, int] = defaultdict(int)
    for journal in journals:
        for line in journal.read_bytes().split(b"\n")[:-1]:
            for account in line.decode().split():
                told[account] += 1
    for account, count in told.items():
        # A killed worker may have committed without telling, at most once a kill.
        assert count <= len(chains[account]) <= count + kills + WORKERS
    assert sum(map(len, chains.values())) >= 2 * transfers
    return kills


def told_lines(journals: list[Path]) -> int:
    return sum(journal.read_bytes().count(b"\n") for journal in journals if journal.exists())


def wait_for(lines: int, journals: list[Path]) -> None:
    wait_until(lambda: told_lines(journals) >= lines, "no transfer ends any more", seconds=STALLED)


def settle(store: Store) -> None:
    """Wait until the store has forgotten the transactions of killed processes."""

    def is_settled() -> bool:
        clean_up(store)
        return not take_snapshot(store.database).excluded

    wait_until(is_settled, "an id stays in progress for ever", pause=0.1)
