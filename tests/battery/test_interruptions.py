"""Histories of processes that are interrupted in commits and flushes: SIGINT, and handlers of SIGALRM that raise.

Clients append to lists, and add an entry for each number. After each interruption a client asks for the outcome, and
compares it with what its participant was told; some go on after an interrupted flush (I1-I3, I12).
``EXPORT_QUEUE_SEED`` sets what the processes do and when they are interrupted.
"""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from types import FrameType

import pytest
import sqlalchemy as sa
from tests.battery.journals import LETTERS, Journal, read_journals
from tests.battery.processes import end_all
from tests.battery.shared import QUEUE, fork
from tests.battery.size import HANGS, TRANSACTIONS
from tests.battery.supervisor import Committed, read_outcomes, true_history
from tests.battery.ways import Way
from tests.support.fixtures import Covered
from tests.support.histories import Append, Operation, ReadList, check_history

from export_queue import (
    AfterCommitFailed,
    CommitOutcomeUnknown,
    Store,
    StoreError,
    Transaction,
    TransactionContext,
    TransactionError,
)
from export_queue.core.store import schema

WORKERS, LISTS = 3, 4
LIST_LENGTH = 30
INTERRUPTED = 0.2
"""Part of the commits that an interruption is sent into: what comes after it takes much longer than a commit."""


class TimedOut(BaseException):
    """As the time-out of a task in Airflow."""


class SoftTimedOut(Exception):
    """As that of a task in Celery, which code that handles errors may take for one."""


INTERRUPTIONS = (KeyboardInterrupt, TimedOut, SoftTimedOut)


class Resource:
    """A participant that keeps what it was told."""

    name = "resource"

    def __init__(self) -> None:
        self.told: list[str] = []
        self.was_hit = False
        """Whether an interruption came in a step of its own: a plain exception counts as its failure there."""

    def note_hit(self, error: BaseException) -> None:
        self.was_hit |= any(f"participant {self.name!r} failed" in note for note in getattr(error, "__notes__", ()))

    def start(self, transaction: Transaction) -> None:
        """Nothing."""

    def update(self, transaction: Transaction) -> None:
        """Nothing."""

    def changes(self) -> list[bytes]:
        return []

    def persist(self) -> None:
        self.told.append("persist")

    def rollback(self) -> None:
        self.told.append("rollback")

    def after_commit(self) -> None:
        self.told.append("after_commit")


class Client:
    """One process; its transactions append to lists, each is interrupted at some moment, or not."""

    def __init__(self, store: Store, journal: Journal, number: int, generator: random.Random) -> None:
        self.store, self.journal, self.number, self.generator = store, journal, number, generator
        self.value = number * 1_000_000
        self.generations = [0] * LISTS
        """Of each list the one that is in use; a full one is left, since reading it would take ever longer."""
        self.is_armed = False
        self.delays: SimpleQueue[float] = SimpleQueue()
        threading.Thread(target=self.send_interrupts, daemon=True).start()
        signal.signal(signal.SIGINT, self.interrupt)
        signal.signal(signal.SIGALRM, self.interrupt)

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.is_armed:
            raise KeyboardInterrupt if number == signal.SIGINT else self.generator.choice(INTERRUPTIONS[1:])

    def send_interrupts(self) -> None:
        while True:
            time.sleep(self.delays.get())
            os.kill(os.getpid(), signal.SIGINT)

    def interrupt_soon(self) -> None:
        if self.generator.random() > INTERRUPTED:
            return
        seconds = self.generator.choice((0.001, 0.003, 0.01)) * self.generator.random()
        if self.generator.random() < 0.5:
            signal.setitimer(signal.ITIMER_REAL, seconds)
        else:
            self.delays.put(seconds)

    def transact(self) -> None:
        operations: list[Operation] = []
        resource, request, begin = Resource(), None, time.monotonic_ns()
        answer, has_joined = "committed", False
        is_long = self.generator.random() < 0.3
        try:
            try:
                self.is_armed = True
                with self.store.transaction(long=is_long, timeout=20.0) as tx:
                    request = tx.request.hex
                    if self.generator.random() < 0.5:
                        tx.join(resource)
                        has_joined = True
                    if is_long:
                        self.interrupt_soon()
                    for slot in self.generator.sample(range(LISTS), 2):
                        self.append(tx, slot, operations)
                        if is_long:
                            self.flush(tx, slot, operations, resource)
                    self.interrupt_soon()
            finally:
                self.is_armed = False
        except CommitOutcomeUnknown:
            answer = "asked"
        except AfterCommitFailed:
            resource.was_hit = True
        except (TransactionError, StoreError) as error:
            answer = "refused"
            resource.note_hit(error)
        except (*INTERRUPTIONS, RuntimeError):  # the last one is of a lock of Python's, in their place
            answer = "asked"
        if request is None:
            return
        status = self.store.outcome(request).status if answer == "asked" else answer
        right, wrong = {"committed": ("after_commit", "rollback"), "refused": ("rollback", "after_commit")}[status]
        must_be_told = has_joined and answer != "asked" and not resource.was_hit
        times = resource.told.count(right)
        if wrong in resource.told or times > 1 or (must_be_told and not times):
            self.journal.write(failure=f"{request} was {status} and its participant told {resource.told}")
        noted = [(LETTERS[type(operation)], *operation) for operation in operations]
        told = {"session": self.number, "begin": begin, "request": request, "operations": noted}
        self.journal.write(**told, asked=answer == "asked", answer=status, end=time.monotonic_ns())

    def flush(self, tx: TransactionContext, slot: int, operations: list[Operation], resource: Resource) -> None:
        try:
            tx.flush()
        except INTERRUPTIONS as error:
            resource.note_hit(error)
            if self.generator.random() < 0.5:
                raise
            # Refused, or the first one was never sent: else it might arrive behind this one, and undo it.
            self.append(tx, slot, operations)
            tx.flush()

    def append(self, tx: TransactionContext, slot: int, operations: list[Operation]) -> None:
        table = tx.table("lists")
        while True:
            key = f"l{slot}-{self.generations[slot]}"
            values = tuple(map(int, (table.get(key, "v") or b"").split()))
            operations.append(ReadList(key, values))
            if len(values) < LIST_LENGTH:
                break
            self.generations[slot] += 1
        self.value += 1
        table.set(key, "v", " ".join(map(str, (*values, self.value))).encode())
        tx.queue(QUEUE).add(f"{self.value}", None)
        operations.append(Append(key, self.value))


