"""Run benchmarks and print their figures."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.measuring import Figure, Outcome
from benchmarks.page import PAGE, fill

HARNESS = {"__main__", "clients", "machine", "measuring", "outbox", "page", "processor", "recording"}
IN_SPARK = {"spark_compaction", "spark_load", "spark_segment_reads"}
"""Halves of benchmarks, which run in Spark's environment."""


def main() -> int:
    names = sorted({module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])} - HARNESS - IN_SPARK)
    parser = argparse.ArgumentParser(prog="run bench", description="Measure against named baselines, in one run.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones; all if left out: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast")
    parser.add_argument("--json", action="store_true", help="one line of JSON a figure, nothing else")
    parser.add_argument("--page", action="store_true", help=f"write the tables of docs/{PAGE.name} anew")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(names)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    lines = []
    where = {"machine": describe_machine(), "date": f"{datetime.now(UTC):%Y-%m-%d}", "quick": arguments.quick}
    for figure in run(arguments.names or names, quick=arguments.quick, show=not arguments.json):
        line: dict[str, Any] = {**figure.to_dict(), **where}
        print(json.dumps(line) if arguments.json else table_row(figure), flush=True)
        lines.append(line)
    if arguments.page:
        PAGE.write_text(fill(PAGE.read_text(), lines))
    return 0


def run(names: Sequence[str], *, quick: bool, show: bool) -> Iterator[Figure | Outcome]:
    for name in names:
        if show:
            print(f"\n{name}")
            print(f"  {'case':68} {'ratio':>7}  {'goal':>7}      baseline")
        yield from importlib.import_module(f"benchmarks.{name}").run(quick)


def table_row(figure: Figure | Outcome) -> str:
    if isinstance(figure, Outcome):
        return f"  {figure.target}, {figure.way}, {figure.event}: {figure.became}"
    goal = "" if figure.goal is None else f"{'≥' if figure.better == 'higher' else '≤'} {figure.goal:g}"
    verdict = {True: "ok", False: "--", None: ""}[figure.ok]
    details = f"{figure.baseline}, {figure.repeats} repeats{'; ' + figure.note if figure.note else ''}"
    return f"  {figure.case:68} {figure.ratio:7.2f}  {goal:>7}  {verdict:2}  {details}"


if __name__ == "__main__":
    sys.exit(main())
