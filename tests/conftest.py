"""What all tests share: the server fixtures, and markers that follow from a test's folder and fixtures."""

from __future__ import annotations

import gc
import os
import signal
import zlib
from collections import defaultdict
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from tests.support.compiled_statements import share_compiled_statements
from tests.support.drawn import left_for_later
from tests.support.shared import VARIABLE, Run

pytest_plugins = ["tests.support.fixtures", "tests.support.wheel"]

# How long an example takes is the machine's business.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")

RUN = pytest.StashKey[Run]()
TESTS = Path(__file__).parent
MARKED_FOLDERS = {"airflow", "battery", "spark", "teeth"}
MARKED_FIXTURES = {
    "elasticsearch_server": "elasticsearch",
    "mariadb_server": "mariadb",
    "opensearch_server": "elasticsearch",
    "postgres_server": "postgres",
    "redis_server": "redis",
}
FULL_FIXTURES = {
    "redis_cluster": "six processes; the sink's commands run on one server anyway",
    "pgbouncer": "another way to the same server",
    "narrow_server": "a server of Elasticsearch of its own",
}
"""Fixtures whose tests ``./run test --full`` runs only, and why."""

VARIANT = pytest.mark.full("another way of using PostgreSQL, whose statements run anyway")
STORES = {
    "sqlite": (),
    "postgresql": (pytest.mark.postgres,),
    "postgresql-pooler": (
        pytest.mark.postgres,
        VARIANT,
    ),
}
"""Kinds of stores, each with its markers."""
EITHER_STORE = {"integration", "airflow"}
"""Folders whose tests ``./run test`` runs on one of both kinds of stores, and ``--full`` on the other one, too."""
ON_OTHER_STORE = pytest.StashKey[bool]()
"""Tests that the brief run has on a store of another kind."""
SHARES = {"integration": 4, "spark": 2, "battery": 2, "teeth": 2}
"""Folders of which a run of ``--full`` draws a part of the variants: one of so many."""
LONG = 5.0
"""Seconds above which a test says with the marker ``full`` why it takes so long."""


def pytest_configure(config: pytest.Config) -> None:
    """Begin a run, unless this process is a part of one."""
    gc.disable()  # the collection of tests makes little garbage; see pytest_collection_finish
    share_compiled_statements()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell without job control
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if VARIABLE not in os.environ:
        config.stash[RUN] = Run()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers of the run."""
    run = config.stash.get(RUN, None)
    if run is not None:
        run.end()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of one server in one worker, with ``--dist loadgroup``."""
    from tests.support.scheduling import GroupScheduling

    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a module's tests on each kind of store, also behind a pooler, if it says ``EVERY_WAY = True``."""
    chosen = any("store_url" in str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize"))
    if getattr(metafunc.module, "EVERY_WAY", False) and "store_url" in metafunc.fixturenames and not chosen:
        kinds = [pytest.param(kind, marks=marks) for kind, marks in STORES.items()]
        metafunc.definition.add_marker(pytest.mark.parametrize("store_url", kinds, indirect=True))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with what it needs, so that ``-m "not redis"`` works without anybody writing the marker."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)
        fixtures = set(getattr(item, "fixturenames", ()))
        for fixture in fixtures & MARKED_FIXTURES.keys():
            item.add_marker(MARKED_FIXTURES[fixture])
        for fixture in fixtures & FULL_FIXTURES.keys():
            item.add_marker(pytest.mark.full(FULL_FIXTURES[fixture]))
        one_store = item.get_closest_marker("one_store")
        if one_store is not None and _chosen_store(item) not in ("", "sqlite"):
            item.add_marker(pytest.mark.full(*one_store.args))
            item.stash[ON_OTHER_STORE] = True
    _choose_stores(items)
    if config.getoption("markexpr") in ("full", "not brief"):  # what ./run test --full asks for, without a path
        _draw_variants(config, items)


def _choose_stores(items: Sequence[pytest.Item]) -> None:
    """Let the brief run test each function on one kind of store: half of them on each, always the same one.

    Modules with ``EVERY_WAY`` are about what differs between stores, and stay as they are.
    """
    found: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        function, kind = item.nodeid.partition("[")[0], _chosen_store(item)
        folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if kind and folder in EITHER_STORE and not getattr(getattr(item, "module", None), "EVERY_WAY", False):
            found[function][kind].append(item)
    for function, kinds in found.items():
        other = ("sqlite", "postgresql")[zlib.crc32(function.encode()) % 2]
        if kinds.keys() >= {"sqlite", "postgresql"}:
            for item in kinds[other]:
                if item.get_closest_marker("one_store") is None:
                    item.add_marker(pytest.mark.full("the other kind of store"))
                    item.stash[ON_OTHER_STORE] = True


def _draw_variants(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave a part of the variants of each test to later runs: those that the brief run leaves out.

    Among all of a module are drawn tests on the other kind of store, and those of Spark, which start applications. Of
    any other test, of a class of tests, and of its parameters, at least one variant stays.
    """
    groups: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if folder in SHARES and item.get_closest_marker("full") is not None:
            function = getattr(getattr(item, "function", None), "__qualname__", item.nodeid)
            if item.stash.get(ON_OTHER_STORE, False) or folder == "spark":
                function = ""
            # a method of a class that others inherit is the same test wherever it stands
            place = "" if "." in function else item.nodeid.partition("::")[0]
            groups[folder][f"{place} {function}"].append(item)
    later = {item for folder, found in groups.items() for item in left_for_later(found.items(), share=SHARES[folder])}
    if later:
        items[:] = [item for item in items if item not in later]
        config.hook.pytest_deselected(items=sorted(later, key=lambda item: item.nodeid))


def _chosen_store(item: pytest.Item) -> str:
    call = getattr(item, "callspec", None)
    return str((call.params if call else {}).get("store_url", ""))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep thousands of collected tests out of the search for garbage, which otherwise costs a sixth of a run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    """Let what a test printed or logged travel between processes, although some tests print what is no Unicode."""
    data = yield
    if data is not None and "sections" in data:
        data["sections"] = [(name, text.encode(errors="backslashreplace").decode()) for name, text in data["sections"]]
    return data


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long each test took in the file that ``EXPORT_QUEUE_DURATIONS`` names, at once: runs may be killed."""
    path = os.environ.get("EXPORT_QUEUE_DURATIONS")
    if path and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(path).open("a") as lines:
            lines.write(f"{report.duration:9.3f} {report.when:<8} {report.outcome:<7} {report.nodeid}\n")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell what tests with a budget of time have covered; name tests that took long without a marker that says why."""
    reports = [report for found in terminalreporter.stats.values() for report in found if hasattr(report, "duration")]
    for report in reports:
        for name, value in report.user_properties if report.when == "call" else ():
            if name == "covered":
                terminalreporter.write_line(f"COVERED {report.nodeid}: {value}")
    long = [report for report in reports if report.when == "call" and report.duration > LONG]
    unmarked = [report for report in long if "full" not in report.keywords]
    for report in sorted(unmarked, key=lambda report: -report.duration):
        terminalreporter.write_line(f"LONG {report.duration:.1f} s without the marker full: {report.nodeid}")
