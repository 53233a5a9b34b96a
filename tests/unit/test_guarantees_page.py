"""The page about guarantees names every invariant, and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from export_queue.core.maintenance.cleanup import DAY
from export_queue.core.transactions import MAX_SHORT_SECONDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
WORDS = " ".join(PAGE.split())
SECTIONS = {
    title.split()[0]: text
    for title, text in re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
}
INVARIANTS = [f"I{number}" for number in range(1, 18)]
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


@cache
def functions_in(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)}


def test_every_invariant_has_its_place_in_order() -> None:
    assert [name for name in SECTIONS if re.fullmatch(r"I\d+", name)] == INVARIANTS


@pytest.mark.parametrize("name", [*INVARIANTS, "Notifications"])
def test_what_stands_under_an_invariant_exists(name: str) -> None:
    section = SECTIONS[name]
    tests = TEST.findall(section)
    assert len(tests) == section.count("\n- ") > 2
    for path, function in tests:
        module = ROOT / path if path.startswith("core/") else ROOT / "tests" / path
        assert module.is_file(), path
        assert function in functions_in(module), f"{path}::{function}"


def test_the_page_about_guarantees_has_the_right_figures() -> None:
    assert (DAY, MAX_SHORT_SECONDS) == (24 * 3600, 3600)
    for text in ("after 24 hours", "after 30 days", "for more than an hour"):
        assert text in WORDS
