"""Every Python block of the README and of the pages runs as it stands there, those of a page one after the other.

Blocks that need Airflow are run by ``tests/airflow/test_docs.py``, the web service, which needs a server, by
``tests/integration/test_read_your_writes.py``, the tutorial, which needs servers, by
``tests/integration/test_tutorial.py``, those about DataFrames by ``tests/spark/test_page.py``, those about streams by
``tests/spark/test_streams.py``, those about clusters by ``tests/spark/test_clusters.py`` and
``tests/spark/test_cluster_submissions.py``. Those of the page of examples are parts of files which
``tests/airflow/test_examples.py`` runs; ``test_quoted_examples.py`` compares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import without_connections
from typer.main import get_command

from export_queue.core.cli.program import app
from export_queue.testing import assert_converges

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
ELSEWHERE = {
    "clusters",
    "clusters-kubernetes",
    "clusters-yarn",
    "examples",
    "mirror-a-dataframe",
    "spark",
    "streaming",
    "tutorial",
}
CLOSED_AT_THE_END = {"store": "close", "engine": "dispose"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(found) == page.read_text("utf-8").count("```python")
    return [
        block
        for block in found
        if not re.search(r"^from (airflow|export_queue\.operators|fastapi)\b", block, re.MULTILINE)
    ]


def check_long_transactions(names: dict[str, Any]) -> None:
    assert sum(unit.entries for unit in names["store"].backlog("orders")) == 1002


def check_exporters(names: dict[str, Any]) -> None:
    names["test_by_total"]()
    with pytest.raises(AssertionError) as raised:
        assert_converges(names["LastTotal"], names["TOTALS"], seed=1)
    assert f"```text\n{raised.value}\n```" in (ROOT / "docs" / "exporters.md").read_text("utf-8")


def check_own_sink(names: dict[str, Any]) -> None:
    suite = names["TestDirectorySink"]()
    suite.folder = Path()
    suite.test_a_late_stale_put_does_not_bring_a_deleted_record_back()


CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "docs/exporters.md": check_exporters,
    "docs/long-transactions.md": check_long_transactions,
    "docs/sinks/your-own.md": check_own_sink,
}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page) and page.stem not in ELSEWHERE], ids=name_of)
def test_every_python_block_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        code = block.replace("sqlite:////var/lib/", f"sqlite:///{tmp_path}/")
        exec(compile(code, name_of(page), "exec"), names)
    CHECKS.get(name_of(page), lambda _: None)(names)
    for name, end in CLOSED_AT_THE_END.items():
        if name in names:
            getattr(names[name], end)()


def commands(page: Path) -> list[str]:
    """Find calls of the command line: in console and text blocks, and between backquotes."""
    text = without_connections(page.read_text("utf-8"))
    return re.findall(r"(?:^|[`$ ])export-queue ([a-z][^`\n|]*)", text, re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name_of)
def test_commands_and_options_of_a_page_exist(page: Path) -> None:
    for call in commands(page):
        command: Any = get_command(app)
        words = call.split()
        while hasattr(command, "commands"):
            assert words, call
            assert words[0] in command.commands, f"export-queue {call}"
            command = command.commands[words.pop(0)]
            if not words:
                break
        known = {option for parameter in command.params for option in parameter.opts}
        used = {word.rstrip(".,;:)") for word in words if word.startswith("--")}
        assert used <= known, f"export-queue {call}"
