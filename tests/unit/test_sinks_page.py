"""The figures, errors and faults on the pages about sinks are those of the code and of its tests."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path

from export_queue import ElasticsearchSink, ErrorTable, MemorySink, RedisSink
from export_queue.core import sinks
from export_queue.core.sinks.sql.dialects.generic import GenericDialect
from export_queue.core.sinks.sql.dialects.mysql import MySqlDialect
from export_queue.core.sinks.sql.dialects.postgresql import PostgresDialect
from export_queue.core.sinks.sql.dialects.sqlite import SqliteDialect

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "sinks"
PAGE = PAGES / "index.md"
ERRORS = PAGES / "errors.md"
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def test_the_page_about_sinks_has_the_right_batch_sizes():
    kinds = (MemorySink, RedisSink, ElasticsearchSink, SqliteDialect, PostgresDialect, MySqlDialect, GenericDialect)
    found = [kind.capabilities for kind in kinds]
    rows = " | ".join(f"{one.batch_rows:,}".replace(",", " ") for one in found)
    sizes = " | ".join(f"{one.batch_bytes >> 20} MiB" for one in found)
    assert f"| operations in a batch | {rows} |" in PAGE.read_text()
    assert f"| bytes in a batch | {sizes} |" in PAGE.read_text()


def error_tables() -> dict[str, ErrorTable]:
    """All tables of the sinks, by client."""
    modules = [
        importlib.import_module(found.name) for found in pkgutil.walk_packages(sinks.__path__, f"{sinks.__name__}.")
    ]
    tables = [value for module in modules for value in vars(module).values() if isinstance(value, ErrorTable)]
    return {table.client: table for table in tables}


def test_the_page_about_sinks_has_the_error_tables_of_all_clients():
    on_page = dict(re.findall(r"<!-- errors of ([\w ]+) -->\n(.*?)<!-- end -->", ERRORS.read_text(), re.DOTALL))
    wanted = {client: f"\n{table.markdown()}\n" for client, table in error_tables().items()}
    assert {"Redis", "PostgreSQL", "SQLite"} <= set(wanted)
    assert on_page == wanted, "put each table between its marks: " + "".join(wanted.values())


def test_every_error_table_has_one_row_for_a_code_and_one_for_all_others():
    for table in error_tables().values():
        codes = [row.code for row in table.rows]
        assert len(codes) == len(set(codes)), table.client
        assert codes.index("*") == len(codes) - 1, table.client
        assert all(row.note for row in table.rows), table.client
        assert table.find("something that nobody knows") == table.rows[-1], table.client


def test_every_fault_on_the_page_about_faults_is_shown_by_tests_that_exist():
    section = (PAGES / "faults.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 30
    for fault, result, *shown in rows:
        assert result, fault
        (cell,) = shown
        tests = TEST.findall(cell)
        assert len(tests) == cell.count("`") // 2 > 0, fault
        for path, name in tests:
            module = ROOT / path if path.startswith("core/") else ROOT / "tests" / path
            nodes = ast.walk(ast.parse(module.read_text("utf-8")))
            assert name in {node.name for node in nodes if isinstance(node, ast.FunctionDef)}, f"{path}::{name}"
