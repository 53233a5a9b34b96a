"""Histories of a process that forks again and again while its threads work, and of its children (I1-I3, I12).

Children begin with the parent's store, which its threads go on using, and some with a transaction of the forking
thread; one child in four is a parent itself. All append to lists, and add an entry for each number.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.battery.journals import ENTRY, LETTERS, Journal, ask_for_the_dead, read_journals
from tests.battery.processes import end_all
from tests.battery.shared import QUEUE, fork
from tests.battery.size import HANGS, TRANSACTIONS
from tests.battery.ways import Way
from tests.support.fixtures import Covered
from tests.support.histories import Append, Operation, ReadList, check_history
from tests.support.waiting import PATIENCE, wait_until

from export_queue import Store, StoreError, TransactionContext, TransactionError
from export_queue.core.store import schema

LISTS, LIST_LENGTH = 4, 30
THREADS = 2
"""Those of the parent that work while its main thread forks."""
AT_ONCE = 4
"""Children that live at one time."""
PARENTS = 4
"""One child in so many forks, too."""


class Recorder:
    """A client in a thread or process of its own, which notes what it did and saw."""

    def __init__(self, store: Store, session: int, folder: Path, generations: Any) -> None:
        self.store, self.session, self.folder, self.generations = store, session, folder, generations
        self.journal = Journal(folder / f"journal-{session}")
        self.generator = random.Random(session)
        self.done = 0

    def step(self, between: Callable[[], None] = lambda: None) -> None:
        """Run one transaction.

        :param between: what is done after its reads, before its writes.
        """
        operations: list[Operation] = []
        event: dict[str, object] = {"session": self.session, "begin": time.monotonic_ns()}
        is_sent, is_long = False, self.generator.random() < 0.2
        value = self.session * 1_000_000 + self.done
        self.done += 1
        try:
            with self.store.transaction(long=is_long, timeout=PATIENCE) as tx:
                event["request"] = tx.request.hex
                for slot in self.generator.sample(range(LISTS), 2):
                    key, values = self.read(tx, slot, operations)
                between()
                if self.generator.random() < 0.7:
                    tx.table("lists").set(key, "v", " ".join(map(str, (*values, value))).encode())
                    tx.queue(QUEUE).add(f"{value}", None)
                    operations.append(Append(key, value))
                    if is_long:
                        tx.flush()
                self.note(event, operations)
                is_sent = True
            answer = "committed"
        except TransactionError:
            answer = "refused"
        if not is_sent:
            self.note(event, operations)
        self.journal.write(request=event["request"], answer=answer, end=time.monotonic_ns())

    def note(self, event: dict[str, object], operations: list[Operation]) -> None:
        entries = [(ENTRY, str(o.value), None) for o in operations if isinstance(o, Append)]
        self.journal.write(**event, operations=[*((LETTERS[type(o)], *o) for o in operations), *entries])

    def read(self, tx: TransactionContext, slot: int, operations: list[Operation]) -> tuple[str, tuple[int, ...]]:
        while True:
            generation = int(self.generations[slot])
            key = f"l{slot}-{generation}"
            values = tuple(map(int, (tx.table("lists").get(key, "v") or b"").split()))
            operations.append(ReadList(key, values))
            if len(values) < LIST_LENGTH:
                return key, values
            self.generations[slot] = generation + 1  # of two who see a full list, both name the same next one

    def be_parent_thread(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self.step()
            except Exception as error:  # a fork must not be noticed here
                self.journal.write(failure=f"{type(error).__name__} in a thread of the parent: {error}")
                return


def be_child(store: Store, session: int, folder: Path, generations: Any, steps: int, *, is_parent: bool) -> None:
    """Take steps in a forked process, and fork between them where it is a parent, too."""
    faulthandler.register(signal.SIGUSR1)  # for a child that hangs
    recorder = Recorder(store, session, folder, generations)
    grandchild = None
    with contextlib.suppress(StoreError):  # SQLite: the fork met a connection in use for longer than it waits
        for number in range(steps):
            if is_parent and number == steps // 2:
                arguments = (store, session + 1, folder, generations, steps)
                grandchild = fork.Process(target=be_child, args=arguments, kwargs={"is_parent": False})
                grandchild.start()
            recorder.step()
    if grandchild is not None:
        await_end([grandchild], folder)
        assert grandchild.exitcode == 0


def await_end(processes: list[BaseProcess], folder: Path, *, most: int = 0) -> None:
    """Wait until at most so many processes live. A loaded machine may slow their steps down, not stop them."""

    def journals() -> list[int]:
        return [path.stat().st_size for path in folder.glob("journal-???*")]  # the children's, from 100 on

    try:
        wait_until(lambda: count_alive(processes) <= most, "children neither end nor take a step", progress=journals)
    except AssertionError:
        for process in processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGUSR1)  # each shows where it hangs
        time.sleep(1)
        raise


def count_alive(processes: list[BaseProcess]) -> int:
    return sum(process.is_alive() for process in processes)


@pytest.mark.timeout(HANGS)
@pytest.mark.parametrize(
    ("all_ways", "steps"),
    [
        pytest.param(350, 15, id="short", marks=pytest.mark.brief),
        pytest.param(TRANSACTIONS, 50, id="long", marks=pytest.mark.full("as many transactions as are asked for")),
    ],
)
def test_what_a_parent_and_its_forked_children_see_is_strong_snapshot_isolation(
    way: Way, way_url: str, tmp_path: Path, all_ways: int, steps: int, covered: Covered
) -> None:
    children = math.ceil(way.part_of(all_ways) / (steps * (1 + 1 / PARENTS)))
    generations = fork.RawArray("q", LISTS)
    stop = threading.Event()
    failures: list[str] = []
    with way.open(way_url) as store:
        store.configure_queue(QUEUE)
        store.configure_table("lists")
        main, *others = (Recorder(store, session, tmp_path, generations) for session in range(THREADS + 1))
        threads = [threading.Thread(target=recorder.be_parent_thread, args=(stop,)) for recorder in others]
        for thread in threads:
            thread.start()
        living: list[BaseProcess] = []
        try:
            for number in range(children):
                arguments = (store, 2 * number + 100, tmp_path, generations, steps)
                options = {"is_parent": number % PARENTS == 0}
                child = fork.Process(target=be_child, args=arguments, kwargs=options)
                if number % 2:
                    main.step(between=child.start)
                if child.pid is None:
                    child.start()
                living.append(child)
                before = others[0].done
                wait_until(lambda: others[0].done > before + 1, "the fork has stopped the parent's commits")  # noqa: B023
                await_end(living, tmp_path, most=AT_ONCE - 1)
                assert all(one.exitcode in (None, 0) for one in living)
            await_end(living, tmp_path)
            assert all(one.exitcode == 0 for one in living)
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE)
            for child in living:
                child.kill()
        paths = sorted(tmp_path.glob("journal-*"))
        for path in paths:
            ask_for_the_dead(store, Journal(path))
        told = list(read_journals(paths, failures))
        verdict = check_history(one.transaction for one in told)
        assert not verdict.anomalies, str(verdict)
        assert not failures, failures
        end_all(store)
        committed = [one for one in told if one.transaction.status == "ok"]
        with store.transaction(read_only=True) as tx:
            held = [(row, value) for row, _, values in tx.table("lists").scan() for value in values.split()]
        with store.database.read() as work:
            entries = list(work.connection.scalars(sa.select(schema.entry.c.key)))
    appended = [o for one in committed for o in one.transaction.operations if isinstance(o, Append)]
    assert sorted(held) == sorted((o.key.encode(), b"%d" % o.value) for o in appended)
    assert sorted(entries) == sorted(key for one in committed for key in one.entries)
    covered(f"{len(told)} transactions, {len(committed)} committed, {len(paths)} threads and processes")
    ended = sum(path.read_bytes().count(b'"answer"') >= steps for path in paths)
    assert ended > children / 2, "too few children could use the store"
