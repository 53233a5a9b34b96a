"""Handing operations to a sink: batch sizes, repetition, isolation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export_queue import (
    ApplyResult,
    Capabilities,
    DrainError,
    LeaseLost,
    Operations,
    Rejection,
    SinkRefused,
    SinkUnavailable,
)
from export_queue.core.drain import DRAIN_RETRY
from export_queue.core.drain.exporters import Failure
from export_queue.core.drain.sending import Sender

IMPATIENT = replace(DRAIN_RETRY, attempts=3, sleep=lambda seconds: None)


class ScriptedSink:
    """Answers each batch by a function of its ids."""

    def __init__(self, answer: Callable[[list[bytes]], ApplyResult], *, rows: int = 100) -> None:
        self.capabilities = Capabilities(batch_rows=rows, batch_bytes=1 << 20)
        self.batches: list[list[bytes]] = []
        self._answer = answer

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None: ...

    def apply(self, operations: Operations) -> ApplyResult:
        self.batches.append(list(operations.ids))
        return self._answer(list(operations.ids))

    def close(self) -> None: ...


def numbered(count: int) -> Operations:
    ids = [b"%d" % i for i in range(count)]
    return Operations(["c"] * count, ids, [b""] * count, [1] * count, range(count))


def sender(sink: ScriptedSink, check: Callable[[], None] = lambda: None) -> Sender:
    return Sender(sink, IMPATIENT, check)


def collect() -> tuple[list[tuple[int, Failure]], Callable[[int, Failure], None]]:
    told: list[tuple[int, Failure]] = []
    return told, lambda position, failure: told.append((position, failure))


def all_written(ids: list[bytes]) -> ApplyResult:
    return ApplyResult(len(ids), 0)


def test_operations_go_out_in_batches_of_the_size_that_the_sink_wants():
    sink = ScriptedSink(all_written, rows=4)
    assert sender(sink).send(numbered(10), on_rejected=lambda *_: None).written == 10
    assert [len(batch) for batch in sink.batches] == [4, 4, 2]


def test_batches_are_bounded_in_bytes_and_what_is_larger_goes_alone():
    sink = ScriptedSink(all_written)
    sink.capabilities = Capabilities(batch_rows=100, batch_bytes=100)
    sizes = [39, 39, 39, 500, 1, 1]
    ids = [b"%d" % i for i in range(len(sizes))]
    operations = Operations(["c"] * 6, ids, [b"x" * size for size in sizes], [1] * 6, range(6))
    assert sender(sink).send(operations, on_rejected=lambda *_: None).written == 6
    assert sink.batches == [[b"0", b"1"], [b"2"], [b"3"], [b"4", b"5"]]


def test_what_a_sink_rejects_is_offered_once_more_without_the_others():
    def answer(ids: list[bytes]) -> ApplyResult:
        if len(ids) == 5:
            return ApplyResult(3, 0, (Rejection(1, "crowded"), Rejection(3, "bad")))
        return ApplyResult(1, 0, (Rejection(1, "still bad"),))

    sink = ScriptedSink(answer)
    told, on_rejected = collect()
    sent = sender(sink).send(numbered(5), on_rejected=on_rejected)
    assert sink.batches[1:] == [[b"1", b"3"]]
    assert (sent.written, sent.rejected) == (4, [(3, Failure("still bad", "Rejection"))])
    assert told == sent.rejected


def test_a_batch_that_a_sink_raises_at_is_halved_until_the_culprits_stand_alone():
    def answer(ids: list[bytes]) -> ApplyResult:
        if b"6" in ids or b"7" in ids:
            raise ValueError(f"cannot digest {len(ids)}")
        return all_written(ids)

    sink = ScriptedSink(answer)
    sent = sender(sink).send(numbered(10), on_rejected=lambda *_: None)
    assert sent.written == 8
    assert sent.rejected == [
        (6, Failure("cannot digest 1", "ValueError")),
        (7, Failure("cannot digest 1", "ValueError")),
    ]


def test_transient_errors_are_waited_out_and_never_rejections():
    failures = [SinkUnavailable("busy"), ConnectionResetError("gone")]

    def answer(ids: list[bytes]) -> ApplyResult:
        if failures:
            raise failures.pop()
        return all_written(ids)

    sent = sender(ScriptedSink(answer)).send(numbered(3), on_rejected=lambda *_: None)
    assert (sent.written, sent.rejected) == (3, [])


@pytest.mark.parametrize("error", [SinkUnavailable("down"), ConnectionRefusedError("down")])
def test_a_sink_that_stays_away_is_an_error_and_not_a_rejection(error):
    def answer(ids: list[bytes]) -> ApplyResult:
        raise error

    sink = ScriptedSink(answer)
    with pytest.raises(type(error)):
        sender(sink).send(numbered(3), on_rejected=lambda *_: None)
    assert len(sink.batches) == IMPATIENT.attempts


def test_a_sink_that_takes_no_writes_at_all_is_not_tried_again():
    def answer(ids: list[bytes]) -> ApplyResult:
        raise SinkRefused("read only")

    sink = ScriptedSink(answer)
    with pytest.raises(SinkRefused):
        sender(sink).send(numbered(3), on_rejected=lambda *_: None)
    assert len(sink.batches) == 1


def test_a_sink_whose_answer_does_not_add_up_is_an_error():
    with pytest.raises(DrainError, match="given 3 operations and counted 2"):
        sender(ScriptedSink(lambda ids: ApplyResult(1, 1))).send(numbered(3), on_rejected=lambda *_: None)


def test_the_lease_is_looked_at_before_each_batch_and_each_repetition():
    looks = []

    def check() -> None:
        looks.append(1)
        if len(looks) == 3:
            raise LeaseLost("taken over")

    sink = ScriptedSink(all_written, rows=1)
    with pytest.raises(LeaseLost):
        sender(sink, check).send(numbered(5), on_rejected=lambda *_: None)
    assert len(sink.batches) == 2


def test_a_rejection_may_stop_the_sending_at_once():
    def answer(ids: list[bytes]) -> ApplyResult:
        raise ValueError("broken")

    def stop(position: int, failure: Failure) -> None:
        raise InterruptedError

    sink = ScriptedSink(answer)
    with pytest.raises(InterruptedError):
        sender(sink).send(numbered(64), on_rejected=stop)
    assert len(sink.batches) < 10


@given(st.integers(1, 40), st.sets(st.integers(0, 39)), st.sets(st.integers(0, 39)), st.integers(1, 9))
def test_each_operation_is_written_or_rejected_once_however_it_is_refused(count, raised, refused, rows):
    def answer(ids: list[bytes]) -> ApplyResult:
        if any(int(i) in raised for i in ids):
            raise ValueError("no")
        rejections = tuple(Rejection(at, "no") for at, i in enumerate(ids) if int(i) in refused)
        return ApplyResult(len(ids) - len(rejections), 0, rejections)

    sent = sender(ScriptedSink(answer, rows=rows)).send(numbered(count), on_rejected=lambda *_: None)
    assert sorted(position for position, _ in sent.rejected) == sorted((raised | refused) & set(range(count)))
    assert sent.written == count - len(sent.rejected)
