"""Subscriptions that come and go while writers and drains run, and are killed (I3, I6, I7).

Each writer's transaction sets a cell and adds two entries, in any way: short, long, bound. One process subscribes and
unsubscribes readers all the time, and looks at the cells right before and right after each subscription starts. Others
drain whatever readers there are, each into a file of its own. A reader has every transaction that the second look does
not show, none that the first look shows, and of each one both entries or none: the commits since its start. A reader
that goes has been drained before, as a rule, and has by then what was committed by then.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
import sqlalchemy as sa
from tests.battery import plants
from tests.battery.journals import Journal
from tests.battery.processes import end_all
from tests.battery.shared import fork
from tests.battery.size import HANGS, TRANSACTIONS
from tests.battery.ways import Way
from tests.support.waiting import PATIENCE

from export_queue import (
    ApplyResult,
    Capabilities,
    DrainReport,
    ExportQueueError,
    Operations,
    QueueBusy,
    Retry,
    Store,
    drain,
)
from export_queue.core.maintenance import maintain
from export_queue.core.queue import subscribe, unsubscribe
from export_queue.core.store import queries

WRITERS, DRAINERS = 3, 1
MOST_READERS = 4
LEAST_GONE = 3
"""Readers that must have come and gone in a run, however few its transactions; a run goes on until they have."""
LEASE = 1.0
"""Of drains that are killed: so long they keep others out."""
EAGER = Retry(attempts=None, seconds=10, first_pause=0.001, longest_pause=0.02)
BLOW_EVERY = 0.15
"""Seconds between two kills."""
Look = frozenset[str]


class FileSink:
    """Appends what it is given to a file, whatever it has seen before."""

    capabilities = Capabilities(batch_rows=1000, batch_bytes=1 << 20)

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)

    def admit(self, **_: Any) -> None:
        """Take everybody."""

    def apply(self, operations: Operations) -> ApplyResult:
        self._journal.write(keys=[key.decode() for key in operations.ids])
        return ApplyResult(len(operations.ids), 0)

    def close(self) -> None:
        """The file is closed with its process."""


def delivered(path: Path) -> set[str]:
    if not path.exists():
        return set()
    return {key for line in path.read_bytes().splitlines() for key in orjson.loads(line)["keys"]}


class Writer:
    """One process that writes in every way."""

    def __init__(self, way: Way, url: str, store: Store, folder: Path, number: int, generator: random.Random) -> None:
        self.way, self.url, self.store, self.generator = way, url, store, generator
        self.journal = Journal(folder / f"writer-{number}")
        self.name = f"{number}-{os.getpid()}"
        self.count = 0
        self.connection: Any = None

    def write(self, *, done: Any) -> None:
        self.count += 1
        name = f"{self.name}-{self.count}"
        how = self.generator.choice(("short", "short", "id first", "long", "long", "bound"))
        with contextlib.suppress(ExportQueueError, psycopg.Error, sqlite3.Error):
            getattr(self, how.replace(" ", "_"))(name)
        done.value += 1

    def note(self, request: str, name: str) -> None:
        """Before the commit: the store is asked at the end what became of it."""
        self.journal.write(request=request, name=name)

    def short(self, name: str) -> None:
        with self.store.transaction() as tx:
            self.note(tx.request.hex, name)
            self.fill(tx, name)

    def id_first(self, name: str) -> None:
        with self.store.transaction() as tx:
            assert tx.id
            self.note(tx.request.hex, name)
            self.pause()
            self.fill(tx, name)

    def long(self, name: str) -> None:
        with self.store.transaction(long=True) as tx:
            self.note(tx.request.hex, name)
            tx.table("done").set(name, "n", b"")
            for part in "ab":
                tx.queue("airports").add(f"{name}-{part}", None)
                if self.generator.random() < 0.7:
                    tx.flush()
                self.pause()

    def bound(self, name: str) -> None:
        self.connection = self.connection or self.connect()
        try:
            if self.way.database == "sqlite":
                self.connection.execute("begin immediate")
            with self.store.transaction(connection=self.connection) as tx:
                self.note(tx.request.hex, name)
                self.fill(tx, name)
            time.sleep(self.generator.choice((0, 0.01, 0.1)))  # as users do, before they commit
            self.connection.commit()
        except BaseException:
            with contextlib.suppress(psycopg.Error, sqlite3.Error):
                self.connection.rollback()
            raise

    def connect(self) -> Any:
        if self.way.database == "sqlite":
            return sqlite3.connect(str(sa.make_url(self.url).database), isolation_level=None, timeout=20)
        return psycopg.connect(self.url.replace("+psycopg", ""))

    def fill(self, tx: Any, name: str) -> None:
        tx.table("done").set(name, "n", b"")
        for part in "ab":
            tx.queue("airports").add(f"{name}-{part}", None)

    def pause(self) -> None:
        time.sleep(self.generator.random() * 0.01)


def be_writer(way: Way, url: str, folder: Path, number: int, seed: int, done: Any, stop: Any) -> None:
    with way.open(url, number=number) as store:
        writer = Writer(way, url, store, folder, number, random.Random(seed))
        while not stop.value:
            writer.write(done=done)


def be_drainer(way: Way, url: str, folder: Path, number: int, seed: int, done: Any, stop: Any) -> None:
    with way.open(url, number=number) as store:
        while not stop.value:
            with contextlib.suppress(ExportQueueError):
                for reader in store.subscriptions("airports"):
                    drain_into_file(store, folder, reader.name, reader.number, if_locked="skip", lease_seconds=LEASE)
            time.sleep(0.1)


def drain_into_file(store: Store, folder: Path, name: str, number: int, **options: Any) -> DrainReport:
    # A name is never used again, so that the file is this reader's for sure.
    sink = FileSink(folder / f"sink-{number}")
    return drain(store, f"airports/{name}", sink, sink_name=name, **options)


class Readers:
    """Lets readers come and go, and notes what was committed before and after each one's start, and at its end."""

    def __init__(self, store: Store, folder: Path, generator: random.Random) -> None:
        self.store, self.folder, self.generator = store, folder, generator
        self.looks: dict[int, tuple[Look, Look]] = {}
        """By number of the reader: what was seen just before it started, and just after."""
        self.names: dict[str, int] = {}
        """Readers that are there."""
        self.brought: dict[int, Look] = {}
        """By number of a reader that has gone: what was committed before its last drain, if it had one."""

    def change(self) -> None:
        if len(self.names) < 2 or (len(self.names) < MOST_READERS and self.generator.random() < 0.5):
            name = f"r{len(self.looks)}"
            before = self.look()
            reader = subscribe(self.store.database, "airports", name, retry=EAGER)
            self.looks[reader.number] = before, self.look()
            self.names[name] = reader.number
        else:
            name = self.generator.choice(sorted(self.names))
            brought = self.look()
            report = drain_into_file(self.store, self.folder, name, self.names[name], if_locked="skip")
            unsubscribe(self.store.database, "airports", name, discard=True, who="eve", retry=EAGER)
            self.brought[self.names.pop(name)] = frozenset() if report.skipped else brought

    def look(self) -> Look:
        with self.store.transaction(read_only=True) as tx:
            return frozenset(row.decode() for row, _, _ in tx.table("done").scan())


