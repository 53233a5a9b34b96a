"""The code on the page about transactions runs as it stands there, and its figures are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from export_queue.core.tables.table import MAX_KEY_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "transactions.md").read_text()


def test_every_code_block_of_the_page_about_transactions_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == PAGE.count("```python") > 5
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "docs/transactions.md", "exec"), names)
    backlog = names["store"].backlog("orders")
    assert sum(unit.entries for unit in backlog) == 1002
    names["store"].close()
    names["engine"].dispose()


def test_the_page_about_transactions_has_the_right_figures():
    assert f"up to {MAX_KEY_BYTES} bytes" in PAGE
