"""The memory sink against the conformance suite, and what only it can do."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from export_queue import MemorySink, Operations
from export_queue.core.testing.conformance.histories import Delivery, goes_back
from export_queue.testing import SinkConformance


class TestMemorySink(SinkConformance):
    shared = False

    @pytest.fixture(autouse=True)
    def _target(self) -> None:
        self.name = self.fresh()

    def make_sink(self) -> MemorySink:
        return MemorySink(self.name)

    def read_all(self) -> Mapping[tuple[str, bytes], bytes]:
        return MemorySink(self.name).records()


def one(document: bytes | None, seq: int = 5) -> Operations:
    return Operations(["orders"], [b"77"], [document], [seq], [0])


def test_memory_sinks_of_one_name_share_their_records():
    MemorySink("shared records").apply(one(b"x"))
    assert MemorySink("shared records").records() == {("orders", b"77"): b"x"}
    assert MemorySink("other records").records() == {}


def test_memory_sinks_without_a_name_share_nothing():
    MemorySink().apply(one(b"x"))
    assert MemorySink().records() == {}


def test_a_delete_leaves_its_rank():
    sink = MemorySink()
    sink.apply(one(b"x", 5))
    sink.apply(one(None, 6))
    assert sink.records() == {}
    assert sink.ranks() == {("orders", b"77"): 12}


def test_a_cleared_memory_sink_forgets_ranks_and_control_records():
    sink = MemorySink()
    sink.admit(queue_id="q", store_id="first", fence=5)
    sink.apply(one(b"x"))
    sink.clear()
    sink.admit(queue_id="q", store_id="second", fence=1)
    assert sink.apply(one(b"y", 1)).written == 1


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [
        ([None, b"1", b"1", b"3", None, b"5"], False),
        ([b"3", b"1"], True),
        ([b"3", None, b"5"], False),
        ([b"3", None, b"3"], True),
        ([b"5", None], True),
        ([None, None, b"5", b"5"], False),
    ],
)
def test_the_suite_knows_when_a_record_went_back(seen: list[bytes | None], wrong: bool):
    history = [Delivery("c", b"r", n, None if n == 4 else str(n).encode()) for n in (1, 3, 4, 5)]
    assert (goes_back(seen, history) is not None) == wrong
