"""Metrics as values, and the text that Prometheus and its kin read; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""
    """Ending that the format adds to the metric's name: ``_total``, ``_bucket``, ``_count``, ``_sum``."""


@dataclass(frozen=True, slots=True)
class Metric:
    """All figures of one name."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    samples: tuple[Sample, ...]


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
