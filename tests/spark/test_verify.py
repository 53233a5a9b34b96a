"""Verify and repair by Spark's tasks: they find and mend what one process finds and mends (I16, I17)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import Submit
from tests.support.planted import PLANTERS, Planter, opened

from export_queue import (
    InvalidArgument,
    SinkBindingError,
    SinkSpec,
    Store,
    StoreSpec,
    UnknownQueue,
    VerifyReport,
    drain,
    verify,
    verify_job,
)
from export_queue.core.spark import compare_by_tasks, verify_sides
from export_queue.core.spark.verify_tasks import compare_task, read_sink_task, read_state_task
from export_queue.core.verify import VerifyRequest, verify_as_requested

SINKS = ("sqlite", "postgresql", "redis", "elasticsearch")
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """Tasks open the store as drivers do."""
    return sqlite_url


@pytest.fixture
def spec(store_url: str) -> StoreSpec:
    return StoreSpec(url=store_url)


@pytest.fixture
def orders(store: Store) -> Store:
    """A store with a queue of four units that has a state."""
    store.configure_queue("orders", buckets=16, buckets_per_range=4, state=True)
    store.subscribe("orders", "sink")
    return store


@pytest.fixture(
    params=[pytest.param(one, marks=[] if one == "redis" else pytest.mark.full("another sink")) for one in SINKS]
)
def planter(request: pytest.FixtureRequest) -> Planter:
    return PLANTERS[request.param](request)


@pytest.fixture
def in_sqlite(request: pytest.FixtureRequest) -> Planter:
    return PLANTERS["sqlite"](request)


Check = Callable[..., VerifyReport]


@pytest.fixture
def check(orders: Store, spec: StoreSpec, spark: Any, tmp_path: Path) -> Check:
    """Compare by the tasks of this process's Spark."""

    def run(planter: Planter, queue_id: str = "orders/sink", **options: Any) -> VerifyReport:
        sink = described(planter, tmp_path)
        return verify_as_requested(
            orders,
            sink,
            VerifyRequest.of(queue_id, sink.name, options),
            compare=compare_by_tasks(spark.sparkContext, spec, sink),
        )

    return run


def described(planter: Any, folder: Path, name: str = "sink") -> SinkSpec:
    """Describe the sink of a planter; workers find its password in a file."""

    def secrets(password: str | None) -> dict[str, str]:
        if not password:
            return {}
        path = folder / "password"
        path.touch(0o600)
        path.write_text(password)
        return {"password": f"file:{path}"}

    if hasattr(planter, "engine"):
        url = planter.engine.url
        options = {**planter.options, "url": url._replace(password=None).render_as_string()}
        return SinkSpec("sql", options, secrets=secrets(url.password), name=name)
    server = planter.server
    if hasattr(planter, "client"):
        options = {"host": server.host, "port": server.port}
        return SinkSpec("redis", options, secrets=secrets(server.password), name=name)
    options = {"hosts": [server.url], "username": server.user, "index": f"{planter.name}-$collection"}
    return SinkSpec(server.kind, options, secrets=secrets(server.password), name=name)


def document(n: int) -> dict[str, Any]:
    return {"n": n, "city": "Zürich"}


def add(store: Store, entries: dict[str, Any]) -> None:
    with store.transaction() as tx:
        tx.queue("orders").add_many(entries.items())


def seqs(store: Store) -> dict[str, int]:
    """Return the sequence of the latest entry of each key."""
    return {one.position.key.decode(): one.position.seq for one in store.peek("orders/sink", limit=1000)}


def plant(planter: Planter, latest: dict[str, int]) -> dict[str, list[str]]:
    """Plant differences of five kinds; the sink was filled by :func:`filled`."""
    planter.remove("r11")
    planter.write("r13", 2 * latest["r13"] + 1, {"n": 13, "city": "Genève"})
    planter.write("r1", 2 * latest["r20"] + 1, document(1))  # as the first transaction wrote it
    planter.remove("r32")  # a tombstone
    planter.write("r50", 2 * latest["r20"] + 1, document(50))
    return {"missing": ["r11", "r32"], "different": ["r13"], "stale": ["r1"], "extra": ["r50"]}


def kinds(report: VerifyReport) -> dict[str, list[str]]:
    return {kind: sorted(one.id for one in samples) for kind, samples in report.samples.items()}


def counted(report: VerifyReport) -> dict[str, Any]:
    """Return what does not depend on the time and the order of samples."""
    return {**report.to_dict(), "seconds": 0, "cut": 0, "samples": kinds(report)}


def filled(orders: Store, sink: Any) -> dict[str, int]:
    """Add 40 records, change ten and delete eight, and drain; return the sequence of the latest entry of each key."""
    add(orders, {f"r{n}": document(n) for n in range(40)})
    add(orders, {f"r{n}": document(-n) for n in range(10)})
    add(orders, {f"r{n}": None for n in range(32, 40)})
    latest = seqs(orders)
    drain(orders, "orders/sink", sink, sink_name="sink")
    return latest


def test_planted_differences_are_found_as_by_one_process_and_mended(
    orders: Store, planter: Planter, check: Check
) -> None:
    with opened(planter) as sink:
        latest = filled(orders, sink)
        report = check(planter)
        assert (report.differences, report.compared, report.scanned) == (0, 40, 40), report.lines()
        expected = plant(planter, latest)
        report = check(planter)
        assert kinds(report) == expected
        assert counted(report) == counted(verify(orders, "orders/sink", sink, sink_name="sink"))
        report = check(planter, repair=True)
        assert (report.differences, report.repaired) == (0, 5), report.lines()
        assert verify(orders, "orders/sink", sink, sink_name="sink").differences == 0