@pytest.fixture
def run(way: Way, way_url: str, tmp_path: Path, seed: int) -> Callable[..., Readers]:
    """Runs a history until so many transactions have ended and so many readers have gone, and checks it."""

    def run_and_check(transactions: int, gone: int) -> Readers:
        with way.open(way_url) as store:
            store.configure_table("done", conflict="none")
            store.configure_queue("airports", buckets=8, buckets_per_range=8, subscriptions=["first"])
            if way.database == "postgresql":
                plants.pause_around_the_readers(way_url)
            readers = Readers(store, tmp_path, random.Random(seed))
            readers.names["first"] = store.queue("airports/first").number
            readers.looks[readers.names["first"]] = frozenset(), frozenset()
            with processes(way, way_url, tmp_path, seed) as (strike, done):
                end = time.monotonic() + HANGS
                while done() < transactions or len(readers.brought) < gone:
                    assert time.monotonic() < end, "the run hangs"
                    with contextlib.suppress(QueueBusy):  # there was always one that added
                        readers.change()
                    strike()
            bring_all(store, tmp_path, readers)
            check(store, tmp_path, readers)
        return readers

    return run_and_check


@contextlib.contextmanager
def processes(way: Way, url: str, folder: Path, seed: int) -> Iterator[tuple[Callable[[], None], Callable[[], int]]]:
    """Run writers and drainers; gives what kills one of them now and then, and the number of transactions."""
    generator, stop = random.Random(seed + 1), fork.RawValue("b", 0)
    places = [(be_writer, number) for number in range(WRITERS)] + [(be_drainer, WRITERS + n) for n in range(DRAINERS)]
    counts = [fork.RawValue("q", 0) for _ in places]

    def start(place: int) -> Any:
        work, number = places[place]
        arguments = (way, url, folder, number, generator.randrange(1 << 30), counts[place], stop)
        child = fork.Process(target=work, args=arguments, daemon=True)
        child.start()
        return child

    children = [start(place) for place in range(len(places))]
    struck = time.monotonic()

    def strike() -> None:
        nonlocal struck
        if time.monotonic() - struck < BLOW_EVERY:
            return
        place = generator.randrange(len(children))
        os.kill(children[place].pid, signal.SIGKILL)
        children[place].join(PATIENCE)
        children[place] = start(place)
        struck = time.monotonic()

    try:
        yield strike, lambda: sum(count.value for count in counts)
        stop.value = 1
        for child in children:
            child.join(PATIENCE)
            assert child.exitcode == 0, "a process failed"
    finally:
        for child in children:
            child.kill()


