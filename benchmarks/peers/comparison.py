"""All ways in turns over the same records, target by target, and then what becomes of them when things go wrong."""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from tests.support.elasticsearch import ElasticsearchServer
from tests.support.servers import PostgresServer, RedisServer

from benchmarks.measuring import Figure, Outcome, median_ratio, shuffled
from benchmarks.peers.environment import OWN, prepare
from benchmarks.peers.events import outcomes
from benchmarks.peers.failing import FOLDER
from benchmarks.peers.greeting import Greeting
from benchmarks.peers.session import Session
from benchmarks.peers.targets import InElasticsearch, InPostgresql, InRedis, Target
from benchmarks.peers.ways import Way, ways_to
from benchmarks.processor import of_tree

FULL, QUICK = 200_000, 2_000
REPEATS = 3
EVENT_ROWS = 8_000
"""Enough for several batches of each task; Elasticsearch shows 10 000 at once."""


def compare(quick: bool) -> Iterator[Figure | Outcome]:
    """Measure and observe.

    :raises FileNotFoundError: a peer, its Spark or a server is missing.
    """
    sparks = prepare()
    rows, repeats = (QUICK, 1) if quick else (FULL, REPEATS)
    with ExitStack() as stack:
        store, sql = stack.enter_context(PostgresServer()), stack.enter_context(PostgresServer())
        redis, elasticsearch = stack.enter_context(RedisServer()), stack.enter_context(ElasticsearchServer())
        greeting = stack.enter_context(Greeting(elasticsearch.port, elasticsearch.version))
        segments, deaths = (stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2))
        targets = [InRedis(redis), InElasticsearch(elasticsearch, greeting), InPostgresql(sql)]
        if quick:  # another one each time
            targets = [random.choice(targets)]
        url = sa.make_url(store.url(store.create_database()))
        secrets = {target.secret: target.server.password for target in targets} | {"PEERS_STORE": store.password}
        variables = {**secrets, FOLDER: deaths}
        sessions = {
            spark: stack.enter_context(Session(spark, python, jars, variables))
            for spark, (python, jars) in sparks.items()
        }
        place = {
            "url": url._replace(password=None).render_as_string(),
            "secret": "env:PEERS_STORE",
            "segments": segments,
        }
        for target in targets:
            bench = Bench(target, sessions, place, store, rows)
            yield from bench.figures(repeats, warm_up=not quick)
        for target in targets:
            yield from outcomes(target, sessions, place, EVENT_ROWS, Path(deaths), each=not quick)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one way took for all records once."""

    seconds: float
    used: Mapping[str, float]
    """Processor seconds by process."""

    @property
    def processor(self) -> float:
        """Processor seconds of all of them."""
        return sum(self.used.values())


class Bench:
    """One target; the records lie in the files of a queue, which the peers read and the drains drain."""

    numbers = itertools.count()

    def __init__(
        self,
        target: Target,
        sessions: Mapping[str, Session],
        place: Mapping[str, Any],
        store: PostgresServer,
        rows: int,
    ) -> None:
        self.target, self.sessions, self.place, self.rows = target, sessions, place, rows
        self.clocks = {"store": of_tree(store.pid), "target": of_tree(target.server.pid)}
        self.files = self.load("kept-" + target.name.lower())

    def figures(self, repeats: int, *, warm_up: bool) -> Iterator[Figure]:
        ways = {way.name: way for way in ways_to(self.target.name)}
        turns: dict[str, list[Turn]] = {name: [] for name in ways}
        for name in shuffled(ways, repeats=repeats + warm_up):
            turn = self.turn(ways[name])
            turns[name].append(turn)
            print(f"    {self.target.name}, {name}: {turn.seconds:.1f} s", file=sys.stderr, flush=True)
        counted = {name: taken[warm_up:] for name, taken in turns.items()}
        for name, way in ways.items():
            for other, goal in way.goals.items():
                yield from self.compared(way, counted[name], ways[other], counted[other], goal)

    def compared(
        self, way: Way, ours: Sequence[Turn], other: Way, theirs: Sequence[Turn], goal: float | None
    ) -> Iterator[Figure]:
        case = f"{self.target.name}: {way.name}"
        baseline = other.name + ("" if other.spark == OWN else f", Spark {other.spark}")
        rates = [self.rows / statistics.median(turn.seconds for turn in turns) / 1000 for turns in (ours, theirs)]
        yield Figure(
            bench="peers",
            case=case,
            ratio=median_ratio([turn.seconds for turn in theirs], [turn.seconds for turn in ours]),
            better="higher",
            goal=goal,
            baseline=baseline,
            repeats=len(ours),
            note=f"{rates[0]:,.0f} k records/s; {rates[1]:,.0f}",
        )
        yield Figure(
            bench="peers",
            case=f"{case}, processor time",
            ratio=median_ratio([turn.processor for turn in ours], [turn.processor for turn in theirs]),
            better="lower",
            baseline=baseline,
            repeats=len(ours),
            note=f"{self.parts(ours)} µs; {self.parts(theirs)} µs",
        )

    def parts(self, turns: Sequence[Turn]) -> str:
        """Write for people what each process uses for a record."""
        names = turns[0].used
        each = {name: statistics.median(turn.used[name] for turn in turns) / self.rows * 1e6 for name in names}
        return " + ".join(f"{name} {used:.1f}" for name, used in each.items())

    def turn(self, way: Way) -> Turn:
        """Bring all records to the empty target, and measure."""
        self.target.empty(way.guard)
        session = self.sessions[way.spark]
        order: dict[str, Any]
        if way.is_drain:
            queue = f"bench-{next(self.numbers)}"
            self.load(queue)
            assert way.guard is not None
            order = {"do": "drain", "store": self.place, "queue": queue, "sink": self.target.sink(way.guard)}
        elif way.how == "sink":
            assert way.guard is not None
            order = {"do": "sink", "sink": self.target.sink(way.guard), "files": self.files}
        else:
            order = {"do": "write", "how": way.how, "to": {**self.target.address(), **way.options}, "files": self.files}
        before = {name: clock() for name, clock in self.clocks.items()}
        answer = session.ask(**order)
        servers = {name: clock() - before[name] for name, clock in self.clocks.items()}
        if way.is_drain:
            assert answer["acknowledged"] == self.rows, answer
        return Turn(answer["seconds"], {**answer["used"], **servers})

    def load(self, queue: str) -> list[str]:
        """Add the records to a queue; returns its files."""
        order = {"store": self.place, "queue": queue, "rows": self.rows, "version": 1, "deletes": False}
        files: list[str] = self.sessions[OWN].ask("load", **order)["files"]
        return files
