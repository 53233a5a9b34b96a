"""Taking turns: contestants run in alternating order, repeat after repeat, and medians are compared."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, TypeVar

from benchmarks.processor import ProcessorClock, no_server

Name = TypeVar("Name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One ratio against a baseline of the same run."""

    bench: str
    case: str
    ratio: float
    better: Literal["lower", "higher"]
    baseline: str
    repeats: int
    goal: float | None = None
    note: str = ""
    """For people: absolute numbers, which differ from machine to machine."""

    @property
    def ok(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        if self.goal is None:
            return None
        return self.ratio >= self.goal if self.better == "higher" else self.ratio <= self.goal

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": round(self.ratio, 3), "ok": self.ok}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was seen to become of an event; words that the benchmark derives from what it has found."""

    bench: str
    target: str
    way: str
    event: str
    became: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Watch:
    """Measures the part of a contestant's work that counts.

    :param server: the clock of the server that works for it.
    """

    def __init__(self, server: ProcessorClock = no_server) -> None:
        self._server = server
        self.seconds = 0.0
        self.client = 0.0
        """Processor seconds of this process."""
        self.server = 0.0
        """Processor seconds of the server."""

    @contextmanager
    def running(self) -> Iterator[None]:
        client, server = time.process_time(), self._server()
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started
        self.client += time.process_time() - client
        self.server += self._server() - server

    def another(self) -> Watch:
        """Give a watch with the same server's clock, for what follows."""
        return Watch(self._server)

    @property
    def processor(self) -> float:
        """Processor seconds of both."""
        return self.client + self.server


class Taken(dict[str, list[float]]):
    """Seconds of each repeat, by name of the contestant."""

    def __init__(self) -> None:
        super().__init__()
        self.processor: dict[str, list[float]] = {}
        """Processor seconds of each repeat, of this process and of the server."""
        self.watches: dict[str, list[Watch]] = {}
        """The same, apart."""

    def add(self, name: str, watches: Sequence[Watch]) -> None:
        """Take what was measured of a contestant.

        :param watches: one a repeat.
        """
        self[name] = [watch.seconds for watch in watches]
        self.processor[name] = [watch.processor for watch in watches]
        self.watches[name] = list(watches)

    def to_json(self) -> dict[str, list[tuple[float, float, float]]]:
        """Return a JSON object: seconds, and processor seconds of client and server."""
        return {
            name: [(watch.seconds, watch.client, watch.server) for watch in watches]
            for name, watches in self.watches.items()
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Sequence[Sequence[float]]]) -> Self:
        """Read what :meth:`to_json` gave."""
        taken = cls()
        for name, repeats in found.items():
            watches = []
            for seconds, client, server in repeats:
                watch = Watch()
                watch.seconds, watch.client, watch.server = seconds, client, server
                watches.append(watch)
            taken.add(name, watches)
        return taken


Contestant = Callable[[Watch], None]


def shuffled(names: Iterable[Name], *, repeats: int) -> Iterator[Name]:
    """Give each name once a repeat, in another order each time."""
    order = list(names)
    shuffle = random.Random(0).shuffle
    for _ in range(repeats):
        shuffle(order)
        yield from order


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Compare repeat by repeat, each within itself, and take the median."""
    return statistics.median(own / other for own, other in zip(ours, theirs, strict=True))


def alternate(
    contestants: Mapping[str, Contestant],
    *,
    repeats: int,
    warm_up: bool = True,
    server: ProcessorClock = no_server,
) -> Taken:
    """Let each contestant run once a repeat, in another order each time.

    :param contestants: by name; each measures itself with the watch it is given.
    :param repeats: how often.
    :param warm_up: whether a first round does not count.
    :param server: the clock of the server that works for them.
    """
    watches: dict[str, list[Watch]] = {name: [] for name in contestants}
    for name in shuffled(contestants, repeats=repeats + warm_up):
        watch = Watch(server)
        contestants[name](watch)
        watches[name].append(watch)
    taken = Taken()
    for name, measured in watches.items():
        taken.add(name, measured[warm_up:])
    return taken


def processor_note(taken: Taken, name: str, baseline: str) -> str:
    """Write for people how many times the baseline's processor time a contestant needs."""
    return f"{median_ratio(taken.processor[name], taken.processor[baseline]):.2f} × processor time"


def processor_of_each(taken: Taken, name: str, things: int) -> str:
    """Write for people how many processor microseconds a contestant needs for each thing, client and server apart."""
    client, server = (
        statistics.median(getattr(watch, of) for watch in taken.watches[name]) / things * 1e6
        for of in ("client", "server")
    )
    return f"{client:.2f} + {server:.2f} µs"


def speed(seconds: Mapping[str, list[float]], name: str, baseline: str) -> float:
    """Say how many times the baseline's speed a contestant has: the median over the repeats, each within itself."""
    return median_ratio(seconds[baseline], seconds[name])


def rate(seconds: Mapping[str, list[float]], name: str, things: int, of: str) -> str:
    """Write a median rate for people."""
    return f"{things / statistics.median(seconds[name]) / 1000:,.0f} k {of}/s"