def bring_all(store: Store, folder: Path, readers: Readers) -> None:
    """Let what is in progress end, and drain what is left."""
    end_all(store)
    for name, number in readers.names.items():
        drain_into_file(store, folder, name, number, lock_timeout=PATIENCE)


def check(store: Store, folder: Path, readers: Readers) -> None:
    """Compare what each reader got with what was committed."""
    committed = set[str]()
    for path in folder.glob("writer-*"):
        for line in path.read_bytes().splitlines():
            note = orjson.loads(line)
            if store.outcome(note["request"]).status == "committed":
                committed.add(note["name"])
    assert committed == readers.look()
    for number, (before, after) in readers.looks.items():
        got = delivered(folder / f"sink-{number}")
        whole = {key[:-2] for key in got}
        assert whole <= committed - before, f"reader {number} got what was committed before its start, or never"
        missing = readers.brought.get(number, committed) - after - whole
        assert not missing, f"reader {number} lacks {len(missing)} transactions: {sorted(missing)[:5]}"
        if number not in readers.brought:
            assert got == {f"{name}-{part}" for name in whole for part in "ab"}, f"reader {number} got halves"
    while maintain(store.database).more:
        pass
    with store.database.read() as work:
        left = [queries.readers.count_rows(work, number, locked_at=0) for number in readers.looks]
        parent = queries.readers.count_rows(work, store.queue("airports").number, locked_at=0)
    assert set(left) == {(0, 0, 0)}, left
    assert parent == (0, 0, 0)


def test_each_reader_gets_exactly_the_commits_since_its_start(run: Callable[..., Readers]) -> None:
    assert len(run(80, gone=LEAST_GONE).brought) >= LEAST_GONE


@pytest.mark.full("a long history")
def test_a_long_history_of_readers_that_come_and_go(run: Callable[..., Readers], way: Way) -> None:
    transactions = way.part_of(TRANSACTIONS) // 4
    gone = LEAST_GONE + transactions // 100
    assert len(run(transactions, gone=gone).brought) >= gone