@pytest.mark.full("compares three times; the first test has what both need")
def test_what_is_pending_is_excused_and_left_alone_by_a_repair(orders: Store, in_sqlite: Planter, check: Check) -> None:
    with opened(in_sqlite) as sink:
        latest = filled(orders, sink)
        plant(in_sqlite, latest)
        add(orders, {"r11": document(110), "r90": document(90)})
        report = check(in_sqlite)
        assert (report.differences, report.queued) == (4, 2)
        report = check(in_sqlite, repair=True)
        assert (report.differences, report.repaired, report.queued) == (0, 4, 2)
        drain(orders, "orders/sink", sink, sink_name="sink")
        assert check(in_sqlite).queued == 0


def test_tasks_that_die_are_repeated_and_count_nothing_twice(
    orders: Store, in_sqlite: Planter, check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def dying(make: Callable[..., Any], name: str) -> Callable[..., Any]:
        def made(*arguments: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
            task = make(*arguments)

            def run(share: Iterable[Any]) -> Iterator[Any]:
                from pyspark import TaskContext

                found = list(task(share))
                context = TaskContext.get()
                if context is not None and context.partitionId() in (0, 4) and context.attemptNumber() == 0:
                    (tmp_path / f"{name}-died").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield from found

            return run

        return made

    with opened(in_sqlite) as sink:
        expected = plant(in_sqlite, filled(orders, sink))
        for task in (read_state_task, compare_task):
            monkeypatch.setattr(verify_sides, task.__name__, dying(task, task.__name__))
        monkeypatch.setattr(verify_sides, "read_sink_task", dying(read_sink_task, "read_sink_task"))
        report = check(in_sqlite)
    assert {path.name for path in tmp_path.glob("*-died")} >= {"read_state_task-died", "compare_task-died"}
    assert kinds(report) == expected
    assert (report.compared, report.scanned, report.differences) == (40, 39, 5)


def some_orders() -> list[tuple[str, Any]]:
    """What a user's function yields: one record differs, and one is missing in the sink."""
    return [
        *((f"r{n}", document(n if n >= 10 else -n)) for n in range(1, 32)),
        ("r0", document(7)),
        ("r99", document(1)),
    ]


def test_a_function_as_source_is_read_by_the_driver(orders: Store, in_sqlite: Planter, check: Check) -> None:
    with opened(in_sqlite) as sink:
        filled(orders, sink)
        report = check(in_sqlite, source=f"{__name__}:some_orders")
    assert kinds(report) == {"different": ["r0"], "missing": ["r99"]}
    assert (report.compared, report.ranked) == (33, False)


@pytest.mark.full("compares three times; the first test has what both need")
def test_records_of_an_exporter_in_other_collections_are_compared(
    orders: Store, in_sqlite: Planter, check: Check
) -> None:
    exporter = "tests.spark.exports:by_parity"
    with opened(in_sqlite) as sink:
        add(orders, {f"r{n}": document(n) for n in range(20)})
        add(orders, {"r3": None, "bad": {"n": "poison"}})
        drain(orders, "orders/sink", sink, sink_name="sink", exporter=exporter)
        report = check(in_sqlite, exporter=exporter)
        assert (report.differences, report.compared, report.dead) == (0, 20, 1), report.lines()
        with in_sqlite.engine.begin() as connection:  # type: ignore[attr-defined]
            connection.exec_driver_sql("DELETE FROM odd WHERE id = 'r7'")
            connection.exec_driver_sql("UPDATE even SET document = '{}' WHERE id = 'r8'")
        report = check(in_sqlite, exporter=exporter)
        assert kinds(report) == {"missing": ["r7"], "different": ["r8"], "dead": ["bad"]}
        report = check(in_sqlite, exporter=exporter, repair=True)
        assert (report.differences, report.repaired) == (0, 2)


def test_errors_are_those_of_one_process(orders: Store, in_sqlite: Planter, check: Check) -> None:
    with opened(in_sqlite) as sink:
        filled(orders, sink)
    with pytest.raises(UnknownQueue):
        check(in_sqlite, "elsewhere")
    with pytest.raises(InvalidArgument, match="does not know the sequences"):
        check(in_sqlite, source=f"{__name__}:some_orders", repair=True)
    with pytest.raises(InvalidArgument, match="rounds"):
        check(in_sqlite, rounds=0)
    with pytest.raises(InvalidArgument, match="has no option sauce"):
        check(in_sqlite, sauce=1)


# -- the program -----------------------------------------------------------------------------------------------------


@pytest.mark.full("starts spark-submit twice")
def test_the_program_stores_the_report_or_its_error(
    orders: Store, spec: StoreSpec, in_sqlite: Planter, submit: Submit, tmp_path: Path
) -> None:
    sink = described(in_sqlite, tmp_path)
    with opened(in_sqlite) as target:
        plant(in_sqlite, filled(orders, target))
    job = verify_job(store=spec, queue_id="orders/sink", sink=sink, repair=True)
    submission = submit(job)
    assert submission.wait() == 0, submission.output()
    result = orders.idempotency(job.report_key).result
    assert (result["report"]["differences"], result["report"]["repaired"]) == (0, 5)
    assert result["lines"][0] in submission.output()
    job = verify_job(store=spec, queue_id="orders/sink", sink=described(in_sqlite, tmp_path, "another"))
    submission = submit(job)
    assert submission.wait() == 1, submission.output()
    assert f"verify failed: {SinkBindingError.__name__}: " in submission.output()
    assert orders.idempotency(job.problem_key).result["error_class"] == SinkBindingError.__name__
