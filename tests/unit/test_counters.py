"""Counters of a process's transactions, and metrics as text."""

from __future__ import annotations

import threading

from export_queue import ConflictError
from export_queue.core.maintenance import Metric, Sample, render
from export_queue.core.maintenance.metrics import count_metrics
from export_queue.core.transactions import Counters


def test_ends_of_transactions_are_counted_by_kind() -> None:
    counters = Counters()
    counters.committed("short", 0.002)
    counters.committed("short", 0.2)
    counters.committed("long", 99)
    counters.refused("short", ConflictError)
    counters.aborted("long")
    counters.timed_out("long")
    counts = counters.read()
    assert counts.commits == {("short",): 2, ("long",): 1}
    assert counts.refusals == {("short", "ConflictError"): 1}
    assert counts.aborts == counts.time_outs == {("long",): 1}
    assert (counts.seconds["short"].count, counts.seconds["short"].sum) == (2, 0.202)
    assert counts.seconds["long"].counts[-1] == 1


def test_a_time_on_a_bound_is_at_most_that_bound() -> None:
    counters = Counters()
    counters.committed("short", 0.001)
    assert counters.read().seconds["short"].cumulative()[0] == 1


def test_what_was_read_does_not_change() -> None:
    counters = Counters()
    counters.aborted("short")
    counts = counters.read()
    counters.aborted("short")
    assert counts.aborts == {("short",): 1}


def test_threads_lose_nothing() -> None:
    counters = Counters()

    def work() -> None:
        for _ in range(2000):
            counters.committed("short", 0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = counters.read()
    assert (counts.commits["short",], counts.seconds["short"].count) == (8000, 8000)


def test_counters_are_rendered_with_cumulative_classes() -> None:
    counters = Counters()
    counters.committed("short", 0.002)
    counters.committed("short", 20)
    counters.refused("short", ConflictError)
    text = render(count_metrics(counters))
    assert 'export_queue_commits_total{kind="short"} 2\n' in text
    assert 'export_queue_refusals_total{kind="short",error="ConflictError"} 1\n' in text
    assert 'export_queue_commit_seconds_bucket{kind="short",le="0.001"} 0\n' in text
    assert 'export_queue_commit_seconds_bucket{kind="short",le="0.0025"} 1\n' in text
    assert 'export_queue_commit_seconds_bucket{kind="short",le="+Inf"} 2\n' in text
    assert 'export_queue_commit_seconds_count{kind="short"} 2\n' in text
    assert text.endswith("# EOF\n")


def test_text_in_labels_is_escaped() -> None:
    metric = Metric("m", "gauge", "a\nb", (Sample(1.5, {"client": 'a"b\\c\nd'}),))
    assert render([metric]) == '# TYPE m gauge\n# HELP m a\\nb\nm{client="a\\"b\\\\c\\nd"} 1.5\n# EOF\n'
