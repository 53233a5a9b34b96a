"""The code on the page about drains runs as it stands there."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from export_queue.core.drain import DrainReport
from export_queue.core.testing import assert_converges

PAGE = Path(__file__).parents[2] / "docs" / "drains.md"


def test_every_code_block_of_the_page_about_drains_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert blocks
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    names["store"].close()
    names["test_by_total"]()
    with pytest.raises(AssertionError) as raised:
        assert_converges(names["LastTotal"], names["TOTALS"], seed=1)
    assert f"```text\n{raised.value}\n```" in PAGE.read_text()


def test_the_page_about_drains_explains_every_field_of_the_report():
    table = PAGE.read_text().partition("## The report")[2].partition("## What happens inside")[0]
    explained = set(re.findall(r"`(\w+)`", table))
    assert {f.name for f in fields(DrainReport)} - explained <= {"queue", "sink", "drain_id", "seconds"}
