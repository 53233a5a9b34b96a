"""The shape that the repository keeps."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("provider", "core", "hooks", "operators", "sensors", "dags_examples")
VISITORS = ("demo", "benchmarks")
"""Folders that are no part of the package and use it."""
EMPTY_WORDS = {"utils", "util", "helpers", "helper", "common", "base", "misc", "manager", "steps", "run", "retrying"}
ROOMS = {path.parent.name for path in (ROOT / "core").glob("*/__init__.py")}
PAST_THE_DOOR = {
    ("benchmarks/elasticsearch.py", "sinks.elasticsearch.indices"): "creates the index that the sink would create",
    ("benchmarks/locks.py", "locks.rules"): "searches among locks in memory, which every request does inside",
    ("benchmarks/peers/ours.py", "drain.fenced"): "notes the claims of a drain, whose task comes late afterwards",
    ("benchmarks/peers/ours.py", "spark.carried_secrets"): "has an engine of its own, for a session that runs already",
    ("benchmarks/peers/ours.py", "spark.engine"): "has an engine of its own, for a session that runs already",
    ("benchmarks/segments.py", "segments.verified_file"): "reads files without comparing checksums, to tell their cost",
    ("benchmarks/start.py", "store.schema"): "registers many ids at once, which no transaction does",
}
"""Imports of inner modules that are allowed, and why."""


def modules(*folders: str) -> list[Path]:
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def test_no_folder_of_the_repository_is_imported_under_its_own_name() -> None:
    # `import core` beside `import export_queue.core` would give every class twice
    assert [name for name in FOLDERS if name in sys.modules] == []


def test_module_names_say_what_is_inside() -> None:
    assert [path for path in modules(*FOLDERS, *VISITORS) if path.stem.strip("_") in EMPTY_WORDS] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path in modules(*FOLDERS) if not path.read_text().lstrip().startswith(('"""', 'r"""', "#"))]
    assert silent == []


@pytest.mark.parametrize("folder", VISITORS)
def test_what_visitors_import_exists(folder: str) -> None:
    """No checker follows the imports of benchmarks, and no quick test runs them."""
    for path in modules(folder):
        if path.stem not in ("__main__", "flights"):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))


class Import(NamedTuple):
    """A name that a module imports from a room of the core."""

    file: str
    line: int
    module: str
    """Without ``export_queue.core.``."""
    name: str | None
    """None where the module itself is imported."""

    @property
    def room(self) -> str:
        return self.module.partition(".")[0]

    @property
    def is_inner(self) -> bool:
        if "." in self.module:
            return True
        door = importlib.import_module(f"export_queue.core.{self.room}")
        return self.name is not None and self.name not in door.__all__

    def __str__(self) -> str:
        found = self.module if self.name is None else f"{self.module}:{self.name}"
        return f"{self.file}:{self.line} imports {found}; the door is export_queue.core.{self.room} and its __all__"


def imports_of_rooms() -> Iterator[Import]:
    """Yield what each module imports from rooms that it does not stand in, also inside of functions."""
    for path in modules(*FOLDERS, *VISITORS):
        file = path.relative_to(ROOT)
        own = file.parts[1] if file.parts[0] == "core" else None
        package = "export_queue." + ".".join(file.parent.parts)
        for node in ast.walk(ast.parse(path.read_text())):
            found: list[tuple[str, str | None]] = []
            if isinstance(node, ast.Import):
                found = [(alias.name, None) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                if node.level:
                    module = ".".join([*package.split(".")[: -(node.level - 1) or None], module]).rstrip(".")
                found = [(module, alias.name) for alias in node.names]
            for module, name in found:
                if module == "export_queue.core" and name in ROOMS:
                    continue  # the room itself, whose names are then read from it
                inner = module.removeprefix("export_queue.core.")
                if inner != module and inner.partition(".")[0] in ROOMS - {own}:
                    yield Import(file.as_posix(), node.lineno, inner, name)


def test_a_room_is_entered_by_its_door() -> None:
    inner = [found for found in imports_of_rooms() if found.is_inner]
    refused = [str(found) for found in inner if (found.file, found.module) not in PAST_THE_DOOR]
    assert not refused, "\n".join(refused)
    assert PAST_THE_DOOR.keys() - {(found.file, found.module) for found in inner} == set(), "not needed any more"


SUBJECTS = {
    "client": "acts monitoring queues registrations reports segments",
    "doctor": "segments",
    "drain": "acts dead_letters exports layouts monitoring outcomes queues readers registrations reports versions",
    "locks": "locks segments",
    "maintenance": "acts cleanup locks monitoring outcomes readers registrations reports versions",
    "observers": "notifications",
    "queue": "acts compactions dead_letters entries layouts locks queues readers rebuilds reports segments",
    "segments": "acts compactions entries layouts queues readers segments staged_twice vacuum",
    "sources": "compactions exports queues",
    "state": "exports queues states",
    "tables": "notifications queues",
    "transactions": "cleanup monitoring outcomes registrations reports",
    "verify": "acts compactions exports locks queues readers rebuilds reports",
}
"""The subjects of the store's statements that each room uses. A room that needs another one is named here first."""


def test_a_room_uses_the_subjects_of_statements_that_it_is_offered() -> None:
    used: dict[str, set[str]] = {}
    for path in modules("core"):
        room = path.relative_to(ROOT).with_suffix("").parts[1]
        if room != "store":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "queries":
                    used.setdefault(room, set()).add(node.attr)
    assert {room: " ".join(sorted(subjects)) for room, subjects in used.items()} == SUBJECTS
