"""Puts figures into ``docs/performance.md``.

The page holds its own prose. Between ``<!-- figures of NAME -->`` and ``<!-- end -->`` stands the table of one
benchmark, which is written anew here; a benchmark that was not run keeps the table that it has.

``python -m benchmarks --json > figures.jsonl``, then ``python -m benchmarks.page figures.jsonl``; or both at once:
``python -m benchmarks --page``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
_BLOCK = re.compile(r"(?P<begin><!-- figures of (?P<name>\w+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)

Line = Mapping[str, Any]
"""One line of ``python -m benchmarks --json``."""


def fill(page: str, lines: Iterable[Line]) -> str:
    """Write the tables of a page anew.

    :param page: its text.
    :param lines: figures; those of one benchmark one after the other.
    :raises ValueError: the page has no place for a benchmark.
    """
    tables = {name: table(list(figures)) for name, figures in groupby(lines, key=itemgetter("bench"))}
    homeless = set(tables) - {block["name"] for block in _BLOCK.finditer(page)}
    if homeless:
        raise ValueError(f"the page has no '<!-- figures of NAME -->' for {', '.join(sorted(homeless))}")

    def replace(block: re.Match[str]) -> str:
        new = tables.get(block["name"])
        return block[0] if new is None else f"{block['begin']}{new}{block['end']}"

    return _BLOCK.sub(replace, page)


def table(lines: list[Line]) -> str:
    """Write one benchmark's figures as a table, what it saw as others, and what they were measured on."""
    figures = [line for line in lines if "ratio" in line]
    seen = [line for line in lines if "became" in line]
    rows = ["| case | ratio | goal | met | baseline | repeats |", "|---|---:|---:|---|---|---:|"] if figures else []
    for line in figures:
        goal = "" if line["goal"] is None else f"{'≥' if line['better'] == 'higher' else '≤'} {line['goal']:g}"
        met = {True: "yes", False: "**no**", None: ""}[line["ok"]]
        case = line["case"] + (f" ({line['note']})" if line.get("note") else "")
        rows.append(f"| {case} | {line['ratio']:.2f} | {goal} | {met} | {line['baseline']} | {line['repeats']} |")
    for target, outcomes in groupby(seen, key=itemgetter("target")):
        rows += ["", *_outcomes(target, list(outcomes))]
    measured = f"Measured on {lines[0]['date']}: {lines[0]['machine']}."
    if lines[0]["quick"]:
        measured += " **A quick run: it shows that the benchmark works, not how fast anything is.**"
    return "\n".join([*rows, "", measured, ""])


def _outcomes(target: str, lines: list[Line]) -> list[str]:
    """Write what became of each event: a row a way, a column an event."""
    became = {(line["way"], line["event"]): line["became"] for line in lines}
    ways, events = (list(dict.fromkeys(line[part] for line in lines)) for part in ("way", "event"))
    rows = [f"| {' | '.join([target, *events])} |", f"|{'---|' * (len(events) + 1)}"]
    return rows + [f"| {' | '.join([way, *(became.get((way, event), '') for event in events)])} |" for way in ways]


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m benchmarks.page FILE; FILE is what `python -m benchmarks --json` printed")
        return 2
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    PAGE.write_text(fill(PAGE.read_text(), lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
