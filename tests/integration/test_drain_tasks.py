"""What Spark's workers run, without Spark: one report a unit, whatever happens."""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import uuid
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from tests.support import bulk

from export_queue import Entry, MemorySink, Owner, Put, SinkSpec, Store, StoreSpec, bucket
from export_queue.core.drain import DRAIN_RETRY, DrainRequest, Part, RangeReport, by_range, share_out, sharing
from export_queue.core.locks import Lease, claim, revoke
from export_queue.core.queue import read_entries
from export_queue.core.segments import verified_file, writing
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.spark.tasks import TaskSetup, drain_task
from export_queue.core.transactions import take_snapshot

ATTEMPTS = itertools.count(1)
"""Spark numbers the attempts of tasks."""
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


def whole(store: Store) -> list[Part]:
    return [Part.whole(lease) for lease in claimed(store)]


@pytest.fixture
def address(store_url: str, monkeypatch: pytest.MonkeyPatch) -> StoreSpec:
    """The store as executors are told: its password is a reference."""
    parsed = sa.make_url(store_url)
    if parsed.password is None:
        return StoreSpec(url=store_url)
    monkeypatch.setenv("XQ_TASKS", parsed.password)
    return StoreSpec(url=parsed._replace(password=None).render_as_string(), secret="env:XQ_TASKS")


def setup(store: Store, address: StoreSpec, sink: SinkSpec, **options: Any) -> TaskSetup:
    request = DrainRequest(
        queue_id="orders", sink_name=sink.name, **{"drain_id": uuid.uuid4().hex, "retry": IMPATIENT, **options}
    )
    return TaskSetup(address, sink, store.queue("orders"), take_snapshot(store.database), request)


def test_tasks_report_each_of_their_units(orders: Store, address: StoreSpec) -> None:
    name = uuid.uuid4().hex
    leases = claimed(orders)
    travelled = pickle.loads(pickle.dumps(setup(orders, address, SinkSpec("memory", {"name": name}))))
    task = drain_task(SimpleNamespace(value=travelled), CarriedSecrets(), lambda: next(ATTEMPTS))
    parts = [Part.whole(lease) for lease in leases]
    reports = [RangeReport.from_dict(orjson.loads(text)) for text in [*task([parts[:3]]), *task([parts[3:]])]]
    assert [report.range for report in reports] == [lease.range for lease in leases]
    assert sum(report.acknowledged for report in reports) == 100 == len(MemorySink(name).records())
    assert all(report.problem is None for report in reports)
    assert waiting(orders) == 0


def counted(inner: Any, opened: list[str]) -> Any:
    def open_it(spec: Any) -> Any:
        opened.append(type(spec).__name__)
        return inner(spec)

    return open_it


