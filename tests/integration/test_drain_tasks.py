"""What Spark's workers run, without Spark: one report a unit, whatever happens."""

from __future__ import annotations

import pickle
import uuid
from dataclasses import replace
from typing import Any

import orjson
import pytest
import sqlalchemy as sa

from export_queue.core.client import Store
from export_queue.core.drain import DRAIN_RETRY, Entry, RangeReport, Rules
from export_queue.core.locks import Lease, Owner, claim, revoke
from export_queue.core.sinks import MemorySink, Put, SinkSpec
from export_queue.core.spark.tasks import StoreAccess, TaskSetup, drain_task
from export_queue.core.transactions import take_snapshot

IMPATIENT = replace(DRAIN_RETRY, attempts=2, sleep=print)


@pytest.fixture
def orders(store: Store) -> Store:
    store.configure_queue("orders", buckets=20, buckets_per_range=5)
    with store.transaction() as tx:
        for i in range(100):
            tx.queue("orders").add(f"k{i}", i)
    return store


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def claimed(store: Store) -> list[Lease]:
    queue = store.queue("orders")
    return claim(store.database, queue, queue.units(), owner=Owner("job", "1"), lease_seconds=60)


def setup(store: Store, url: str, sink: SinkSpec, **rules: Any) -> TaskSetup:
    parsed = sa.make_url(url)
    access = StoreAccess(parsed._replace(password=None).render_as_string(), "export_queue", parsed.password)
    return TaskSetup(
        access,
        store.queue("orders"),
        take_snapshot(store.database),
        sink.resolve(),
        None,
        Rules(drain="t", retry=IMPATIENT, **rules),
    )


def test_tasks_report_each_of_their_units(orders: Store, store_url: str) -> None:
    name = uuid.uuid4().hex
    leases = claimed(orders)
    travelled = pickle.loads(pickle.dumps(setup(orders, store_url, SinkSpec("memory", {"name": name}))))
    task = drain_task(travelled, [leases[:3], leases[3:]])
    reports = [RangeReport.from_dict(orjson.loads(text)) for text in [*task(iter([0])), *task(iter([1]))]]
    assert [report.range for report in reports] == [lease.range for lease in leases]
    assert sum(report.acknowledged for report in reports) == 100 == len(MemorySink(name).records())
    assert all(report.problem is None for report in reports)
    assert waiting(orders) == 0


def test_a_sink_that_cannot_be_built_is_a_problem_of_each_unit(orders: Store, store_url: str) -> None:
    reports = setup(orders, store_url, SinkSpec("json:loads", {"s": "{}"})).run(claimed(orders))
    assert len(reports) == 4
    assert {report.problem.error_class for report in reports if report.problem} == {"SinkConfigurationError"}
    assert waiting(orders) == 100


def test_an_unreachable_store_is_a_transient_problem_of_each_unit(orders: Store, store_url: str) -> None:
    healthy = setup(orders, store_url, SinkSpec("memory", {"name": "unused"}))
    lost = StoreAccess("postgresql+psycopg://nobody@127.0.0.1:1/none", "export_queue", "secret")
    reports = TaskSetup(lost, healthy.queue, healthy.snapshot, healthy.sink, None, healthy.rules).run(claimed(orders))
    assert len(reports) == 4
    assert all(report.problem and report.problem.transient for report in reports)
    assert "secret" not in str(reports)


def test_a_task_whose_leases_were_revoked_sends_nothing(orders: Store, store_url: str) -> None:
    name = uuid.uuid4().hex
    leases = claimed(orders)
    revoke(orders.database, "job")
    reports = setup(orders, store_url, SinkSpec("memory", {"name": name})).run(leases)
    assert {report.problem.error_class for report in reports if report.problem} == {"LeaseLost"}
    assert MemorySink(name).records() == {}
    assert waiting(orders) == 100


def test_max_dead_counts_over_all_tasks_of_a_drain(orders: Store, store_url: str) -> None:
    """No task reaches the limit by itself; only the store knows what the others have buried."""
    leases = claimed(orders)
    counts = [unit.entries for unit in orders.backlog("orders")]
    prepared = replace(
        setup(orders, store_url, SinkSpec("memory", {"name": "unused"}), max_dead=max(counts)),
        exporter=f"{refuse_all.__module__}:{refuse_all.__name__}",
    )
    assert all(report.problem is None for report in prepared.run(leases[:1]))
    problems = [prepared.run([lease])[0].problem for lease in leases[1:]]
    assert {problem.error_class for problem in problems if problem} == {"TooManyDeadLetters"}
    assert orders.dead_letters.count("orders") == counts[0]
    assert waiting(orders) == 100 - counts[0]


def refuse_all(entry: Entry) -> list[Put]:
    raise ValueError("refused")


def test_tasks_that_follow_one_whose_patience_ended_look_once_and_do_not_wait(orders: Store, store_url: str) -> None:
    down = SinkSpec("redis", {"host": "127.0.0.1", "port": 1})
    leases = claimed(orders)
    waits: list[float] = []
    drain_id = uuid.uuid4().hex
    rules = Rules(drain=drain_id, retry=replace(DRAIN_RETRY, attempts=4, sleep=waits.append))
    prepared = replace(setup(orders, store_url, down), rules=rules)
    problems = [prepared.run([lease])[0].problem for lease in leases]
    assert {(problem.error_class, problem.transient) for problem in problems if problem} == {("SinkUnavailable", True)}
    assert len(problems) == 4
    assert len(waits) == 3, "only the first task waits"
    assert waiting(orders) == 100


def test_what_goes_to_the_tasks_shows_no_password(orders: Store) -> None:
    sink = SinkSpec("memory", {"name": "unused"})
    prepared = setup(orders, "postgresql+psycopg://user:s3cr3t@host/db", sink)
    assert prepared.store.password == "s3cr3t"
    assert "s3cr3t" not in repr(prepared)
