"""Verify next to producers, drains that are killed and retries of dead letters: no difference is a false one (I17)."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.kept_entries import KeptEntries
from tests.support.waiting import wait_until

from export_queue import (
    ConflictError,
    Delete,
    Entry,
    ExportQueueError,
    Put,
    SinkSpec,
    Store,
    StoreUnavailable,
    VerifyReport,
    drain,
    verify,
)

pytestmark = pytest.mark.timeout(240)
fork = multiprocessing.get_context("fork")
KEYS = 25
VERIFICATIONS = 4
SOURCE = KeptEntries("orders/kept")


def spoiled(entry: Entry) -> Iterator[Put | Delete]:
    """Refuse some entries, which become dead letters."""
    if entry.value is None:
        yield Delete("orders", entry.key)
        return
    if entry.value["n"] % 7 == 0:
        raise ValueError("spoiled")
    yield Put("orders", entry.key, entry.value)


def seeded() -> random.Random:
    seed = os.environ.get("EXPORT_QUEUE_SEED") or str(random.randrange(1 << 32))
    print(f"EXPORT_QUEUE_SEED={seed}")
    return random.Random(seed)


def deliver(store: Store, sink: SinkSpec, exporter: Any) -> None:
    drain(store, "orders/sink", sink, exporter=exporter, lease_seconds=2.0, chunk_rows=3, max_dead=100_000)


def drain_until_killed(open_store: Callable[[], Store], sink: SinkSpec, exporter: Any) -> None:
    with open_store() as store:
        while True:
            with contextlib.suppress(ExportQueueError):
                deliver(store, sink, exporter)


def drain_and_kill(open_store: Callable[[], Store], sink: SinkSpec, exporter: Any, stop: Any, seed: float) -> None:
    """Drain in processes that are killed at random moments. This process has no threads, so that it may fork."""
    generator = random.Random(seed)
    while not stop.is_set():
        drains = fork.Process(target=drain_until_killed, args=(open_store, sink, exporter))
        drains.start()
        stop.wait(generator.uniform(0.2, 1.5))
        assert drains.pid is not None
        os.kill(drains.pid, signal.SIGKILL)
        drains.join()


class AtWork:
    """Threads that repeat a step until they are stopped; errors of steps are kept."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open, self._stop = open_store, threading.Event()
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def start(self, step: Callable[[Store, random.Random], object], seed: float) -> None:
        self._threads.append(threading.Thread(target=self._repeat, args=(step, random.Random(seed))))
        self._threads[-1].start()

    def _repeat(self, step: Callable[[Store, random.Random], object], generator: random.Random) -> None:
        try:
            with self._open() as store:
                while not self._stop.is_set():
                    with contextlib.suppress(ConflictError, StoreUnavailable):
                        step(store, generator)
                    self._stop.wait(generator.uniform(0, 0.05))
        except BaseException as error:
            self.errors.append(error)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert self.errors == []


def produce(store: Store, generator: random.Random) -> None:
    with store.transaction() as tx:
        if generator.random() < 0.2:
            time.sleep(generator.uniform(0, 0.3))  # it holds the cut back if it has its id already
        for key in generator.sample(range(KEYS), generator.randint(1, 4)):
            value = None if generator.random() < 0.3 else {"n": generator.randrange(100)}
            tx.queue("orders").add(f"k{key}", value)


def stage(store: Store, generator: random.Random) -> None:
    """Commit a long transaction, or abandon it, with an id that is older than its entries are visible."""
    transaction = store.begin()
    with store.resume(transaction) as tx:
        tx.queue("orders").add(f"k{generator.randrange(KEYS)}", {"n": generator.randrange(100)})
    time.sleep(generator.uniform(0, 0.5))
    (store.commit if generator.random() < 0.8 else store.abort)(transaction)


def retry(store: Store, generator: random.Random) -> None:
    with contextlib.suppress(ExportQueueError):
        store.dead_letters.retry("orders/sink", lock_timeout=2.0)
    time.sleep(generator.uniform(0.1, 0.5))


def check(store: Store, sink: SinkSpec, exporter: Any, source: Any) -> VerifyReport:
    return verify(store, "orders/sink", sink, source=source, exporter=exporter, rounds=4)


@pytest.mark.parametrize("exporter", [None, spoiled], ids=["copies", "exporter"])
@pytest.mark.parametrize("source", ["state", SOURCE], ids=["state", "kept"])
def test_no_difference_is_found_but_the_planted_one(
    store: Store, open_store: Callable[[], Store], tmp_path: Path, exporter: Any, source: Any
) -> None:
    generator = seeded()
    sink = SinkSpec("sql", {"url": f"sqlite:///{tmp_path}/sink.db", "document": "json"}, name="sink")
    store.configure_queue("orders", buckets=8, buckets_per_range=2, state=source == "state")
    for name in ("sink", "kept"):
        store.subscribe("orders", name)
    with store.transaction() as tx:
        tx.queue("orders").add("planted", {"n": 1})
    deliver(store, sink, exporter)

    stop = fork.Event()
    drains = fork.Process(target=drain_and_kill, args=(open_store, sink, exporter, stop, generator.random()))
    drains.start()
    work = AtWork(open_store)
    try:
        for step in (produce, produce, stage, *([retry] if exporter else [])):
            work.start(step, generator.random())
        reports = [check(store, sink, exporter, source) for _ in range(VERIFICATIONS)]
        wait_until(
            lambda: reports.append(check(store, sink, exporter, source)) or reports[-1].queued or reports[-1].younger,
            "nothing is under way while producers and drains work",
        )
        engine = sa.create_engine(sink.options["url"])
        with engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM orders WHERE id = 'planted'"))
        planted = [check(store, sink, exporter, source) for _ in range(VERIFICATIONS)]
    finally:
        stop.set()
        drains.join()
        work.stop()
    for report in reports:
        assert report.differences == 0, "\n".join(report.lines())
    for report in planted:
        assert [one.id for one in report.samples["missing"]] == ["planted"], "\n".join(report.lines())
        assert report.differences == 1, "\n".join(report.lines())
    deliver(store, sink, exporter)
    last = check(store, sink, exporter, source)
    assert (last.differences, last.queued, last.younger) == (1, 0, 0), "\n".join(last.lines())