def run(way: Way, url: str, number: int, seed: int, path: str, transactions: int) -> None:
    with way.open(url, number=number) as store:
        client = Client(store, Journal(Path(path)), number, random.Random(seed))
        for _ in range(transactions):
            client.transact()


@pytest.mark.timeout(HANGS)
@pytest.mark.parametrize(
    "all_ways",
    [
        pytest.param(400, id="short", marks=pytest.mark.brief),
        pytest.param(TRANSACTIONS, id="long", marks=pytest.mark.full("as many transactions as are asked for")),
    ],
)
def test_what_interrupted_clients_see_is_strong_snapshot_isolation(
    way: Way, way_url: str, tmp_path: Path, seed: int, all_ways: int, covered: Covered
) -> None:
    with way.open(way_url) as store:
        store.configure_queue(QUEUE)
    chance = random.Random(seed)
    paths = [tmp_path / f"journal-{number}" for number in range(WORKERS)]
    each = math.ceil(way.part_of(all_ways) / WORKERS)
    arguments = [(way, way_url, n, chance.randrange(10**9), str(path), each) for n, path in enumerate(paths)]
    processes = [fork.Process(target=run, args=one, daemon=True) for one in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(HANGS)
    assert [process.exitcode for process in processes] == [0] * WORKERS
    with way.open(way_url) as store:
        end_all(store)  # an abort may have been interrupted, too
        outcomes = read_outcomes(store)
        with store.transaction(read_only=True) as tx:
            held = [(row, value) for row, _, values in tx.table("lists").scan() for value in values.split()]
        with store.database.read() as work:
            entries = list(work.connection.scalars(sa.select(schema.entry.c.key)))
    failures: list[str] = []
    told = list(read_journals(paths, failures))
    verdict = check_history(true_history(told, outcomes, Committed()))
    assert not verdict.anomalies, str(verdict)
    assert not failures, failures
    statuses = [one.transaction.status for one in told]
    asked = sum(path.read_bytes().count(b'"asked":true') for path in paths)
    covered(f"{len(told)} transactions, {statuses.count('ok')} committed, {asked} interrupted, seed {seed}")
    assert statuses.count("ok") > len(told) / 10
    assert asked > len(told) / 20, "too few interruptions"
    committed = [one.transaction for one in told if one.transaction.status == "ok"]
    appended = [o for transaction in committed for o in transaction.operations if isinstance(o, Append)]
    assert sorted(held) == sorted((o.key.encode(), b"%d" % o.value) for o in appended)
    assert sorted(entries) == sorted(b"%d" % o.value for o in appended)
