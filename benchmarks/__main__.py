"""Run benchmarks and print their figures."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from pathlib import Path

from benchmarks.measuring import Figure

HARNESS = {"__main__", "clients", "measuring", "outbox", "page"}


def main() -> int:
    names = sorted({module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])} - HARNESS)
    parser = argparse.ArgumentParser(prog="run bench", description="Measure against named baselines, in one run.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones; all if left out: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast")
    parser.add_argument("--json", action="store_true", help="one line of JSON a figure, nothing else")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(names)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    for name in arguments.names or names:
        if not arguments.json:
            print(f"\n{name}")
            print(f"  {'case':52} {'ratio':>7}  {'goal':>7}      baseline")
        for figure in importlib.import_module(f"benchmarks.{name}").run(arguments.quick):
            print(json.dumps(figure.to_dict()) if arguments.json else table_row(figure), flush=True)
    return 0


def table_row(figure: Figure) -> str:
    goal = "" if figure.goal is None else f"{'≥' if figure.better == 'higher' else '≤'} {figure.goal:g}"
    verdict = {True: "ok", False: "--", None: ""}[figure.ok]
    details = f"{figure.baseline}, {figure.repeats} repeats{'; ' + figure.note if figure.note else ''}"
    return f"  {figure.case:52} {figure.ratio:7.2f}  {goal:>7}  {verdict:2}  {details}"


if __name__ == "__main__":
    sys.exit(main())
