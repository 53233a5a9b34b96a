"""Claims during batches, drains that are killed or linger, and readers at the same time."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import pytest

from export_queue.core.errors import LeaseLost
from export_queue.core.sinks import Claim, FencedSink, Operations
from export_queue.core.testing.conformance.histories import (
    Delivery,
    Record,
    end_after,
    kill,
    operations_of,
    patiently,
    visible,
)
from export_queue.core.testing.conformance.target import SinkTarget

_WAIT_SECONDS = 60


class FencedRaces(SinkTarget):
    """Tests with several drains of one unit."""

    def make_fenced(self) -> FencedSink:
        return cast(FencedSink, self.make_sink())

    def test_after_a_claim_nothing_of_an_older_drain_arrives(self) -> None:
        """The older drain writes all its records in each batch, without end. Claims arrive at any moment."""
        generator = self.generator()
        names = [self.fresh() for _ in range(20)]
        versions: list[list[Delivery]] = []
        unit = self.fresh()

        def batches() -> Iterator[Operations]:
            for index in itertools.count():
                if index == len(versions):
                    versions.append([self.delivery(name, index + 1) for name in names])
                yield operations_of(versions[index])

        with Zombie(self.make_fenced()) as older:
            newer = self.make_fenced()
            newer.admit(queue_id="conformance", store_id="conformance", fence=1)
            for fence in range(2, 12, 2):
                older.begin(Claim(unit, fence), batches())
                older.wait(2)
                time.sleep(generator.uniform(0, 0.005))  # not a wait: it spreads the claims over the batch
                patiently(lambda fence=fence: newer.claim([Claim(unit, fence + 1)]))  # type: ignore[misc]
                at_once = visible(self.read_all(), versions[0])
                older.finish()
                later = visible(self.read_all(), versions[0])
                assert later == at_once, "a batch was applied after the claim"
                if self.takes != "nothing":
                    seqs = {one.seq for batch in versions[: older.done + 1] for one in batch}
                    written = {seq for seq in seqs if all(later.get(d.record) == d.document for d in versions[seq - 1])}
                    assert len(written) == 1, "half of a batch was applied"
            newer.close()

    def test_drains_that_are_killed_and_taken_over_from_never_let_a_record_go_back(self) -> None:
        """Each drain continues after its claim where its predecessors ended. Some are killed, others linger."""
        if not self.shared:
            pytest.skip("this sink lives in one process")
        generator = self.generator()
        prefix = self.fresh()
        batches: list[list[Delivery]] = []
        for seq in range(1, 150):
            chosen = generator.sample(range(12), 4)
            batches.append([self.delivery(f"{prefix}{n}", seq, put=generator.random() < 0.7) for n in chosen])
        everything = [delivery for batch in batches for delivery in batch]
        looks: list[dict[Record, bytes]] = []
        drains = Successors(self.make_fenced, f"{prefix}unit", batches, most=80)
        try:
            while not drains.is_finished:
                drains.start()
                goal = drains.done + generator.randrange(4, 16)
                drains.wait(lambda goal=goal: drains.done >= min(goal, len(batches)))  # type: ignore[misc]
                looks.append(visible(self.read_all(), everything))
                if generator.random() < 0.5:
                    drains.kill_last()
        finally:
            drains.kill_all()
        looks.append(visible(self.read_all(), everything))
        self.check(everything)
        self.check_looks(looks, everything)


class Zombie:
    """A thread that applies batches under one claim until the claim is lost. It closes its sink."""

    def __init__(self, sink: FencedSink) -> None:
        self._sink = sink
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.done = 0

    def __enter__(self) -> Zombie:
        self._sink.admit(queue_id="conformance", store_id="conformance", fence=1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.join(_WAIT_SECONDS)
        self._sink.close()

    def begin(self, claim: Claim, batches: Iterable[Operations]) -> None:
        """Claim a unit, and apply one batch after the other."""
        patiently(lambda: self._sink.claim([claim]))
        self.done, self._error = 0, None
        self._thread = threading.Thread(target=self._run, args=(claim, batches))
        self._thread.start()

    def wait(self, batches: int) -> None:
        """Wait until some batches are applied."""
        end = time.monotonic() + _WAIT_SECONDS
        while self.done < batches:
            assert self._thread is not None
            assert self._thread.is_alive(), f"the older drain failed: {self._error!r}"
            assert time.monotonic() < end
            time.sleep(0.0005)

    def finish(self) -> None:
        """Wait until its claim is lost."""
        assert self._thread is not None
        self._thread.join(_WAIT_SECONDS)
        assert isinstance(self._error, LeaseLost), f"the older drain ended with {self._error!r}"

    def _run(self, claim: Claim, batches: Iterable[Operations]) -> None:
        try:
            for batch in batches:
                patiently(lambda batch=batch: self._sink.under(claim).apply(batch))  # type: ignore[misc]
                self.done += 1
        except BaseException as error:
            self._error = error


class Successors:
    """Processes that drain the same batches, each under a higher fence than the one before it.

    :param make_sink: opens the sink in the process.
    :param most: maximum number of processes.
    """

    def __init__(
        self, make_sink: Callable[[], FencedSink], unit: str, batches: Sequence[Sequence[Delivery]], *, most: int
    ) -> None:
        self._context = multiprocessing.get_context("fork")
        self._make_sink = make_sink
        self._unit = unit
        self._batches = [operations_of(batch) for batch in batches]
        # by process; no lock: a killed process would never release it
        self._done: Any = self._context.RawArray("q", most)
        self._processes: list[multiprocessing.process.BaseProcess] = []

    @property
    def done(self) -> int:
        """The number of acknowledged batches."""
        return int(max(self._done))

    @property
    def is_finished(self) -> bool:
        """Whether all batches are acknowledged."""
        return self.done == len(self._batches)

    def start(self) -> None:
        """Start one more process, which takes over."""
        number = len(self._processes)
        process = self._context.Process(target=end_after, args=(partial(self._drain, number),))
        self._processes.append(process)
        process.start()

    def wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + _WAIT_SECONDS
        while not condition():
            assert not any(process.exitcode == 1 for process in self._processes), "a drain failed; see its output"
            assert time.monotonic() < end, f"{self.done} batches in {_WAIT_SECONDS} s"
            time.sleep(0.001)

    def kill_last(self) -> None:
        """Kill the newest process."""
        kill(self._processes[-1])

    def kill_all(self) -> None:
        """Kill all processes."""
        for process in self._processes:
            kill(process)

    def _drain(self, number: int) -> None:
        sink = self._make_sink()
        sink.admit(queue_id="conformance", store_id="conformance", fence=1)
        claim = Claim(self._unit, number + 1)
        patiently(lambda: sink.claim([claim]))
        # read after the claim: until then an older drain may have continued
        for position in range(max(self._done), len(self._batches)):
            patiently(lambda at=position: sink.under(claim).apply(self._batches[at]))  # type: ignore[misc]
            self._done[number] = position + 1
