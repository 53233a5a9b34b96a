"""Writing records again: the tests for sinks that have the method of ``RepairableSink``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from export_queue.core.sinks import ApplyResult, RepairableSink
from export_queue.core.testing.conformance.histories import Delivery, operations_of
from export_queue.core.testing.conformance.target import SinkTarget


class SinkRepairs(SinkTarget):
    """Tests of ``repair``, skipped for a sink without it."""

    @contextmanager
    def repairable(self) -> Iterator[Any]:
        """Open the sink, if its records can be repaired."""
        with self.opened() as sink:
            if not isinstance(sink, RepairableSink):
                pytest.skip("this sink has no method repair: what verify finds cannot be repaired")
            yield sink

    def repair(self, sink: Any, deliveries: Sequence[Delivery]) -> ApplyResult:
        """Repair records, and check that the counts add up."""
        result: ApplyResult = sink.repair(operations_of(deliveries))
        assert result.written + result.stale + len(result.rejected) == len(deliveries), "I13: counts must add up"
        return result

    def other(self, delivery: Delivery) -> Delivery:
        """Return the delivery with another document."""
        return replace(delivery, document=self.document(b"another", delivery.seq))

    def test_a_repair_writes_a_record_of_an_equal_rank_again(self) -> None:
        name = self.fresh()
        batch = [self.delivery(f"{name}{n}", 5, collection=n % 2) for n in range(4)]
        gone = [self.delivery(f"{name}gone{n}", 5, put=False) for n in range(2)]
        mended = [self.other(one) for one in batch]
        with self.repairable() as sink:
            self.apply(sink, [*batch, *gone])
            assert self.apply(sink, mended).stale == 4
            self.check([*batch, *gone])
            assert self.repair(sink, [*mended, *gone]).rejected == ()
            self.check([*mended, *gone])
            assert self.apply(sink, [*batch, *gone]).stale == 6, "the ranks are those of before"
            newer = [self.delivery(f"{name}{n}", 6, put=n > 1, collection=n % 2) for n in range(4)]
            assert self.apply(sink, newer).written == 4
            self.check(newer)

    def test_a_repair_writes_what_is_missing_or_older(self) -> None:
        name = self.fresh()
        older = [
            self.delivery(f"{name}old", 3),
            self.delivery(f"{name}put", 3),
            self.delivery(f"{name}back", 3, put=False),
        ]
        wanted = [
            self.delivery(f"{name}old", 4),
            self.delivery(f"{name}put", 3 + 1, put=False),
            self.delivery(f"{name}back", 4),
            self.delivery(f"{name}new", 4),
        ]
        with self.repairable() as sink:
            self.apply(sink, older)
            assert self.repair(sink, wanted) == ApplyResult(4, 0)
            self.check(wanted)

    def test_a_repair_overwrites_nothing_that_is_newer(self) -> None:
        name = self.fresh()
        newer = [
            self.delivery(f"{name}put", 6),
            self.delivery(f"{name}gone", 6, put=False),
            self.delivery(f"{name}same", 5),
        ]
        late = [self.delivery(f"{name}put", 5), self.delivery(f"{name}gone", 5)]
        late.append(self.delivery(f"{name}same", 5, put=False))  # a put is above a delete of its sequence
        with self.repairable() as sink:
            self.apply(sink, newer)
            assert self.repair(sink, late) == ApplyResult(0, 3)
            self.check([*newer, *late])

    def test_a_repair_writes_below_the_floor(self) -> None:
        name = self.fresh()
        kept = self.delivery(f"{name}kept", 7)
        lost = [self.delivery(f"{name}lost{n}", 5, collection=n % 2) for n in range(3)]
        with self.repairable() as sink:
            if not hasattr(sink, "sweep"):
                pytest.skip("this sink has no method sweep: it has no floor")
            self.apply(sink, [kept])
            sink.sweep(store_id="conformance", floor=6)
            assert self.apply(sink, lost).stale == 3
            assert self.repair(sink, lost).written == 3
            self.check([kept, *lost])
