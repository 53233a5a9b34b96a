"""Metrics: gauges of the store and counters of this process, and their OpenMetrics text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from export_queue.core.queue import LOSSES
from export_queue.core.store import Database, queries
from export_queue.core.transactions import Counters

DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Sample:
    """One value."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""
    """Suffix that the format adds to the metric's name: ``_total``, ``_bucket``, ``_count``, ``_sum``."""


@dataclass(frozen=True, slots=True)
class Metric:
    """All samples of one name."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    samples: tuple[Sample, ...]


def read_metrics(database: Database, *, counters: Counters | None = None) -> list[Metric]:
    """Read the store's gauges; this counts the entries of all queues.

    :param counters: counters of this process to add.
    """
    with database.read() as work:
        now = work.now()
        horizon_ms, marked_ms = queries.monitoring.horizon_and_mark(work)
        holders = queries.monitoring.holders(work)
        decided = queries.outcomes.count_decided(work, since_ms=now - DAY_MS)
        entries = queries.monitoring.count_entries(work)
        dead = queries.monitoring.count_dead_letters(work)
        locks = queries.monitoring.count_locks(work, now=now)
        missing = queries.monitoring.missing_loads(work)
        lost = queries.monitoring.count_losses(work, LOSSES)
        drains = queries.monitoring.last_drains(work)
        comparisons = queries.monitoring.last_comparisons(work)
    running = [holder for holder in holders if holder.kind != "invalid"]
    active = Counter({"short": 0, "long": 0})
    active.update(holder.kind for holder in running)

    def seconds_since(milliseconds: int) -> float:
        return max(0, now - milliseconds) / 1000

    metrics = [
        _gauge("active_transactions", "Transactions in progress.", *_by("kind", active)),
        _gauge(
            "oldest_active_seconds",
            "Age of the oldest transaction in progress.",
            Sample(max((seconds_since(holder.started_ms) for holder in running), default=0)),
        ),
        _gauge(
            "invalid_transactions",
            "Transactions that ended without a commit and await pruning.",
            Sample(len(holders) - len(running)),
        ),
        _gauge(
            "horizon_seconds",
            "Age of the horizon: old versions are kept for so long.",
            Sample(seconds_since(horizon_ms)),
        ),
        _gauge(
            "maintenance_seconds",
            "Time since clean-up last ran; the age of the store if it never did.",
            Sample(seconds_since(marked_ms)),
        ),
        _gauge(
            "horizon_holder_seconds",
            "Age of the transaction that keeps the horizon from rising.",
            *(Sample(seconds_since(holder.started_ms), {"kind": holder.kind}) for holder in holders[:1]),
        ),
        _gauge(
            "decided_last_day",
            "Commits decided in the last 24 hours. A refused one had not arrived when its outcome was requested.",
            *_by("status", {status: decided.get(status, 0) for status in ("committed", "refused")}),
        ),
        _gauge("queue_entries", "Committed entries that are pending.", *_by("queue", {q: n for q, n, _ in entries})),
        _gauge(
            "queue_oldest_seconds",
            "Age of the oldest pending entry.",
            *_by("queue", {q: 0 if seq is None else seconds_since(seq // 1_000_000) for q, _, seq in entries}),
        ),
        _gauge("dead_letters", "Entries that were set aside.", *_by("queue", dead)),
        _gauge(
            "last_drain_seconds",
            "Time since a drain last ended; the age of the queue or subscription if none ever did.",
            *_by("queue", {name: seconds_since(ended_ms) for name, (ended_ms, _) in drains.items()}),
        ),
        _gauge(
            "last_drain_failed",
            "Whether the last drain stopped before its end.",
            *_by("queue", {name: int(bool(report and report["problem"])) for name, (_, report) in drains.items()}),
        ),
        _gauge(
            "last_comparison_seconds",
            "Time since the sink was last compared; the age of the queue or subscription if it never was.",
            *_by("queue", {name: seconds_since(ended_ms) for name, (ended_ms, _) in comparisons.items()}),
        ),
        _gauge(
            "last_comparison_differences",
            "Records that differed in the last comparison; 0 if there was none.",
            *_by("queue", {name: report["differences"] if report else 0 for name, (_, report) in comparisons.items()}),
        ),
        _gauge("locks", "Locks whose lease has not ended.", *_by("queue", locks)),
        _gauge(
            "first_load_missing",
            "Whether a subscription lacks what was committed before it.",
            *_by("queue", missing),
        ),
        _gauge("sink_losses", "Losses that were accepted and not made good.", *_by("queue", lost)),
    ]
    return metrics if counters is None else metrics + count_metrics(counters)


def count_metrics(counters: Counters) -> list[Metric]:
    """Convert the counters of this process to metrics."""
    counts = counters.read()
    seconds = []
    for kind, histogram in sorted(counts.seconds.items()):
        for bound, number in zip((*histogram.bounds, float("inf")), histogram.cumulative(), strict=True):
            label = "+Inf" if bound == float("inf") else repr(bound)
            seconds.append(Sample(number, {"kind": kind, "le": label}, "_bucket"))
        seconds.append(Sample(histogram.count, {"kind": kind}, "_count"))
        seconds.append(Sample(histogram.sum, {"kind": kind}, "_sum"))
    return [
        _counter("commits", "Transactions that committed.", ("kind",), counts.commits),
        _counter("refusals", "Commits that were refused.", ("kind", "error"), counts.refusals),
        _counter("aborts", "Transactions that were aborted.", ("kind",), counts.aborts),
        _counter("time_outs", "Transactions that ran past their deadline.", ("kind",), counts.time_outs),
        Metric("export_queue_commit_seconds", "histogram", "Time that commits took.", tuple(seconds)),
    ]


def _gauge(name: str, text: str, *samples: Sample) -> Metric:
    return Metric(f"export_queue_{name}", "gauge", text, samples)


def _by(label: str, values: Mapping[str, float]) -> list[Sample]:
    return [Sample(value, {label: key}) for key, value in values.items()]


def _counter(name: str, text: str, labels: tuple[str, ...], counts: Mapping[Any, int]) -> Metric:
    samples = tuple(
        Sample(number, dict(zip(labels, key, strict=True)), "_total") for key, number in sorted(counts.items())
    )
    return Metric(f"export_queue_{name}", "counter", text, samples)


def render(metrics: Iterable[Metric]) -> str:
    """Write metrics as OpenMetrics 1.0 text."""
    lines = []
    for metric in metrics:
        lines += [f"# TYPE {metric.name} {metric.kind}", f"# HELP {metric.name} {_escape(metric.help)}"]
        lines += [_line(metric.name, sample) for sample in metric.samples]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _line(name: str, sample: Sample) -> str:
    labels = ",".join(f'{label}="{_escape(value)}"' for label, value in sample.labels.items())
    number = int(sample.value) if float(sample.value).is_integer() else sample.value
    return f"{name}{sample.suffix}{'{' + labels + '}' if labels else ''} {number}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
