"""A wait never ends early: next to drains that are killed, compactions, moves and retries (I6, I7, I9)."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from export_queue import Candidates, ExportQueueError, LayoutClosed, NotExported, Owner, Put, SinkSpec, Store, drain

fork = multiprocessing.get_context("fork")
LAYOUTS = [(7, 3), (64, 16), (16, 4)]
WRITES = 6
"""Transactions of each writer."""
KEYS = 3
"""Records of each writer: so few that compactions find several entries of each."""


def unreliable(entry: Any) -> list[Put]:
    """Refuse one entry in ten, until it is retried."""
    if random.random() < 0.1:
        raise ValueError("not now")
    return [Put("orders", entry.key, {"number": entry.value})]


class World:
    """A store, a sink, and what happens to them at the same time."""

    def __init__(self, open_store: Callable[[], Store], folder: Path, seed: str) -> None:
        self._open, self.folder, self.choice = open_store, folder, random.Random(seed)
        self.copies = folder / "copies.db"
        self.sink = SinkSpec("sql", {"url": f"sqlite:///{self.copies}"}, name="copies")
        self.stop = threading.Event()
        self.failures: list[BaseException] = []
        self.dead = self.waits = 0

    @contextlib.contextmanager
    def opened(self) -> Iterator[Store]:
        with self._open() as store:
            store.database.segments = str(self.folder / "segments")
            yield store

    def number_of(self, key: str) -> int:
        """Read a record of the sink; -1 if it does not exist."""
        with contextlib.closing(sqlite3.connect(f"file:{self.copies}?mode=ro", uri=True, timeout=60)) as reader:
            row = reader.execute("select document from orders_live where id = ?", (key,)).fetchone()
        return -1 if row is None else int(json.loads(row[0])["number"])

    def write(self, writer: int) -> None:
        """Commit, wait, and check the sink, again and again."""
        choice = random.Random(f"{writer}-{self.choice.random()}")
        with self.opened() as store:
            for number in range(WRITES):
                keys = [f"{writer}-{i}" for i in choice.sample(range(KEYS), 2)]
                self.wait(store, self.commit(store, keys, number, in_file=choice.random() < 0.5))
                for key in keys:
                    assert self.number_of(key) >= number, f"{key} is older than transaction {number} of its writer"

    @staticmethod
    def commit(store: Store, keys: list[str], number: int, *, in_file: bool) -> str:
        while True:
            try:
                with store.transaction(long=in_file) as tx:
                    if in_file:
                        tx.queue("orders").add_batch(pa.table({"key": keys, "value": [str(number)] * len(keys)}))
                    else:
                        tx.queue("orders").add_many([(key, number) for key in keys])
            except LayoutClosed:  # the queue got other buckets meanwhile
                continue
            return tx.token

    def wait(self, store: Store, token: str) -> None:
        for _ in range(1000):
            try:
                store.wait_exported(token, "orders", timeout=120)
            except NotExported:
                self.dead += 1
                time.sleep(0.02)  # until the letter is retried
            else:
                self.waits += 1
                return
        raise AssertionError("the dead letter is not retried")

    def drain(self, number: int) -> None:
        with self.opened() as store:
            for attempt in range(10_000):
                with contextlib.suppress(ExportQueueError):
                    owner = Owner(f"drain-{number}", f"{os.getpid()}-{attempt}")
                    drain(store, "orders", self.sink, exporter=unreliable, owner=owner, if_locked="skip")
                time.sleep(0.01)

    def kill_drains(self) -> None:
        """Let two processes drain, and kill one of them now and then."""
        drains = [self.begin_drain(number) for number in range(2)]
        while not self.stop.wait(0.3):
            number = self.choice.randrange(2)
            os.kill(drains[number].pid, signal.SIGKILL)
            drains[number].join()
            drains[number] = self.begin_drain(number)
        for one in drains:
            os.kill(one.pid, signal.SIGKILL)
            one.join()

    def begin_drain(self, number: int) -> Any:
        process = fork.Process(target=self.drain, args=(number,), daemon=True)
        process.start()
        return process

    def disturb(self) -> None:
        """Compact, give the queue other buckets, move what is pending there, retry dead letters."""
        with self.opened() as store:
            for turn in range(10_000):
                if self.stop.wait(0.02):
                    return
                with contextlib.suppress(ExportQueueError):
                    store.compact("orders", wanted=Candidates(least=1))
                with contextlib.suppress(ExportQueueError):
                    store.dead_letters.retry("orders", lock_timeout=0.5)
                if turn % 5 == 0:
                    buckets, size = LAYOUTS[turn // 5 % 3]
                    with contextlib.suppress(ExportQueueError):
                        store.alter_queue("orders", buckets=buckets, buckets_per_range=size, guard="seq")
                    with contextlib.suppress(ExportQueueError):
                        store.compact("orders", older_layouts=True)

    def run(self, function: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                function()
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread


@pytest.mark.parametrize("coalesce", ["latest", pytest.param(None, marks=pytest.mark.full("a simpler queue"))])
def test_after_a_wait_each_record_is_as_new_as_the_transaction(
    store: Store, open_store: Callable[[], Store], tmp_path: Path, coalesce: str | None
) -> None:
    seed = os.environ.get("EXPORT_QUEUE_SEED") or str(random.randrange(1 << 32))
    print("EXPORT_QUEUE_SEED", seed)
    store.configure_queue("orders", buckets=16, buckets_per_range=4, coalesce=coalesce)
    world = World(open_store, tmp_path, seed)
    disturbers = [world.run(world.kill_drains), world.run(world.disturb)]
    for writer in [world.run(lambda number=number: world.write(number)) for number in range(2)]:
        writer.join()
    world.stop.set()
    for disturber in disturbers:
        disturber.join()
    if world.failures:
        raise world.failures[0]
    assert world.waits == 2 * WRITES
