"""What the wheel holds is what the tree holds."""

from __future__ import annotations

import zipfile
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "provider": "export_queue",
    "core": "export_queue/core",
    "hooks": "export_queue/hooks",
    "operators": "export_queue/operators",
    "sensors": "export_queue/sensors",
    "dags_examples": "export_queue/dags_examples",
}
DATA = {".css", ".html", ".py", ".sql", ".svg"}


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def read_metadata(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (found,) = (entry for entry in archive.namelist() if entry.endswith(f".dist-info/{name}"))
        return archive.read(found).decode()


def in_tree() -> set[str]:
    found = {"export_queue/py.typed"}
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in DATA and "__pycache__" not in path.parts:
                found.add(f"{package}/{path.relative_to(ROOT / folder).as_posix()}")
    return found


def test_the_wheel_holds_the_modules_and_data_files_of_the_tree_and_nothing_else(names: set[str]) -> None:
    packaged = {name for name in names if ".dist-info/" not in name}
    assert packaged == in_tree()


def test_every_folder_with_modules_is_a_package(names: set[str]) -> None:
    folders = {name.rpartition("/")[0] for name in names if name.endswith(".py")}
    assert {folder for folder in folders if f"{folder}/__init__.py" not in names} == set()


def test_the_wheel_names_the_entry_points_of_airflow_and_of_the_command_line(wheel: Path) -> None:
    entry_points = read_metadata(wheel, "entry_points.txt")
    assert "[apache_airflow_provider]\nprovider_info = export_queue.get_provider_info:get_provider_info" in entry_points
    assert "export-queue = export_queue.core.cli:main" in entry_points


def test_the_wheel_has_the_version_of_the_package_and_its_license(wheel: Path) -> None:
    import export_queue

    metadata = Parser().parsestr(read_metadata(wheel, "METADATA"))
    assert metadata["Version"] == export_queue.__version__ == version("airflow-provider-export-queue")
    assert metadata["License-Expression"] == "Apache-2.0"


def test_a_plain_install_requires_neither_airflow_nor_pyspark(wheel: Path) -> None:
    metadata = Parser().parsestr(read_metadata(wheel, "METADATA"))
    plain = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert plain
    assert [line for line in plain if "airflow" in line or "pyspark" in line] == []


def test_no_extra_brings_pyspark_beside_airflow(wheel: Path) -> None:
    metadata = Parser().parsestr(read_metadata(wheel, "METADATA"))
    lines = metadata.get_all("Requires-Dist", [])
    with_airflow = {line.partition("extra == ")[2] for line in lines if line.startswith("apache-airflow")}
    with_pyspark = {line.partition("extra == ")[2] for line in lines if line.startswith("pyspark")}
    assert with_airflow
    assert with_pyspark
    assert with_airflow.isdisjoint(with_pyspark)
