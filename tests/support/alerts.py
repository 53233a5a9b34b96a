"""The alert rules of the documentation, asked as Prometheus asks them: without the time for which one must hold."""

from __future__ import annotations

import re

import yaml
from tests.support.pages import DOCS


def fired_alerts(metrics: str) -> dict[str, dict[str, str]]:
    """Return the texts of each alert whose limit is passed, by its name; its command names the queue.

    :param metrics: what ``export-queue metrics`` prints.
    """
    samples: dict[str, list[tuple[str, float]]] = {}
    for name, labels, value in re.findall(r"^(export_queue_\w+)(?:\{(.*)\})? (\S+)$", metrics, re.MULTILINE):
        samples.setdefault(name, []).append((labels, float(value)))
    (group,) = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text())["groups"]
    fired = {}
    for rule in group["rules"]:
        metric, _, limit = rule["expr"].partition(" > ")
        for labels, value in samples.get(metric, []):
            if value > float(limit):
                notes = rule["annotations"]
                queue = "".join(re.findall(r'queue="(.*?)"', labels))
                fired[rule["alert"]] = {**notes, "command": notes["command"].replace("{{ $labels.queue }}", queue)}
    return fired
