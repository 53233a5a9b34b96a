"""Metrics of tasks, through Airflow's own metrics. Nothing is sent unless ``[metrics]`` of the configuration is on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import conf
from airflow.sdk.observability import stats

if TYPE_CHECKING:
    from export_queue.core.client import Store
    from export_queue.core.drain import DrainReport

_PREFIX = "export_queue"
_NO_TAG = re.compile(r"[^A-Za-z0-9_./@-]")
"""Characters that mean something in the lines of statsd."""
_LONGEST_TAG = 200
_SWITCHES = ("statsd_on", "statsd_datadog_enabled", "otel_on")
"""Options of ``[metrics]`` that switch metrics on."""


def count(work: str, numbers: Mapping[str, int], **tags: str) -> None:
    """Count what a task has done.

    :param work: what it did: ``mirror``, ``load``.
    :param numbers: by the name of what is counted.
    :param tags: names of queues and sinks, of which there are few.
    """
    for name, number in numbers.items():
        stats.incr(f"{_PREFIX}.{work}.{name}", number, tags=_cleaned(tags))


def count_drain(report: DrainReport) -> None:
    """Count what a drain has delivered, and tell how long it took and how old the oldest entry is that is left."""
    tags = _cleaned({"queue": report.queue, "sink": report.sink})
    count("drain", {"acknowledged": report.acknowledged, "dead": report.dead}, **tags)
    stats.timing(f"{_PREFIX}.drain.duration", timedelta(seconds=report.seconds), tags=tags)
    if report.waiting is not None:
        stats.gauge(f"{_PREFIX}.drain.left", report.waiting, tags=tags)
        stats.gauge(f"{_PREFIX}.drain.oldest_left_seconds", report.oldest_left_seconds, tags=tags)


def tell_differences(queue_id: str, differences: int) -> None:
    """Tell how many records a comparison has found that differ."""
    stats.gauge(f"{_PREFIX}.verify.differences", differences, tags=_cleaned({"queue": queue_id}))


def tell_store(store: Store) -> None:
    """Tell the gauges of a store, those of ``export-queue metrics``, if Airflow's metrics are on.

    Reading them counts all entries, so nothing is read for nobody.
    """
    from export_queue.core.maintenance import read_metrics

    if not any(conf.getboolean("metrics", name, fallback=False) for name in _SWITCHES):
        return
    for metric in read_metrics(store.database):
        for sample in metric.samples:
            name = metric.name.removeprefix(f"{_PREFIX}_")
            stats.gauge(f"{_PREFIX}.{name}", sample.value, tags=_cleaned(sample.labels))


def _cleaned(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: _NO_TAG.sub("_", value)[:_LONGEST_TAG] for name, value in tags.items()}
