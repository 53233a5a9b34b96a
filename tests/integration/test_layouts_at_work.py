"""Buckets of a queue are altered again and again while processes add, load and drain (I3, I6, I9, I13)."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.waiting import PATIENCE, wait_until

from export_queue import ExportQueueError, Owner, SinkSpec, Store, drain
from export_queue.core.queue import close_layouts
from export_queue.core.segments import compact

fork = multiprocessing.get_context("fork")
KEYS = [f"key-{n}" for n in range(60)]
LAYOUTS = [(7, 3), (64, 16), (16, 4), (5, 1)]
COMMITS = 4
"""Commits of each kind between two alterations."""


class Work:
    """What the processes of one test share.

    :param open_store: opens the store once more.
    :param folder: where they write what they have done, and the files of loads.
    :param sink: where the queue is drained into.
    """

    def __init__(self, open_store: Callable[[], Store], folder: Path, sink: SinkSpec) -> None:
        self.open_store, self.folder, self.sink = open_store, folder, sink
        self.stop = fork.Event()
        self.commits = {name: fork.Value("q", 0) for name in ("short", "long", "files")}

    @contextlib.contextmanager
    def opened(self) -> Any:
        with self.open_store() as store:
            store.database.segments = str(self.folder / "segments")
            yield store

    def write(self, kind: str, seed: int) -> None:
        """Add entries of some keys in one transaction after the other, and note what was committed."""
        choice = random.Random(seed)
        with self.opened() as store, (self.folder / f"{kind}-{seed}.lines").open("w") as notes:
            number = 0
            while not self.stop.is_set():
                number += 1
                keys = choice.sample(KEYS, 5)
                value = f"{kind} {seed} {number}"
                with store.transaction(long=kind != "short") as tx:
                    queue = tx.queue("orders")
                    if kind == "files":
                        queue.add_batch(pa.table({"key": keys[:3], "value": ["replaced"] * 3}))
                        queue.add_batch(pa.table({"key": keys, "value": [value] * 5}))
                    else:
                        for key in keys:
                            queue.add(key, value if kind == "short" else "replaced")
                        if kind == "long":
                            tx.flush()
                            for key in keys:
                                queue.add(key, value, replace=True)
                    seq = tx.id
                notes.write(json.dumps([seq, value, keys]) + "\n")
                with self.commits[kind].get_lock():
                    self.commits[kind].value += 1

    def bring(self, number: int) -> None:
        """Drain again and again, and note the counts."""
        brought = [0, 0, 0]
        with self.opened() as store:
            is_last = False
            while not is_last:
                is_last = self.stop.is_set()
                with contextlib.suppress(ExportQueueError) if not is_last else contextlib.nullcontext():
                    report = drain(store, "orders", self.sink, if_locked="skip", chunk_rows=7)
                    brought = [one + more for one, more in zip(brought, counts(report), strict=True)]
        (self.folder / f"drain-{number}").write_text(json.dumps(brought))

    def move(self) -> None:
        """Rewrite what waits in older layouts, again and again."""
        with self.opened() as store:
            while not self.stop.is_set():
                with contextlib.suppress(ExportQueueError):
                    compact(store.database, "orders", older_layouts=True, owner=Owner("rewriting"))


def counts(report: Any) -> tuple[int, int, int]:
    return report.read, report.acknowledged, report.dead


@pytest.mark.full("seven processes, which wait for each other's commits between the alterations")
def test_the_sink_has_the_newest_of_each_key_whatever_the_buckets_were(
    store: Store, open_store: Callable[[], Store], tmp_path: Path
) -> None:
    store.configure_queue("orders", buckets=16, buckets_per_range=4, value="str")
    work = Work(open_store, tmp_path, SinkSpec("sql", {"url": f"sqlite:///{tmp_path / 'copies.db'}"}, name="copies"))
    kinds = [("short", 1), ("long", 2), ("long", 3), ("files", 4)]
    processes = [fork.Process(target=work.write, args=kind, daemon=True) for kind in kinds]
    processes += [fork.Process(target=work.bring, args=(number,), daemon=True) for number in range(2)]
    processes.append(fork.Process(target=work.move, daemon=True))
    for process in processes:
        process.start()
    try:
        for buckets, buckets_per_range in LAYOUTS:
            before = {kind: value.value for kind, value in work.commits.items()}
            for kind, value in work.commits.items():
                wait_until(lambda: value.value >= before[kind] + COMMITS, f"nothing was committed: {kind}")  # noqa: B023
            store.alter_queue("orders", buckets=buckets, buckets_per_range=buckets_per_range, guard="seq")
    finally:
        work.stop.set()
        for process in processes:
            process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0] * len(processes)
    rest = drain(store, "orders", work.sink)
    close_layouts(store.database, store.queue("orders"))
    assert (store.queue("orders").layout, store.queue("orders").older) == (1 + len(LAYOUTS), ())

    newest: dict[str, tuple[int, str]] = {}
    added = 0
    for notes in tmp_path.glob("*.lines"):
        for line in notes.read_text().splitlines():
            seq, value, keys = json.loads(line)
            added += len(keys)
            for key in keys:
                newest[key] = max(newest.get(key, (0, "")), (seq, value))
    with contextlib.closing(sqlite3.connect(tmp_path / "copies.db")) as copies:
        found = {key: value for key, value, *_ in copies.execute("select * from orders_live")}
    assert found == {key: value for key, (_, value) in newest.items()}
    brought = [json.loads((tmp_path / f"drain-{number}").read_text()) for number in range(2)] + [counts(rest)]
    read, acknowledged, dead = (sum(column) for column in zip(*brought, strict=True))
    assert acknowledged == read, "each entry once"
    assert dead == 0
    assert store.backlog("orders") == []
    assert read >= added, "of a transaction with files, the earlier of two entries of a key may be counted too"
