"""The code on the page about sinks runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from export_queue.core.sinks import MemorySink, RedisSink
from export_queue.core.sinks.sql.generic import Generic
from export_queue.core.sinks.sql.mysql import MySQL
from export_queue.core.sinks.sql.postgresql import PostgreSQL
from export_queue.core.sinks.sql.sqlite import SQLite

PAGE = Path(__file__).parents[2] / "docs" / "sinks.md"


def test_every_code_block_of_the_page_about_sinks_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == PAGE.read_text().count("```") // 2 > 0
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    suite = names["TestMySink"]()
    suite.test_a_late_stale_put_does_not_bring_a_deleted_record_back()


def test_the_page_about_sinks_has_the_right_batch_sizes():
    found = [kind.capabilities for kind in (MemorySink, RedisSink, SQLite, PostgreSQL, MySQL, Generic)]
    rows = " | ".join(f"{one.batch_rows:,}".replace(",", " ") for one in found)
    sizes = " | ".join(f"{one.batch_bytes >> 20} MiB" for one in found)
    assert f"| operations in a batch | {rows} |" in PAGE.read_text()
    assert f"| bytes in a batch | {sizes} |" in PAGE.read_text()
