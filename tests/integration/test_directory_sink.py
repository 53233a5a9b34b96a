"""The sink of one's own on the page about sinks, against the suite that the page says is its acceptance test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from export_queue import Operations, SinkConfigurationError, SinkRefused, Store, drain

PAGE = Path(__file__).parents[2] / "docs" / "sinks" / "your-own.md"


def example() -> dict[str, Any]:
    """Run the two code blocks of the example."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        if "DirectorySink" in block:
            exec(compile(block, str(PAGE), "exec"), names)
    return names


EXAMPLE = example()
DirectorySink = EXAMPLE["DirectorySink"]


class TestDirectorySink(EXAMPLE["TestDirectorySink"]):  # type: ignore[misc]
    """The whole suite."""


def operation(seq: int, document: bytes | None = b"x") -> Operations:
    return Operations(["c"], [b"anna"], [document], [seq], [0])


def test_a_drain_writes_files(sqlite_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    folder.mkdir()
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("orders")
        with store.transaction() as tx:
            tx.queue("orders").add("anna", {"total": 3})
        assert drain(store, "orders", DirectorySink(folder)).acknowledged == 1
    assert (folder / "records" / "orders.d" / "anna.record").read_bytes() == b'{"total":3}'


@pytest.mark.parametrize("broken", ["rank begun", "document", "rank done"])
def test_a_kill_between_rank_and_document_is_mended_and_lets_nothing_older_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    sink = DirectorySink(tmp_path)
    sink.apply(operation(1, b"old"))
    steps = iter(["rank begun", "document", "rank done"])
    real = EXAMPLE["replace_file"]

    def killed(path: Path, content: bytes) -> None:
        if next(steps) == broken:
            raise SystemExit
        real(path, content)

    monkeypatch.setitem(EXAMPLE, "replace_file", killed)
    with pytest.raises(SystemExit):
        sink.apply(operation(3, b"new"))
    monkeypatch.setitem(EXAMPLE, "replace_file", real)
    path = tmp_path / "records" / "c.d" / "anna.record"
    before = path.read_bytes()
    sink.apply(operation(2, b"older"))
    assert path.read_bytes() == (b"older" if broken == "rank begun" else before)
    assert sink.apply(operation(3, b"new")).written == 1
    assert path.read_bytes() == b"new"
    assert sink.apply(operation(3, b"new")).stale == 1


def test_trouble_with_the_folder_is_not_the_fault_of_entries(tmp_path: Path) -> None:
    with pytest.raises(SinkConfigurationError):
        DirectorySink(tmp_path / "missing")
    sink = DirectorySink(tmp_path)
    sink.apply(operation(1))
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").mkdir()
    with pytest.raises(SinkRefused, match="directory"):
        sink.apply(operation(2))