def test_a_worker_opens_store_and_sink_once_for_all_tasks_of_a_drain_and_anew_after_a_failure(
    orders: Store, address: StoreSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    for kind in (StoreSpec, SinkSpec):
        monkeypatch.setattr(kind, "open", counted(kind.open, opened))
    leases = claimed(orders)
    prepared = setup(orders, address, SinkSpec("memory", {"name": uuid.uuid4().hex}))
    for lease in leases[:2]:
        assert prepared.run([Part.whole(lease)], attempt=next(ATTEMPTS))[0].problem is None
    assert opened == ["StoreSpec", "SinkSpec"]
    revoke(orders.database, "job")
    assert prepared.run([Part.whole(leases[2])], attempt=next(ATTEMPTS))[0].problem is not None
    prepared.run([Part.whole(leases[3])], attempt=next(ATTEMPTS))
    assert opened == ["StoreSpec", "SinkSpec"] * 2


def test_what_travels_in_files_of_spark_holds_no_secret(orders: Store, address: StoreSpec) -> None:
    """Spark writes broadcast variables, and lists that become partitions, to temporary files."""
    prepared = setup(orders, address, SinkSpec("redis", {"host": "h"}, {"password": "env:XQ_TASKS"}))
    written = pickle.dumps((prepared, claimed(orders)))
    if address.secret is not None:
        assert b"XQ_TASKS" in written
        assert os.environ["XQ_TASKS"].encode() not in written
    assert "secrets" not in {field.name for field in fields(TaskSetup)}


def test_a_sink_that_cannot_be_built_is_a_problem_of_each_unit(orders: Store, address: StoreSpec) -> None:
    reports = setup(orders, address, SinkSpec("json:loads", {"s": "{}"})).run(whole(orders), attempt=next(ATTEMPTS))
    assert len(reports) == 4
    assert {report.problem.error_class for report in reports if report.problem} == {"SinkConfigurationError"}
    assert waiting(orders) == 100


def test_an_unreachable_store_is_a_transient_problem_of_each_unit(orders: Store, address: StoreSpec) -> None:
    healthy = setup(orders, address, SinkSpec("memory", {"name": "unused"}))
    lost = replace(healthy, store=StoreSpec(url="postgresql+psycopg://nobody@127.0.0.1:1/none"))
    reports = lost.run(whole(orders), attempt=next(ATTEMPTS))
    assert len(reports) == 4
    assert all(report.problem and report.problem.transient for report in reports)


def test_a_task_whose_leases_were_revoked_sends_nothing(orders: Store, address: StoreSpec) -> None:
    name = uuid.uuid4().hex
    leases = claimed(orders)
    revoke(orders.database, "job")
    prepared = setup(orders, address, SinkSpec("memory", {"name": name}))
    reports = prepared.run([Part.whole(lease) for lease in leases], attempt=next(ATTEMPTS))
    assert {report.problem.error_class for report in reports if report.problem} == {"LeaseLost"}
    assert MemorySink(name).records() == {}
    assert waiting(orders) == 100


def test_max_dead_counts_over_all_tasks_of_a_drain(orders: Store, address: StoreSpec) -> None:
    """No task reaches the limit by itself; only the store knows what the others have buried."""
    leases = claimed(orders)
    counts = [unit.entries for unit in orders.backlog("orders")]
    prepared = setup(
        orders,
        address,
        SinkSpec("memory", {"name": "unused"}),
        max_dead=max(counts),
        exporter=f"{refuse_all.__module__}:{refuse_all.__name__}",
    )
    assert all(report.problem is None for report in prepared.run([Part.whole(leases[0])], attempt=next(ATTEMPTS)))
    problems = [prepared.run([Part.whole(lease)], attempt=next(ATTEMPTS))[0].problem for lease in leases[1:]]
    assert {problem.error_class for problem in problems if problem} == {"TooManyDeadLetters"}
    assert orders.dead_letters.count("orders") == counts[0]
    assert waiting(orders) == 100 - counts[0]


def refuse_all(entry: Entry) -> list[Put]:
    raise ValueError("refused")


def test_tasks_that_follow_one_that_gave_up_look_once_and_do_not_wait(orders: Store, address: StoreSpec) -> None:
    down = SinkSpec("redis", {"host": "127.0.0.1", "port": 1})
    leases = claimed(orders)
    waits: list[float] = []
    drain_id = uuid.uuid4().hex
    retry = replace(DRAIN_RETRY, attempts=4, sleep=waits.append)
    prepared = setup(orders, address, down, drain_id=drain_id, retry=retry)
    problems = [prepared.run([Part.whole(lease)], attempt=next(ATTEMPTS))[0].problem for lease in leases]
    assert {(problem.error_class, problem.transient) for problem in problems if problem} == {("SinkUnavailable", True)}
    assert len(problems) == 4
    assert len(waits) == 3, "only the first task waits"
    assert waiting(orders) == 100


@pytest.fixture
def skewed(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A queue of four units, with nine tenths of its entries in one bucket."""
    queue = store.configure_queue("orders", buckets=20, buckets_per_range=5)
    keys = (f"k{i}" for i in range(1_000_000))
    heavy = itertools.islice((key for key in keys if bucket(key.encode(), queue.buckets) == 7), 900)
    with store.transaction() as tx:
        tx.queue("orders").add_many((key, 1) for key in heavy)
        tx.queue("orders").add_many((f"light{i}", 1) for i in range(100))
    with store.transaction() as tx:
        tx.queue("orders").add_many((f"light{i}", 2) for i in range(50))
    monkeypatch.setattr(sharing, "LEAST_WEIGHT", 10)
    return store


def test_a_bucket_with_nearly_all_entries_is_shared_out(skewed: Store, address: StoreSpec) -> None:
    name = uuid.uuid4().hex
    leases = claimed(skewed)
    prepared = setup(skewed, address, SinkSpec("memory", {"name": name}), chunk_rows=40)

    tasks = share_out(skewed.database, prepared.queue, leases, prepared.snapshot, tasks=3)

    with skewed.transaction() as tx:  # later than the snapshot: it stays
        tx.queue("orders").add("light1", 3)
    reports = [prepared.run(parts, attempt=next(ATTEMPTS)) for parts in tasks]
    read = [sum(report.read for report in of_task) for of_task in reports]
    assert sum(read) == 1050
    assert max(read) <= 1.3 * 1050 / 3
    merged = by_range([report for of_task in reports for report in of_task])
    assert [report.range for report in merged] == [lease.range for lease in leases]
    assert sum(report.acknowledged for report in merged) == 1050
    assert len(MemorySink(name).records()) == 1000
    assert waiting(skewed) == 1


def test_a_bucket_with_nearly_all_entries_is_shared_out_where_they_wait_in_files(
    skewed: Store, address: StoreSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(writing, "GROUP_ROWS", 64)
    skewed.database.segments = str(tmp_path / "segments")
    keys = [key for key in (f"f{i}" for i in range(30_000)) if bucket(key.encode(), 20) == 7][:1200]
    bulk.load(skewed, dict.fromkeys(keys, b"3"), tasks=2)
    name = uuid.uuid4().hex
    leases = claimed(skewed)
    prepared = setup(skewed, address, SinkSpec("memory", {"name": name}), chunk_rows=40)

    tasks = share_out(skewed.database, prepared.queue, leases, prepared.snapshot, tasks=3)
    reports = [prepared.run(parts, attempt=next(ATTEMPTS)) for parts in tasks]

    read = [sum(report.read for report in of_task) for of_task in reports]
    assert sum(read) == 1050 + 1200
    assert max(read) <= 1.3 * 2250 / 3
    assert not [report.problem for of_task in reports for report in of_task if report.problem]
    assert len(MemorySink(name).records()) == 1000 + 1200
    assert waiting(skewed) == 0


def test_heads_of_files_are_read_once_and_beside_the_store(
    skewed: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file holds a segment of each unit; the filesystem may be slow."""
    monkeypatch.setattr(sharing, "LEAST_WEIGHT", 1)
    skewed.database.segments = str(tmp_path / "segments")
    bulk.load(skewed, bulk.many(400), tasks=2)
    step, opened, borrowed, me = verified_file.open_file, list[str](), list[bool](), threading.get_ident()

    def open_file(file: str, **options: Any) -> Any:
        opened.append(file)
        borrowed.append(me in skewed.database.borrowers())  # threads in the background may borrow one
        return step(file, **options)

    monkeypatch.setattr(verified_file, "open_file", open_file)
    share_out(skewed.database, skewed.queue("orders"), claimed(skewed), take_snapshot(skewed.database), tasks=4)
    assert len(opened) == len(set(opened)) == 2
    assert not any(borrowed)


def test_an_entry_of_many_under_one_key_is_in_one_part(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "LEAST_WEIGHT", 2)
    queue = store.configure_queue("orders", buckets=20, buckets_per_range=5)
    for value in range(12):
        with store.transaction() as tx:
            tx.queue("orders").add("hot", value)
    leases = claimed(store)
    snapshot = take_snapshot(store.database)

    tasks = share_out(store.database, queue, leases, snapshot, tasks=4)

    found = []
    for part in itertools.chain.from_iterable(tasks):
        with store.database.read() as work:
            read = read_entries(work, queue, snapshot, part.buckets, after=part.after, rows=100, size=1 << 20)
        found.append(len(part.trim(read)))
    assert sorted(found)[-1] == sum(found) == 12
