"""Pages quote the marked part of each example DAG."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.support.quotes import EXAMPLES, ROOT, quotes_of

PAGE = (ROOT / "docs" / "examples.md").read_text("utf-8")
QUOTES = {name: part for example in EXAMPLES for name, part in quotes_of(example).items()}
QUOTED_ELSEWHERE = {"docs/sinks/composite.md": "two_copies_as_one"}
"""Pages that quote a part after its imports; the page of the examples quotes all of them."""


def blocks_of(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def program(text: str) -> tuple[str, list[str]]:
    """Return a text and its comments without its line breaks, which differ after ``ruff format`` of a page."""
    return ast.unparse(ast.parse(text)), re.findall(r"  # .*", text)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_the_page_of_examples_quotes_each_marked_part(example: Path) -> None:
    quotes = quotes_of(example)
    assert quotes, "mark the part that the page quotes: # [START name] and # [END name]"
    assert all(name == example.stem or name.startswith(f"{example.stem}_") for name in quotes)
    (section,) = re.findall(rf"^### {example.stem}\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert list(map(program, blocks_of(section))) == list(map(program, quotes.values()))


def test_the_page_of_examples_has_no_other_block() -> None:
    assert len(blocks_of(PAGE)) == len(QUOTES)


@pytest.mark.parametrize(("page", "name"), QUOTED_ELSEWHERE.items())
def test_other_pages_quote_a_marked_part(page: str, name: str) -> None:
    bodies = [re.sub(r"\A(from .*\n|\n)+", "", block) for block in blocks_of((ROOT / page).read_text("utf-8"))]
    assert program(QUOTES[name]) in map(program, bodies)
