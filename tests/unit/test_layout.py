"""The shape that the repository keeps."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("provider", "core", "hooks", "operators", "sensors", "dags_examples")
EMPTY_WORDS = {"utils", "util", "helpers", "helper", "common", "base", "misc", "manager"}
MOST_LINES = 400


def modules() -> list[Path]:
    return [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


def test_no_folder_of_the_repository_is_imported_under_its_own_name() -> None:
    # `import core` beside `import export_queue.core` would give every class twice
    assert [name for name in FOLDERS if name in sys.modules] == []


def test_modules_stay_below_400_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules()}
    assert {path: lines for path, lines in lengths.items() if lines >= MOST_LINES} == {}


def test_module_names_say_what_is_inside() -> None:
    assert [path for path in modules() if path.stem.strip("_") in EMPTY_WORDS] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path in modules() if not path.read_text().lstrip().startswith(('"""', 'r"""', "#"))]
    assert silent == []
