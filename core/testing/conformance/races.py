"""Concurrent appliers, kills, and readers at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from export_queue.core.testing.conformance.histories import (
    Applier,
    Delivery,
    Record,
    apply_patiently,
    operations_of,
    shuffled_batches,
    visible,
)
from export_queue.core.testing.conformance.target import SinkTarget


class SinkRaces(SinkTarget):
    """Tests with two appliers of one history."""

    def test_two_appliers_that_are_killed_at_any_point_end_right(self) -> None:
        if not self.shared:
            pytest.skip("this sink lives in one process")
        generator = self.generator()
        deliveries = self.history(generator, records=80, seqs=25)
        orders = [shuffled_batches(deliveries, generator, 60) for _ in range(2)]
        with Applier(self.make_sink, orders[0]) as one, Applier(self.make_sink, orders[1]) as other:
            for _ in range(10):
                applier = generator.choice([one, other])
                applier.kill_after(generator.randrange(3), generator.uniform(0, 0.01))
                applier.start()
            one.finish()
            other.finish()
        self.check(deliveries)

    def test_a_reader_never_sees_a_record_go_back(self) -> None:
        generator = self.generator()
        deliveries = self.history(generator, records=12, seqs=120)
        orders = [shuffled_batches(deliveries, generator, 40) for _ in range(2)]
        looks: list[dict[Record, bytes]] = []
        with self.deliverers(orders) as is_finished:
            while not is_finished():
                looks.append(visible(self.read_all(), deliveries))
        looks.append(visible(self.read_all(), deliveries))
        self.check(deliveries)
        self.check_looks(looks, deliveries)

    @contextmanager
    def deliverers(self, orders: Sequence[Sequence[Sequence[Delivery]]]) -> Iterator[Callable[[], bool]]:
        """Deliver each order of batches in the background: in processes, or in threads if the sink is not shared."""
        if self.shared:
            with Applier(self.make_sink, orders[0]) as one, Applier(self.make_sink, orders[1]) as other:
                yield lambda: one.is_finished and other.is_finished
            return
        with self.opened() as sink:

            def deliver(batches: Sequence[Sequence[Delivery]]) -> None:
                for batch in batches:
                    apply_patiently(sink, operations_of(batch))

            threads = [threading.Thread(target=deliver, args=(batches,)) for batches in orders]
            for thread in threads:
                thread.start()
            yield lambda: not any(thread.is_alive() for thread in threads)
            for thread in threads:
                thread.join(60)

    def test_of_two_appliers_that_meet_at_a_record_the_newer_one_stays(self) -> None:
        """Both start each batch at the same moment: a sink that compares and writes in two steps loses some records."""
        prefix = self.fresh()
        groups = [[f"{prefix}{group}-{n}" for n in range(4)] for group in range(120)]
        older = [[self.delivery(name, 1) for name in group] for group in groups]
        newer = [[self.delivery(name, 2, put=bool(n % 3)) for name in group] for n, group in enumerate(groups)]
        if self.shared:
            one, other = Applier(self.make_sink, older), Applier(self.make_sink, newer)
            one.keep_step_with(other)
            with one, other:
                one.finish()
                other.finish()
        else:
            with self.deliverers([older, newer]) as is_finished:
                while not is_finished():
                    time.sleep(0.001)
        self.check([delivery for batch in (*older, *newer) for delivery in batch])
