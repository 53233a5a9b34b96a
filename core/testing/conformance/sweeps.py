"""Sweeps of tombstones: the tests for sinks that have a method ``sweep``.

A sweep changes a sink permanently: afterwards every sequence up to its floor is stale, and no other store may feed the
sink. So each test needs its own target, such as a folder, database or table from a fixture.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from export_queue.core.errors import SinkBelongsToAnother
from export_queue.core.sinks import MAX_SEQ, SweepableSink
from export_queue.core.testing.conformance.histories import Applier, Delivery, end_after, kill, patiently
from export_queue.core.testing.conformance.target import SinkTarget

STORE = "conformance"


class SinkSweeps(SinkTarget):
    """Tests of ``sweep``, skipped for a sink without this method."""

    @contextmanager
    def sweepable(self) -> Iterator[SweepableSink]:
        """Open the sink, if it can be swept."""
        with self.opened() as sink:
            if not isinstance(sink, SweepableSink):
                pytest.skip("this sink has no method sweep: it keeps its tombstones")
            yield sink

    def sweep(self, sink: SweepableSink, floor: int) -> int:
        """Sweep, and retry transient errors."""
        return patiently(lambda: sink.sweep(store_id=STORE, floor=floor))

    # What a sweep removes, and what it keeps.

    def test_after_a_sweep_a_late_stale_put_stays_away(self) -> None:
        name, other = self.fresh(), self.fresh()
        history = [self.delivery(name, 10), self.delivery(name, 20, put=False)]
        late = [self.delivery(name, seq) for seq in (15, 20, 25)]
        with self.sweepable() as sink:
            for one in history:
                self.apply(sink, [one])
            assert self.sweep(sink, 25) == 1
            for one in late:
                assert self.apply(sink, [one]).stale == 1
        with self.sweepable() as sink:  # another process, another day
            assert self.apply(sink, [*late, self.delivery(other, 25), self.delivery(other, 25, put=False)]).stale == 5
        assert self.visible_of(name, other) == set()

    def test_after_a_sweep_what_is_newer_than_the_floor_is_written(self) -> None:
        name, other = self.fresh(), self.fresh()
        newer = [self.delivery(name, 26), self.delivery(other, 26)]
        with self.sweepable() as sink:
            self.apply(sink, [self.delivery(name, 20, put=False)])
            assert self.sweep(sink, 25) == 1
            assert self.apply(sink, [*newer, self.delivery(name, 25)]).written == 2
            self.check(newer)
            assert self.apply(sink, [self.delivery(name, 28, put=False)]).written == 1
            assert self.apply(sink, [self.delivery(name, 27)]).stale == 1, "its new tombstone is above the floor"
        self.check([newer[1]])

    def test_below_the_floor_everything_is_stale_whatever_the_rank_of_its_record(self) -> None:
        name, other = self.fresh(), self.fresh()
        kept = self.delivery(name, 10)
        with self.sweepable() as sink:
            self.apply(sink, [kept])
            assert self.sweep(sink, 25) == 0, "a record that is there has no tombstone"
            late = [self.delivery(name, 24), self.delivery(name, 25, put=False), self.delivery(other, 1)]
            assert self.apply(sink, late).stale == 3
            self.check([kept])
            newer = [self.delivery(name, 26), self.delivery(other, 27)]
            assert self.apply(sink, newer).written == 2
        self.check(newer)

    def test_a_tombstone_above_the_floor_stays(self) -> None:
        names = [self.fresh() for _ in range(3)]
        with self.sweepable() as sink:
            tombstones = [self.delivery(name, seq, put=False) for name, seq in zip(names, (24, 25, 26), strict=True)]
            assert self.apply(sink, tombstones).written == 3
            assert self.sweep(sink, 24) == 1
            assert self.apply(sink, [self.delivery(name, 25) for name in names[1:]]).written == 1, "beats its delete"
            assert self.sweep(sink, 25) == 0
            assert self.apply(sink, [self.delivery(names[2], 26, put=False)]).stale == 1
            assert self.sweep(sink, 26) == 1
        assert self.visible_of(*names) == {self.record_id(names[1].encode())}

    def test_a_record_that_was_put_again_stays(self) -> None:
        names = [self.fresh() for _ in range(4)]
        with self.sweepable() as sink:
            self.apply(sink, [self.delivery(name, 10, put=False) for name in names])
            again = [self.delivery(names[0], 10), self.delivery(names[1], 11), self.delivery(names[2], 30)]
            assert self.apply(sink, again).written == 3
            assert self.sweep(sink, 20) == 1
            self.check(again)
            assert self.apply(sink, [self.delivery(names[2], 29)]).stale == 1
            newer = [self.delivery(name, 31, put=n % 2 == 0) for n, name in enumerate(names)]
            assert self.apply(sink, newer).written == 4
        self.check(newer)

    def test_a_second_sweep_finds_nothing_and_a_lower_floor_changes_nothing(self) -> None:
        names = [self.fresh() for _ in range(3)]
        with self.sweepable() as sink:
            self.apply(sink, [self.delivery(name, 10, put=False) for name in names])
            assert [self.sweep(sink, floor) for floor in (0, 9, 20, 20, 5, 0)] == [0, 0, 3, 0, 0, 0]
            assert self.apply(sink, [self.delivery(name, 20) for name in names]).stale == 3
            assert self.apply(sink, [self.delivery(names[0], 21)]).written == 1

    @pytest.mark.parametrize("floor", [(1 << 53) + 1, MAX_SEQ - 1])
    def test_floors_are_exact(self, floor: int) -> None:
        names = [self.fresh() for _ in range(2)]
        with self.sweepable() as sink:
            tombstones = [self.delivery(name, floor + n, put=False) for n, name in enumerate(names)]
            assert self.apply(sink, tombstones).written == 2
            assert self.sweep(sink, floor) == 1
            assert self.apply(sink, [self.delivery(names[0], floor)]).stale == 1
            assert self.apply(sink, [self.delivery(names[0], floor + 1)]).written == 1
            assert self.sweep(sink, MAX_SEQ) == 1

    def test_many_tombstones_go_and_everything_else_stays(self) -> None:
        generator = self.generator()
        prefix = self.fresh()
        history = [
            self.delivery(f"{prefix}{n}", generator.randrange(1, 200), put=generator.random() < 0.5, collection=n % 2)
            for n in range(2500)
        ]
        swept = sum(one.document is None and one.seq <= 100 for one in history)
        with self.sweepable() as sink:
            for start in range(0, len(history), 500):
                self.apply(sink, history[start : start + 500])
            assert self.sweep(sink, 100) == swept
            self.check(history)
            late = self.apply(sink, [one for one in history if one.seq <= 100][:500])
            assert (late.written, late.rejected) == (0, ())
        self.check(history)

    # Stores that may sweep.

    def test_a_sink_that_two_stores_feed_is_not_swept(self) -> None:
        name = self.fresh()
        with self.sweepable() as sink:
            self.apply(sink, [self.delivery(name, 20, put=False)])
            sink.admit(queue_id=f"{STORE}-{name}0", store_id="another", fence=1)
            for store in (STORE, "another", "a third"):
                with pytest.raises(SinkBelongsToAnother, match="another"):
                    sink.sweep(store_id=store, floor=25)
            assert self.apply(sink, [self.delivery(name, 19)]).stale == 1, "its tombstone is there"
            assert self.apply(sink, [self.delivery(name, 21)]).written == 1, "and no floor"

    def test_a_store_that_is_refused_does_not_keep_others_from_sweeping(self) -> None:
        with self.sweepable() as sink:
            with pytest.raises(SinkBelongsToAnother):
                sink.admit(queue_id="conformance", store_id="another", fence=5)
            assert self.sweep(sink, 25) == 0

    def test_a_sink_that_was_swept_takes_no_other_store(self) -> None:
        name = self.fresh()
        with self.sweepable() as sink:
            assert self.sweep(sink, 25) == 0
            for queue in (f"{STORE}-{name}0", "conformance"):
                with pytest.raises(SinkBelongsToAnother, match=STORE):
                    sink.admit(queue_id=queue, store_id="another", fence=100)
            with pytest.raises(SinkBelongsToAnother, match=STORE):
                sink.sweep(store_id="another", floor=50)
            sink.admit(queue_id=f"{STORE}-{name}1", store_id=STORE, fence=100)
            assert self.apply(sink, [self.delivery(name, 26)]).written == 1, "the floor has not moved"

    # Races and crashes.

    def test_sweeps_beside_appliers_and_late_repetitions_never_bring_a_record_back(self) -> None:
        """One applier is the drain, another repeats old deliveries, and the floor follows the drain."""
        generator = self.generator()
        prefix = self.fresh()
        names = [f"{prefix}{n}" for n in range(20)]
        seqs = range(1, 81)
        rounds = [
            [self.delivery(name, seq, put=generator.random() < 0.4) for name in generator.sample(names, 8)]
            for seq in seqs
        ]
        late = [[one for batch in rounds[max(0, n - 6) : n] for one in batch] for n in range(1, len(rounds))]
        for batch in late:
            generator.shuffle(batch)
        if self.shared:
            self._race(rounds, late, generator)
        else:
            with self.sweepable() as sink:
                for n, batch in enumerate(rounds):
                    self.apply(sink, batch)
                    self.sweep(sink, n)
                    self.apply(sink, late[max(0, n - 1)])
        self.check([one for batch in rounds for one in batch])

    def _race(
        self, rounds: Sequence[Sequence[Delivery]], late: Sequence[Sequence[Delivery]], generator: random.Random
    ) -> None:
        drain, zombie = Applier(self.make_sink, rounds), Applier(self.make_sink, late)
        zombie.follow(drain)
        with self.sweepable() as sink, drain, zombie:
            while not (drain.is_finished and zombie.is_finished):
                self.sweep(sink, drain.done)  # round n has the sequence n + 1: what is not acknowledged stays above
                if generator.random() < 0.1 and not drain.is_finished:  # then it may end, however slowly it starts
                    zombie.kill()
                    zombie.start()
            self.sweep(sink, drain.done)

    def test_a_sweep_that_is_killed_anywhere_is_finished_by_the_next_one(self) -> None:
        if not self.shared:
            pytest.skip("this sink lives in one process")
        generator = self.generator()
        prefix = self.fresh()
        gone = [self.delivery(f"{prefix}{n}", 10, put=False, collection=n % 2) for n in range(1200)]
        kept = [self.delivery(f"{prefix}kept{n}", 10 + n) for n in range(20)]
        with self.sweepable() as sink:
            for start in range(0, len(gone), 400):
                self.apply(sink, gone[start : start + 400])
            self.apply(sink, kept)
        for _ in range(6):
            self._sweep_and_kill(25, generator.uniform(0.0, 0.15))
        with self.sweepable() as sink:
            self.sweep(sink, 25)
            assert self.sweep(sink, 25) == 0
            for start in range(0, len(gone), 400):
                late = [self.delivery(f"{prefix}{n}", 24, collection=n % 2) for n in range(start, start + 400)]
                assert self.apply(sink, late).stale == 400
        self.check([*gone, *kept])

    def _sweep_and_kill(self, floor: int, delay: float) -> None:
        def run() -> None:
            sink = self.make_sink()
            assert isinstance(sink, SweepableSink)
            self.sweep(sink, floor)

        process = multiprocessing.get_context("fork").Process(target=end_after, args=(run,))
        process.start()
        time.sleep(delay)  # not a wait: it spreads the kills over the sweep
        kill(process)

    def visible_of(self, *names: str) -> set[bytes]:
        """Return the ids of those names whose records a reader finds."""
        wanted = {self.record_id(name.encode()) for name in names}
        return {record for _, record in self.read_all() if record in wanted}
