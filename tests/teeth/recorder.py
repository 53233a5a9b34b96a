"""A pytest plugin that writes down how tests ended: one JSON line each, into the file that ``TEETH_RECORD`` names."""

from __future__ import annotations

import json
import os
from collections.abc import Generator

import hypothesis
import pytest

# The same examples each time, and the first that fails is enough.
hypothesis.settings.register_profile(
    "teeth", derandomize=True, database=None, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate]
)
hypothesis.settings.load_profile("teeth")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None:
        _write(test=item.nodeid, outcome="failed", when=report.when, errors=_names(call.excinfo.value))
    elif report.skipped:
        _write(test=item.nodeid, outcome="skipped", when=report.when, errors=[])
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(test=report.nodeid, outcome="failed", when="collect", errors=[])


def _names(error: BaseException) -> list[list[str]]:
    """Name the classes of an error, base classes too; of a group those of each error in it."""
    if isinstance(error, BaseExceptionGroup):
        return [names for one in error.exceptions for names in _names(one)]
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    return [["timeout"] if "Timeout (>" in str(error) and "Failed" in names[0] else names]


def _write(**event: object) -> None:
    with open(os.environ["TEETH_RECORD"], "a") as file:
        file.write(json.dumps(event) + "\n")
