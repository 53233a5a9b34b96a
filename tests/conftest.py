"""What all tests share: the server fixtures, and markers that follow from a test's folder and fixtures."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

pytest_plugins = ["tests.support.fixtures"]

# How long an example takes is the machine's business.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")

TESTS = Path(__file__).parent
MARKED_FOLDERS = {"airflow", "battery", "spark", "teeth"}
MARKED_FIXTURES = {
    "elasticsearch_server": "elasticsearch",
    "mariadb_server": "mariadb",
    "postgres_server": "postgres",
    "redis_server": "redis",
}

STORES = ("sqlite", "postgresql", "postgresql-pooler", "postgresql-clock")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a module's tests on the store in every way of registering ids, if it says ``EVERY_WAY = True``."""
    chosen = any("store_url" in str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize"))
    if getattr(metafunc.module, "EVERY_WAY", False) and "store_url" in metafunc.fixturenames and not chosen:
        kinds = [kind if kind == "sqlite" else pytest.param(kind, marks=pytest.mark.postgres) for kind in STORES]
        metafunc.definition.add_marker(pytest.mark.parametrize("store_url", kinds, indirect=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with what it needs, so that ``-m "not redis"`` works without anybody writing the marker."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)
        for fixture, marker in MARKED_FIXTURES.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    """Let what a test printed or logged travel between processes, although some tests print what is no Unicode."""
    data = yield
    if data is not None and "sections" in data:
        data["sections"] = [(name, text.encode(errors="backslashreplace").decode()) for name, text in data["sections"]]
    return data
