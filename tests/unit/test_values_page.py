"""The tables on the page about values are those that tests run against every sink."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.values import tables

PAGE = Path(__file__).parents[2] / "docs" / "values.md"


def test_the_page_about_values_has_the_tables_that_are_tested() -> None:
    on_page = dict(re.findall(r"<!-- table of (\w+) -->\n(.*?)<!-- end -->", PAGE.read_text("utf-8"), re.DOTALL))
    wanted = {name: f"\n{table}\n" for name, table in tables().items()}
    assert on_page == wanted, "put each table between its marks:\n" + "\n".join(wanted.values())
