"""Reports: counts that reconcile, errors as data, the line of the log."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export_queue import DrainError, DrainReport, ExportQueueError, Range
from export_queue.core import errors
from export_queue.core.drain import Counts, Problem, RangeReport, total
from export_queue.core.drain.report import join_ranges

REPORT = DrainReport(
    queue="orders",
    sink="redis_default",
    drain_id="t",
    ranges=(Range(0, 101),),
    read=12345,
    acknowledged=12340,
    dead=5,
    produced=10,
    written=7,
    stale=1,
    collapsed=1,
    rejected=1,
    lowest_seq=1763000000000000001,
    highest_seq=1763000000000000002,
    waiting=0,
    seconds=4.1,
)


def test_the_line_of_the_log_reads_as_documented():
    assert REPORT.line() == (
        "orders [0, 101) → redis_default: 12 345 read = 12 340 acknowledged + 5 dead + 0 left; 4.1 s"
    )
    assert replace(REPORT, read=12347, left=2, waiting=1300, oldest_left_seconds=40).line() == (
        "orders [0, 101) → redis_default: 12 347 read = 12 340 acknowledged + 5 dead + 2 not removed; "
        "1 300 left in the queue, the oldest 40 s old; 4.1 s"
    )
    assert "+ 0 not removed; what is left in the queue was not counted; " in replace(REPORT, waiting=None).line()


def test_the_line_says_what_was_skipped_and_what_stopped_the_drain():
    skipped = DrainReport(queue="q", sink="s", drain_id="t", ranges=(Range(0, 5),), skipped=(Range(5, 10),))
    assert "q [0, 10) → s" in skipped.line()
    assert skipped.line().endswith("; skipped [5, 10), which others hold")
    stopped = DrainReport(queue="q", sink="s", drain_id="t", problem=Problem("SinkUnavailable", "down", True))
    assert stopped.line().endswith("; stopped by SinkUnavailable")


def test_a_report_survives_json_and_its_sequences_are_text():
    data = json.loads(json.dumps(REPORT.to_dict()))
    assert data["lowest_seq"] == "1763000000000000001"
    assert data["ranges"] == [[0, 101]]
    assert DrainReport.from_dict(data) == REPORT
    assert DrainReport.from_dict({**data, "of_a_newer_version": 1}) == REPORT


def test_a_range_report_survives_json_with_its_problem():
    report = RangeReport(range=Range(0, 5), read=3, left=3, problem=Problem.of(errors.SinkUnavailable("down")))
    assert RangeReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


@pytest.mark.parametrize(
    "counts",
    [Counts(read=3, acknowledged=2), Counts(produced=2, written=1), Counts(read=2, acknowledged=2, dead=1)],
)
def test_counts_that_do_not_reconcile_are_an_error(counts):
    with pytest.raises(DrainError, match="do not reconcile"):
        counts.check()


@given(st.lists(st.tuples(*[st.integers(0, 9)] * 3)))
def test_sums_of_reconciled_counts_reconcile(parts):
    counts = [Counts(read=sum(part), acknowledged=part[0], dead=part[1], left=part[2]) for part in parts]
    summed = Counts(**total(counts))
    summed.check()
    assert summed.read == sum(map(sum, parts))


def test_the_lowest_and_highest_sequence_of_all_parts_are_kept():
    parts = [Counts(lowest_seq=5, highest_seq=9), Counts(), Counts(lowest_seq=2, highest_seq=3)]
    summed = Counts(**total(parts))
    assert (summed.lowest_seq, summed.highest_seq) == (2, 9)


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, ExportQueueError) and kind is not errors.AlreadyCommitted
    ],
)
def test_an_error_of_this_library_comes_back_as_its_own_class(kind):
    problem = Problem.of(kind("what happened", hint="what to do"))
    again = problem.to_error()
    assert (type(again), again.message, again.hint) == (kind, "what happened", "what to do")
    assert problem.transient == kind.transient


def test_a_foreign_error_comes_back_with_its_name():
    again = Problem.of(ZeroDivisionError("division by zero")).to_error()
    assert type(again) is DrainError
    assert again.message == "ZeroDivisionError: division by zero"


def test_neighbouring_ranges_are_joined():
    assert join_ranges([Range(10, 15), Range(0, 5), Range(5, 10), Range(20, 25)]) == (Range(0, 15), Range(20, 25))
