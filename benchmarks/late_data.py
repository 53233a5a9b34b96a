"""Late data: loads and adds that never cease, and drains again and again, while a compaction works on their queue.

A backlog of small loads waits. Two processes go on to load and to add, each in turns; a third one merges the backlog.
As soon as that holds its locks, drains begin: one that waits for what is held, and others that leave it out. Commits
are compared with those of the same scene without a compaction, and the compaction with one that nobody is beside. That
it completes, and that the sink then has each entry once and nothing else, is no figure: the benchmark fails otherwise.
The store is PostgreSQL, the sink is in memory.

``EXPORT_QUEUE_BENCH_ENTRIES`` is the number of entries of the backlog; 600,000 by default.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, Literal

import pyarrow as pa
from tests.support.servers import PostgresServer
from tests.support.waiting import wait_until

from benchmarks.clients import PATIENCE, fork
from benchmarks.measuring import Figure, median_ratio, shuffled
from export_queue import Candidates, MemorySink, Store, drain
from export_queue.core.locks import holders

LOAD_ENTRIES = 10_000
"""Entries of one load of the backlog."""
UNITS = 10
WRITERS = 2
LATE_LOAD, LATE_ROWS = 100, 10
"""Entries of one late load, and of one late add."""
PAUSE = 0.01
"""Seconds between two commits of a writer."""
DRAIN_EVERY = 0.3
"""Seconds between two drains."""
LOCK_TIMEOUT = 30.0
"""Seconds after which a drain that waits would revoke the compaction."""
MEDIAN_GOAL, WORST_GOAL = 2.0, 3.0
"""The compaction takes a processor, of which a small machine has two."""
ALONE = "the same commits and drains, nothing is merged"
QUIET = "the same compaction, nobody beside it"

_numbers = itertools.count()

Scene = Literal["late data", "no compaction", "nobody beside"]
SCENES: tuple[Scene, ...] = ("late data", "no compaction", "nobody beside")


def run(quick: bool) -> Iterator[Figure]:
    entries = 5_000 if quick else int(os.environ.get("EXPORT_QUEUE_BENCH_ENTRIES", "600000"))
    repeats, seconds = (1, 0.5) if quick else (3, 5.0)
    found: dict[Scene, list[Round]] = {scene: [] for scene in SCENES}
    with PostgresServer() as postgres, tempfile.TemporaryDirectory() as folder:
        url = postgres.url(postgres.create_database())
        with Store.open(url) as store:
            store.create()
        for scene in shuffled(SCENES, repeats=repeats):
            load = LOAD_ENTRIES if not quick else entries // 10
            found[scene].append(_Play(url, folder, scene, entries, load).round(seconds))
    late, alone, quiet = (found[scene] for scene in SCENES)
    for what, of_late, of_alone in (
        (f"a load of {LATE_LOAD} entries", [one.loads for one in late], [one.loads for one in alone]),
        (f"an add of {LATE_ROWS} entries", [one.adds for one in late], [one.adds for one in alone]),
    ):
        yield _compared(f"{what} beside a compaction, median", of_late, of_alone, statistics.median, MEDIAN_GOAL)
        yield _compared(f"{what} beside a compaction, longest", of_late, of_alone, max, WORST_GOAL)
    drains = [seconds for one in late for seconds in one.drains]
    yield Figure(
        bench="late_data",
        case="the longest drain that waits for a compaction, and then brings all",
        ratio=max(one.waited for one in late) / LOCK_TIMEOUT,
        better="lower",
        goal=1.0,
        baseline=f"lock_timeout, {LOCK_TIMEOUT:g} s",
        repeats=repeats,
        note=f"{len(drains)} drains beside it left out what was held, in {max(drains, default=0.0):.2f} s at most",
    )
    yield Figure(
        bench="late_data",
        case=f"compaction of {entries:,} entries while late data comes",
        ratio=median_ratio([one.merged for one in late], [one.merged for one in quiet]),
        better="lower",
        baseline=QUIET,
        repeats=repeats,
        note=f"{statistics.median(one.merged for one in late):.1f} s; "
        f"{statistics.median(one.late for one in late):,.0f} entries came meanwhile",
    )


def _compared(case: str, late: Sequence[list[float]], alone: Sequence[list[float]], of: Any, goal: float) -> Figure:
    ours, theirs = [of(one) for one in late], [of(one) for one in alone]
    return Figure(
        bench="late_data",
        case=case,
        ratio=median_ratio(ours, theirs),
        better="lower",
        goal=goal,
        baseline=ALONE,
        repeats=len(ours),
        note=f"{statistics.median(ours) * 1e3:.1f} ms, alone {statistics.median(theirs) * 1e3:.1f} ms",
    )


@dataclass(slots=True)
class Round:
    """What was measured in one scene, in seconds."""

    loads: list[float] = field(default_factory=list)
    """Of each late load, from its beginning to the end of its commit."""
    adds: list[float] = field(default_factory=list)
    drains: list[float] = field(default_factory=list)
    """Of each drain that left out what others held, and ended before the compaction."""
    waited: float = 0.0
    """Of the drain that waited, and then brought what had been merged."""
    merged: float = 0.0
    late: int = 0
    """Entries that came while the compaction was at work."""


@dataclass(frozen=True, slots=True)
class _Commit:
    kind: Literal["loads", "adds"]
    keys: tuple[str, ...]
    begun: float
    ended: float


class _Play:
    """One scene, with a queue of its own.

    :param entries: of the backlog.
    :param load: of them in each of its loads.
    """

    def __init__(self, url: str, folder: str, scene: Scene, entries: int, load: int) -> None:
        self._url, self._folder, self._scene = url, folder, scene
        self._queue = f"late-{next(_numbers)}"
        self._old = [f"old-{number}" for number in range(entries)] if scene != "no compaction" else []
        self._load = load
        self._sink = MemorySink()
        self._brought: list[int] = []

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Store]:
        with Store.open(self._url, segments=self._folder) as store:
            yield store

    def round(self, seconds: float) -> Round:
        """Play the scene.

        :param seconds: how long it lasts where nothing is merged.
        """
        with self._opened() as store:
            store.configure_queue(self._queue, buckets=10 * UNITS, buckets_per_range=10, value="bytes")
            for start in range(0, len(self._old), self._load):
                _add_load(store, self._queue, self._old[start : start + self._load])
        found, stop = Round(), fork.Event()
        pipes = [self._start(self._write, number, stop) for number in range(WRITERS * (self._scene != "nobody beside"))]
        for pipe in pipes:
            _answer(pipe)  # the first commit
        begun = time.monotonic()
        compaction = self._start(self._merge) if self._old else None
        with self._opened() as store:
            end, drains = begun + seconds, list[tuple[float, float]]()
            if compaction is not None:
                self._await_locks(store, compaction)
            if self._scene != "nobody beside":
                drains = self._drain_on(store, found, compaction, end)
            ended = time.monotonic()
            if compaction is not None:
                ended, found.merged = _answer(compaction)
            stop.set()
            commits: list[_Commit] = [commit for pipe in pipes for commit in _answer(pipe)]
            self._bring(store)
            self._check(store, commits)
        meanwhile = [one for one in commits if begun <= one.begun < ended]
        for one in meanwhile:
            getattr(found, one.kind).append(one.ended - one.begun)
        found.drains = [taken for drained, taken in drains if drained < ended]
        found.late = sum(len(one.keys) for one in meanwhile)
        return found

    def _drain_on(
        self, store: Store, found: Round, compaction: Connection | None, end: float
    ) -> list[tuple[float, float]]:
        """Drain now and then while the compaction is at work, and have one drain wait for it all the while.

        :returns: of each but that one, when it ended and how long it took.
        """
        waited, drains = list[float](), list[tuple[float, float]]()
        waiting = threading.Thread(target=lambda: waited.append(self._bring(store, lock_timeout=LOCK_TIMEOUT)))
        waiting.start()
        while (time.monotonic() < end) if compaction is None else not compaction.poll():
            taken = self._bring(store, if_locked="skip")
            drains.append((time.monotonic(), taken))
            time.sleep(DRAIN_EVERY)
        waiting.join(PATIENCE)
        (found.waited,) = waited
        return drains

    def _bring(self, store: Store, **options: Any) -> float:
        begun = time.monotonic()
        report = drain(store, self._queue, self._sink, sink_name="memory", **options)
        self._brought.append(report.acknowledged)
        return time.monotonic() - begun

    def _await_locks(self, store: Store, compaction: Connection) -> None:
        queue = store.queue(self._queue)

        def is_at_work() -> bool:
            with store.database.read() as work:
                return compaction.poll() or bool(holders(work, queue, queue.units()))

        wait_until(is_at_work, "the compaction does not begin")

    def _check(self, store: Store, commits: Sequence[_Commit]) -> None:
        added = {key.encode() for commit in commits for key in commit.keys} | {key.encode() for key in self._old}
        records = self._sink.records()
        if {key: value for (_, key), value in records.items()} != {key: key for key in added}:
            raise RuntimeError(f"{self._queue}: the sink has {len(records)} records, and not the {len(added)} added")
        if sum(self._brought) != len(added) or store.backlog(self._queue):
            raise RuntimeError(f"{self._queue}: {len(added)} entries were added, and {sum(self._brought)} brought")

    # -- processes of their own

    def _start(self, work: Any, *arguments: Any) -> Connection:
        receiver, sender = fork.Pipe(duplex=False)
        fork.Process(target=work, args=(*arguments, sender), daemon=True).start()
        sender.close()
        return receiver

    def _write(self, number: int, stop: Event, sender: Connection) -> None:
        commits: list[_Commit] = []
        with self._opened() as store:
            for turn in itertools.count():
                is_load = turn % 2 == 0
                keys = tuple(f"late-{number}-{turn}-{i}" for i in range(LATE_LOAD if is_load else LATE_ROWS))
                begun = time.monotonic()
                (_add_load if is_load else _add_rows)(store, self._queue, keys)
                commits.append(_Commit("loads" if is_load else "adds", keys, begun, time.monotonic()))
                if turn == 0:
                    sender.send("at work")
                if stop.wait(PAUSE):
                    break
        sender.send(commits)

    def _merge(self, sender: Connection) -> None:
        with self._opened() as store:
            begun = time.monotonic()
            report = store.compact(self._queue, wanted=Candidates(most_bytes=1 << 30))
            ended = time.monotonic()
        if (len(report.units), report.lost, report.passed_over) != (UNITS, 0, 0):
            raise RuntimeError(f"expected {UNITS} units to be merged, found: {report.line()}")
        sender.send((ended, ended - begun))


def _add_load(store: Store, queue_id: str, keys: Sequence[str]) -> None:
    with store.transaction(long=True) as tx:
        tx.queue(queue_id).add_batch(pa.table({"key": keys, "value": [key.encode() for key in keys]}))


def _add_rows(store: Store, queue_id: str, keys: Sequence[str]) -> None:
    with store.transaction() as tx:
        tx.queue(queue_id).add_many((key, key.encode()) for key in keys)


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE):
        raise RuntimeError(f"a process has not answered for {PATIENCE:.0f} s")
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a process has ended with an error, which stands above") from None
