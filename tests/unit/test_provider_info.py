"""What Airflow reads about the provider is what it expects; a mistake here would keep all of Airflow from starting."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from export_queue import __version__
from export_queue.get_provider_info import get_provider_info

ROOT = Path(__file__).parents[2]
INFO = get_provider_info()
LISTS = (
    "asset-uris",
    "cli",
    "config",
    "extra-links",
    "hooks",
    "integrations",
    "notifications",
    "operators",
    "queues",
    "sensors",
    "task-decorators",
    "triggers",
)


def airflow_file(name: str) -> Any:
    """Read a JSON file of the installed Airflow; importing it would set Airflow up in the user's home."""
    try:
        path = importlib.metadata.distribution("apache-airflow-core").locate_file(f"airflow/{name}")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("Airflow is not installed")
    return json.loads(Path(str(path)).read_text())


def validate(value: Any, schema: Any) -> None:
    pytest.importorskip("jsonschema").validate(value, schema)


def test_it_is_valid_against_airflows_schema() -> None:
    validate(INFO, airflow_file("provider_info.schema.json"))


def test_the_connection_type_is_valid_against_the_strict_schema() -> None:
    strict = airflow_file("provider.yaml.schema.json")
    validate(
        INFO["connection-types"], {**strict["properties"]["connection-types"], "definitions": strict["definitions"]}
    )
    behaviour = INFO["connection-types"][0]["ui-field-behaviour"]
    flat = {name.replace("-", "_"): value for name, value in behaviour.items()}
    validate(flat, airflow_file("customized_form_field_behaviours.schema.json"))


@pytest.mark.parametrize("key", LISTS)
def test_the_lists_for_registries_are_valid_against_the_strict_schema(key: str) -> None:
    strict = airflow_file("provider.yaml.schema.json")
    validate(INFO[key], {**strict["properties"][key], "definitions": strict["definitions"]})


def test_the_package_name_is_the_distributions() -> None:
    assert INFO["package-name"] == importlib.metadata.metadata("airflow-provider-export-queue")["Name"]
    assert INFO["versions"] == [__version__]


def test_the_distribution_has_the_entry_points() -> None:
    points = importlib.metadata.distribution("airflow-provider-export-queue").entry_points
    found = {point.group: point.value for point in points}
    assert found["apache_airflow_provider"] == "export_queue.get_provider_info:get_provider_info"
    # Airflow loads the plugins of provider information only where providers are not discovered lazily.
    assert found["airflow.plugins"] == "export_queue.plugin:ExportQueuePlugin"
    assert "plugins" not in INFO


def test_every_module_that_is_named_exists() -> None:
    keys = ("hooks", "operators", "sensors", "triggers")
    modules = [module for key in keys for item in INFO[key] for module in item["python-modules"]]
    assert modules
    # Not imported: that would set Airflow up in the user's home.
    assert [module for module in modules if not source_of(module).is_file()] == []


def test_the_functions_and_classes_that_are_named_are_defined() -> None:
    (assets,) = INFO["asset-uris"]
    decorators = [one["class-name"] for one in INFO["task-decorators"]]
    functions = [*INFO["cli"], *decorators, *(value for key, value in assets.items() if key != "schemes")]
    classes = [*INFO["extra-links"], *INFO["notifications"], *INFO["queues"]]
    for kind, paths in {"def": functions, "class": classes}.items():
        for path in paths:
            module, _, name = path.rpartition(".")
            assert f"\n{kind} {name}(" in source_of(module).read_text("utf-8"), path


def test_every_list_of_the_information_is_checked_here() -> None:
    described = {"package-name", "name", "description", "versions", "connection-types"}
    assert INFO.keys() - described == set(LISTS)


def source_of(module: str) -> Path:
    _, *folders, name = module.split(".")
    return ROOT.joinpath(*(folders or ["provider"]), f"{name}.py")


def test_no_module_with_a_hook_an_operator_or_a_sensor_is_forgotten() -> None:
    rooms = ("hooks", "operators", "sensors")
    named = {module for room in rooms for item in INFO[room] for module in item["python-modules"]}
    public = re.compile(r"^class [A-Z]\w*(Hook|Operator|Sensor)\(", re.MULTILINE)
    found = {
        f"export_queue.{room}.{path.stem}"
        for room in rooms
        for path in (ROOT / room).glob("*.py")
        if public.search(path.read_text())
    }
    assert found == named


def test_the_providers_registry_is_told_of_every_class_in_the_words_of_its_docstring() -> None:
    """The official registry reads it. Addresses of the project come into it and into the metadata at once."""
    told = yaml.safe_load((ROOT / ".airflow-registry.yaml").read_text("utf-8"))
    assert [told["package-name"], told["display-name"], told["description"]] == [
        INFO[key] for key in ("package-name", "name", "description")
    ]
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"].get("urls", {})
    assert [told.get("docs-url"), told.get("source-url")] == [urls.get("Documentation"), urls.get("Source")]
    kinds = ("hooks", "operators", "sensors", "triggers")
    listed = {one["module"]: one["description"] for kind in (*kinds, "other") for one in told[kind]}
    for name, description in listed.items():
        module, _, last = name.rpartition(".")
        files = (
            [source_of(module)] if source_of(module).is_file() else [*(ROOT / module.partition(".")[2]).glob("*.py")]
        )
        bodies = [node for file in files for node in ast.parse(file.read_text("utf-8")).body]
        (defined,) = [node for node in bodies if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == last]
        assert description == str(ast.get_docstring(defined)).partition("\n")[0], name
    public = re.compile(r"^class (?P<name>[A-Z]\w*(?:Hook|Operator|Sensor)|ExportQueue\w*Trigger)\(", re.MULTILINE)
    for kind in kinds:
        modules = [source_of(module) for item in INFO[kind] for module in item["python-modules"]]
        found = {match["name"] for module in modules for match in public.finditer(module.read_text("utf-8"))}
        assert {one["module"] for one in told[kind]} == {f"export_queue.{kind}.{name}" for name in found}
    others = {path.rpartition(".")[2] for key in ("notifications", "queues") for path in INFO[key]}
    others |= {one["class-name"].rpartition(".")[2] for one in INFO["task-decorators"]}
    assert {one["module"].rpartition(".")[2] for one in told["other"]} >= others


def test_the_connection_form_has_texts_and_nullable_fields() -> None:
    (connection,) = INFO["connection-types"]
    assert connection["connection-type"] == "export_queue"
    assert connection["hook-name"]
    for field in connection["conn-fields"].values():
        assert field["label"]
        assert field["description"]
        assert "null" in field["schema"]["type"]  # forms write untouched fields as null


def test_reading_it_imports_neither_airflow_nor_anything_of_ours_but_the_version() -> None:
    program = (
        "import sys; from export_queue.get_provider_info import get_provider_info; get_provider_info(); "
        "print([m for m in sys.modules if m.startswith(('airflow', 'export_queue.'))])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['export_queue.get_provider_info']"
