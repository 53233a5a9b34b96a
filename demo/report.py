"""A page about a run of the demo: the stores, what the naive way damaged, and when what was killed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import orjson

_KILLED = re.compile(r"(\d+) writers killed")
WIDTH = 600.0
"""Width of the timeline, in pixels."""


@dataclass(slots=True)
class Step:
    """A step of the run. Times are seconds since the run began."""

    name: str
    begin: float
    end: float
    marks: list[tuple[float, str]] = field(default_factory=list)
    """When something was killed, and what."""
    killed: int = 0
    """How many of its writers have been killed."""


def steps_of(lines: Iterable[Mapping[str, Any]]) -> list[Step]:
    """Return the steps of a run, from what its tasks have noted."""
    steps: dict[str, Step] = {}
    begun: float | None = None
    for line in lines:
        begun = line["at"] if begun is None else begun
        at = line["at"] - begun
        step = steps.setdefault(line["step"], Step(line["step"], at, at))
        step.end = at
        if line["note"] == "failed":
            step.marks.append((at, "the drain was killed, and Airflow retried it"))
        elif (found := _KILLED.fullmatch(line["note"])) and int(found[1]) > step.killed:
            step.killed = int(found[1])
            step.marks.append((at, f"writer number {step.killed} of this step was killed"))
    return list(steps.values())


def write_report(folder: Path) -> Path:
    """Write the page of a run, which needs no server and no network.

    :param folder: the files of the run.
    :returns: the file.
    """
    verdicts = json.loads((folder / "verdicts.json").read_bytes())
    steps = steps_of(map(orjson.loads, (folder / "progress").read_bytes().splitlines()))
    seconds = max((step.end for step in steps), default=0.0) or 1.0
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True).from_string(
        Path(__file__).with_name("report.html").read_text("utf-8")
    )
    page = folder / "report.html"
    text = template.render(verdicts=verdicts, steps=steps, seconds=seconds, width=WIDTH, scale=WIDTH / seconds)
    page.write_text(text, "utf-8")
    return page
