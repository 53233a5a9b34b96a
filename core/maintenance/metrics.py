"""Figures to watch: gauges of the store, counters of this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from export_queue.core.maintenance.openmetrics import Metric, Sample
from export_queue.core.queue import LOSSES
from export_queue.core.store import Database, queries
from export_queue.core.transactions import Counters

DAY_MS = 24 * 3600 * 1000


def read_metrics(database: Database, *, counters: Counters | None = None) -> list[Metric]:
    """Read the store's gauges, at the cost of counting its queues' entries.

    :param counters: those of this process, which are added.
    """
    with database.read() as work:
        now = work.now()
        horizon, marked_ms = queries.monitoring.horizon_and_mark(work)
        holders = queries.monitoring.holders(work)
        decided = queries.outcomes.count_decided(work, since_ms=now - DAY_MS)
        entries = queries.monitoring.count_entries(work)
        dead = queries.monitoring.count_dead_letters(work)
        locks = queries.monitoring.count_locks(work, now=now)
        missing = queries.monitoring.missing_loads(work)
        lost = queries.monitoring.count_losses(work, LOSSES)
    running = [holder for holder in holders if holder.kind != "invalid"]
    active = Counter({"short": 0, "long": 0})
    active.update(holder.kind for holder in running)

    def seconds_since(milliseconds: int) -> float:
        return max(0, now - milliseconds) / 1000

    metrics = [
        _gauges("active_transactions", "Transactions in progress.", "kind", active),
        _gauge(
            "oldest_active_seconds",
            "Age of the oldest transaction in progress.",
            max((seconds_since(holder.started_ms) for holder in running), default=0),
        ),
        _gauge(
            "invalid_transactions",
            "Transactions that ended without a commit and await pruning.",
            len(holders) - len(running),
        ),
        Metric(
            "export_queue_horizon_seconds",
            "gauge",
            "Age of the horizon: old versions are kept for so long.",
            () if horizon == 0 else (Sample(seconds_since(horizon // 1_000_000)),),
        ),
        Metric(
            "export_queue_maintenance_seconds",
            "gauge",
            "Time since clean-up last ran.",
            () if marked_ms is None else (Sample(seconds_since(marked_ms)),),
        ),
        Metric(
            "export_queue_horizon_holder_seconds",
            "gauge",
            "Age of the transaction that keeps the horizon from rising.",
            tuple(
                Sample(
                    seconds_since(holder.started_ms),
                    {"id": str(holder.id), "kind": holder.kind, "client": holder.client or ""},
                )
                for holder in holders[:1]
            ),
        ),
        _gauges(
            "decided_last_day",
            "Commits whose outcome was decided in the last 24 hours; refused ones had not arrived when asked for.",
            "status",
            {status: decided.get(status, 0) for status in ("committed", "refused")},
        ),
        _gauges("queue_entries", "Committed entries that wait.", "queue", {name: n for name, n, _ in entries}),
        _gauges(
            "queue_oldest_seconds",
            "Age of the oldest entry that waits.",
            "queue",
            {name: 0 if seq is None else seconds_since(seq // 1_000_000) for name, _, seq in entries},
        ),
        _gauges("dead_letters", "Entries that were set aside.", "queue", dead),
        _gauges("locks", "Locks whose lease runs.", "queue", locks),
        _gauges("first_load_missing", "Whether a subscription lacks what was committed before it.", "queue", missing),
        _gauges("sink_losses", "Losses that were accepted and that nothing has made good.", "queue", lost),
    ]
    return metrics if counters is None else metrics + count_metrics(counters)


def count_metrics(counters: Counters) -> list[Metric]:
    """Turn this process's counters into metrics."""
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
        _counter("aborts", "Transactions that were given up.", ("kind",), counts.aborts),
        _counter("time_outs", "Transactions that ran past their deadline.", ("kind",), counts.time_outs),
        Metric("export_queue_commit_seconds", "histogram", "Time that commits took.", tuple(seconds)),
    ]


def _gauge(name: str, text: str, value: float) -> Metric:
    return Metric(f"export_queue_{name}", "gauge", text, (Sample(value),))


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    samples = tuple(Sample(value, {label: key}) for key, value in values.items())
    return Metric(f"export_queue_{name}", "gauge", text, samples)


def _counter(name: str, text: str, labels: tuple[str, ...], counts: Mapping[Any, int]) -> Metric:
    samples = tuple(
        Sample(number, dict(zip(labels, key, strict=True)), "_total") for key, number in sorted(counts.items())
    )
    return Metric(f"export_queue_{name}", "counter", text, samples)
