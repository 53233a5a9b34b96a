"""A DataFrame and the state of a queue become equal, or nothing changes (I3, I16)."""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.spark.loading import die_at, files, segments
from tests.support.drawn import drawn
from tests.support.waiting import wait_until

from export_queue import (
    Candidates,
    EntryError,
    ExportQueueError,
    InvalidArgument,
    MemorySink,
    MirrorRefused,
    MirrorReport,
    Store,
    StoreSpec,
    TransactionsInProgress,
    drain,
    register_data_source,
    write_transactional,
)
from export_queue.core.queue import find_state
from export_queue.core.segments import compact
from export_queue.core.store import queries

Data = Mapping[str, int]


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """What differs between the kinds of stores is below the room of states."""
    return sqlite_url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the store's files are."""
    return tmp_path / "store.db.segments"


@pytest.fixture
def customers(store: Store) -> Store:
    store.configure_queue("customers", buckets=20, buckets_per_range=5, state=True)
    return store


@pytest.fixture
def frame(spark: Any) -> Callable[[Data], Any]:
    """Make a DataFrame of the queue ``customers``."""
    return lambda data: spark.createDataFrame([*data.items()], "key string, value int")


@pytest.fixture
def mirror(customers: Store, store_url: str, frame: Any) -> Callable[..., MirrorReport]:
    """Mirror data, or a DataFrame."""

    def run(data: Any, **options: Any) -> MirrorReport:
        df = frame(data) if isinstance(data, dict) else data
        return write_transactional(df, StoreSpec(url=store_url), "customers", mode="mirror", **options)

    return run


def state(store: Store, **options: Any) -> dict[str, int]:
    return dict(store.state("customers").scan(**options))


def in_progress(store: Store) -> int:
    with store.database.read() as work:
        return len(queries.monitoring.holders(work))


def counts(report: MirrorReport) -> tuple[int, int, int, int]:
    return report.new, report.changed, report.deleted, report.unchanged


def numbers(*found: int) -> dict[str, int]:
    return {f"k{n}": n for n in found}


def test_after_each_mirror_the_state_equals_the_frame(customers: Store, mirror: Any) -> None:
    """Random data, with rows, files and merged files in the state, and other buckets halfway."""
    seed = os.environ.get("EXPORT_QUEUE_SEED", "mirrors")
    generator, before = random.Random(seed), {}
    sink = MemorySink()
    for step, rows in enumerate((300, 5, 300, 300, 300, 5)):
        data = {f"k{generator.randrange(400)}": generator.randrange(3) for _ in range(rows)}
        report = mirror(data, max_deletes=1.0)
        assert state(customers) == data, f"seed {seed}, step {step}"
        kept = data.keys() & before.keys()
        changed = sum(data[key] != before[key] for key in kept)
        expected = (len(data) - len(kept), changed, len(before) - len(kept), len(kept) - changed)
        assert counts(report) == expected, f"seed {seed}, step {step}"
        by_hand = f"k{generator.randrange(400)}"
        with customers.transaction() as tx:
            tx.queue("customers").add(by_hand, 7)
        before = {**data, by_hand: 7}
        if step == 1:
            compact(customers.database, "customers/@state", wanted=Candidates(least=2))
        if step == 3:
            customers.alter_queue("customers", buckets=13, guard="seq")
    drain(customers, "customers", sink, sink_name="memory")
    assert {key.decode(): int(value) for (_, key), value in sink.records().items()} == before


def test_only_what_differs_is_added(customers: Store, mirror: Any, folder: Path) -> None:
    sink = MemorySink()
    assert counts(mirror(numbers(*range(50)))) == (50, 0, 0, 0)
    drain(customers, "customers", sink, sink_name="memory")
    again = mirror(numbers(*range(50)))
    assert (counts(again), again.samples) == ((0, 0, 0, 50), {"new": [], "changed": [], "deleted": []})
    assert customers.backlog("customers") == []
    report = mirror({**numbers(*range(1, 50)), "k2": 99, "new": 1})
    assert counts(report) == (1, 1, 1, 48)
    assert report.samples == {"new": ["new"], "changed": ["k2"], "deleted": ["k0"]}
    assert sum(unit.entries for unit in customers.backlog("customers")) == 3
    drain(customers, "customers", sink, sink_name="memory")
    assert {key.decode(): int(value) for (_, key), value in sink.records().items()} == state(customers)


def test_an_empty_frame_deletes_only_what_it_may(customers: Store, mirror: Any, spark: Any, folder: Path) -> None:
    mirror(numbers(*range(30)))
    before, empty = files(folder), spark.createDataFrame([], "key string, value int")
    with pytest.raises(MirrorRefused, match="would delete 30 of 30 records"):
        mirror(empty)
    assert files(folder) == before
    assert counts(mirror(empty, max_deletes=1.0, dry_run=True)) == (0, 0, 30, 0)
    assert (files(folder), len(state(customers))) == (before, 30)
    assert counts(mirror(spark.range(3).selectExpr("'a' as key", "1 as value").where("false"), max_deletes=30))[2] == 30
    assert state(customers) == {}


def test_other_keys_than_those_of_the_scope_are_left_alone(customers: Store, mirror: Any) -> None:
    mirror({"ch-1": 1, "ch-2": 2, "de-1": 3})
    assert counts(mirror({"ch-1": 5}, scope="ch-", max_deletes=1)) == (0, 1, 1, 0)
    assert state(customers) == {"ch-1": 5, "de-1": 3}


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ("'k7', 8", {}, "key 'k7' comes more than once"),
        ("'none', null", {}, "key 'none': expected a value, found null"),
        ("null, 1", {}, "row 0 of partition 2, both counted from 0: expected a key, found null"),
        ("'other', 1", {"scope": "k"}, "key 'other': expected one that begins with the scope"),
    ],
)
def test_a_row_that_is_refused_leaves_nothing(
    customers: Store, mirror: Any, frame: Any, spark: Any, folder: Path, row: str, options: Any, message: str
) -> None:
    rows = frame(numbers(*range(50))).union(spark.sql(f"select {row}"))
    with pytest.raises(EntryError) as refused:
        mirror(rows, **options)
    assert message in str(refused.value)
    assert (state(customers), segments(customers, "customers"), files(folder)) == ({}, [], set())


def test_a_column_can_decide_between_rows_of_a_key(customers: Store, mirror: Any, spark: Any) -> None:
    rows = [("a", 1, 1), ("a", 2, 2), ("b", 3, 2), ("b", 4, 1)]
    report = mirror(spark.createDataFrame(rows, "key string, value int, at int"), latest_by="at")
    assert (counts(report), state(customers)) == ((2, 0, 0, 0), {"a": 2, "b": 3})


def failing(times: int, marks: Path) -> Any:
    """A step of a DataFrame whose first attempts fail in the middle of their rows."""

    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            mark = marks / str(len(list(marks.iterdir())))
            if len(list(marks.iterdir())) < times:
                mark.touch()
                raise OSError("planted")
            yield batch.slice(batch.num_rows // 2)

    return fail


def test_a_task_that_fails_counts_once_or_leaves_nothing(
    customers: Store, mirror: Any, frame: Any, tmp_path: Path, folder: Path
) -> None:
    mirror(numbers(*range(20)))
    before = files(folder)
    for number, times in enumerate((99, 1)):
        marks = tmp_path / str(number)
        marks.mkdir()
        rows = frame(numbers(*range(10, 60)))
        broken = rows.mapInArrow(failing(times, marks), rows.schema)
        if times > 1:
            with pytest.raises(ExportQueueError, match="planted"):
                mirror(broken, max_deletes=1.0)
            assert (state(customers), files(folder)) == (numbers(*range(20)), before)
        else:
            assert counts(mirror(broken, max_deletes=1.0)) == (40, 0, 10, 10)
    assert state(customers) == numbers(*range(10, 60))


def test_a_later_value_of_another_writer_stays(customers: Store, mirror: Any, frame: Any) -> None:
    mirror(numbers(1, 2, 3))

    def rows() -> Any:
        with customers.transaction() as tx:
            tx.queue("customers").add_many([("k1", 100), ("k2", None), ("k4", 400)])
        return frame({"k1": 11, "k2": 22})

    assert counts(mirror(rows, max_deletes=1.0)) == (0, 2, 1, 0)
    assert state(customers) == {"k1": 100, "k4": 400}


def test_the_frame_is_asked_for_when_older_transactions_have_ended(customers: Store, mirror: Any, frame: Any) -> None:
    ended, calls = threading.Event(), []
    with customers.transaction(long=True) as tx:
        tx.queue("customers").add("k1", 1)
        tx.flush()
        with pytest.raises(TransactionsInProgress, match=str(tx.id)):
            mirror(numbers(1), settle_timeout=0.1)

        def run() -> None:
            calls.append(mirror(lambda: calls.append(ended.is_set()) or frame(numbers(1))))

        waiting = threading.Thread(target=run)
        waiting.start()
        wait_until(lambda: in_progress(customers) == 2, "no mirror waits")
        ended.set()
    waiting.join(60)
    assert calls[0] is True
    assert counts(calls[1]) == (0, 0, 0, 1)


def test_a_mirror_can_be_a_part_of_a_transaction(customers: Store, store_url: str, frame: Any) -> None:
    with pytest.raises(KeyError), customers.transaction(long=True) as tx:
        write_transactional(frame(numbers(1)), StoreSpec(url=store_url), "customers", mode="mirror", tx=tx)
        raise KeyError
    assert state(customers) == {}
    with customers.transaction(long=True) as tx:
        write_transactional(frame(numbers(1)), StoreSpec(url=store_url), "customers", mode="mirror", tx=tx)
        tx.queue("customers").add("k2", 2)
    assert state(customers) == numbers(1, 2)


def test_what_cannot_work_is_refused_before_the_job(customers: Store, store_url: str, frame: Any) -> None:
    rows, spec = frame(numbers(1)), StoreSpec(url=store_url)
    customers.configure_queue("forgetful")

    def refusal(*arguments: Any, **options: Any) -> str:
        with pytest.raises(InvalidArgument) as refused:
            write_transactional(rows, *arguments, **options)
        return str(refused.value)

    assert "expected append or mirror" in refusal(spec, "customers", mode="overwrite")
    assert "expected a StoreSpec, which each task opens, found Store" in refusal(customers, "customers", mode="mirror")
    assert "queue 'forgetful' has no state" in refusal(spec, "forgetful", mode="mirror")
    assert "options of mode 'mirror'" in refusal(spec, "customers", mode="mirror", idempotency_key="x")
    assert "options of mode 'append'" in refusal(spec, "customers", scope="x")
    assert "max_deletes" in refusal(spec, "customers", mode="mirror", max_deletes=-1)
    assert "no column 'id'" in refusal(spec, "customers", mode="mirror", key="id")


# -- Spark's own interface -------------------------------------------------------------------------------------------


@pytest.fixture
def overwrite(customers: Store, store_url: str, frame: Any, spark: Any) -> Callable[..., None]:
    register_data_source(spark)

    def run(data: Any, **options: str) -> None:
        write = (frame(data) if isinstance(data, dict) else data).write.format("export_queue").mode("overwrite")
        write.options(url=store_url, queue="customers", **options).save()

    return run


@pytest.fixture
def read(customers: Store, store_url: str, spark: Any) -> Callable[..., Any]:
    register_data_source(spark)
    source = spark.read.format("export_queue")
    return lambda queue="customers", **options: source.options(url=store_url, queue=queue, **options).load()


def test_the_mode_overwrite_mirrors(customers: Store, overwrite: Any, frame: Any, folder: Path) -> None:
    overwrite(frame(numbers(*range(300))).repartition(3))
    assert state(customers) == numbers(*range(300))
    named = {one.file for one in segments(customers, "customers")}
    assert named == files(folder)
    overwrite(frame(numbers(*range(300))).repartition(2))
    assert {one.file for one in segments(customers, "customers")} == files(folder) == named
    overwrite({**numbers(*range(10, 300)), "k20": 99})
    assert state(customers) == {**numbers(*range(10, 300)), "k20": 99}
    overwrite({"k1": 1}, scope="k1", max_deletes="1.0")
    assert {key for key in state(customers) if key.startswith("k1")} == {"k1"}
    before = state(customers)
    overwrite({"x": 1}, dry_run="true")
    assert state(customers) == before


def test_an_overwrite_that_is_refused_leaves_nothing(
    customers: Store, overwrite: Any, frame: Any, folder: Path
) -> None:
    overwrite(numbers(*range(20)))
    before = files(folder)
    for data, message in (
        (frame({"k1": 1}), "MirrorRefused.*would delete 19 of 20 records"),
        (frame(numbers(*range(20))).union(frame({"k3": 1})), "key 'k3' comes twice in the data set"),
    ):
        with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as refused:
            overwrite(data)
        assert re.search(message, str(refused.value), re.DOTALL)
        assert (state(customers), files(folder)) == (numbers(*range(20)), before)
    assert in_progress(customers) == 0


def rows_of(df: Any) -> dict[Any, Any]:
    found = [(row["key"], row["value"]) for row in df.collect()]
    assert len(dict(found)) == len(found)
    return dict(found)


def test_a_state_is_read_at_one_snapshot(customers: Store, mirror: Any, read: Any) -> None:
    mirror(numbers(*range(100)))
    with customers.transaction() as tx:
        tx.queue("customers").add_many([("k3", None), ("k4", 44)])
        changed = tx.id
    df = read()
    assert df.rdd.getNumPartitions() == len(customers.queue("customers").units())
    expected = {key: str(n) for key, n in {**numbers(*range(100)), "k4": 44}.items() if key != "k3"}
    assert rows_of(df) == expected
    assert df.where("key = 'k4'").first()["seq"] == changed
    with customers.transaction() as tx:
        tx.queue("customers").add("k5", 55)
    assert rows_of(df) == expected
    assert rows_of(read())["k5"] == "55"
    assert rows_of(read(as_of=str(changed - 1))) == {key: str(n) for key, n in numbers(*range(100)).items()}


def test_columns_of_a_state_follow_the_codecs(customers: Store, read: Any, spark: Any) -> None:
    customers.configure_queue("whole", key="int", value="int", state=True)
    customers.configure_queue("raw", key="bytes", value="bytes", state=True)
    with customers.transaction() as tx:
        tx.queue("whole").add_many([(-(2**63), 7), (5, None)])
        tx.queue("raw").add(b"\xff", b"")
        tx.queue("customers").add("é", {"a": [1]})
    assert read("whole").schema.simpleString() == "struct<key:bigint,value:bigint,seq:bigint>"
    assert rows_of(read("whole")) == {-(2**63): 7}
    assert [(bytes(row.key), bytes(row.value)) for row in read("raw").collect()] == [(b"\xff", b"")]
    assert rows_of(read()) == {"é": '{"a":[1]}'}


def test_a_snapshot_that_clean_up_has_overtaken_is_refused(customers: Store, mirror: Any, read: Any) -> None:
    mirror(numbers(1))
    with customers.transaction() as tx:
        tx.queue("customers").add("k1", 2)
    df = read()
    assert rows_of(df) == {"k1": "2"}
    with customers.transaction() as tx:
        tx.queue("customers").add("k1", 3)
        later = tx.id
    with customers.database.begin() as work:
        queries.queues.raise_oldest_cut(work, find_state(work, "customers").number, later)
    with pytest.raises(Exception, match="SnapshotTooOld"):
        df.collect()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": "forgetful"}, "queue 'forgetful' has no state"),
        ({"as_of": "yesterday"}, "expected a time such as"),
        ({"as_of": "2026-01-01T00:00:00"}, "expected a time with a time zone"),
        ({"key": "id"}, "unknown option 'key'"),
        ({"password": "hidden"}, "give a reference to the password"),
    ],
)
def test_a_reading_that_cannot_work_is_refused(
    customers: Store, read: Any, options: dict[str, str], message: str
) -> None:
    customers.configure_queue("forgetful")
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as refused:
        read(**options).collect()
    assert message in str(refused.value)
    assert "hidden" not in str(refused.value)


DRIVER = """
import os, signal, sys
from export_queue import StoreSpec, write_transactional
from export_queue.core.spark import mirror
from export_queue.core.transactions import OpenTransaction
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
point, url = sys.argv[1:]
rows = spark.range(100, 600, 1, 3).selectExpr("concat('k', id) as key", "id as value")
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
def after(function): return lambda *a, **k: (function(*a, **k), die())
if point == "before the job": mirror._compare = die
if point == "after the tasks": mirror.collect_files = die
if point == "between staging and commit": mirror.stage_files = after(mirror.stage_files)
if point == "after the commit": OpenTransaction.commit = after(OpenTransaction.commit)
write_transactional(rows, StoreSpec(url=url), "customers", mode="mirror")
"""
"""Mirrors the records 100 to 599, and dies at a point."""


@pytest.mark.parametrize(
    "point",
    [
        "between staging and commit",
        *(
            pytest.param(point, marks=pytest.mark.full("a program with Spark for each point"))
            for point in drawn(("before the job", "after the tasks", "after the commit"), about=__name__)
        ),
    ],
)
def test_a_driver_that_dies_leaves_all_or_nothing_and_holds_no_later_mirror_up(
    customers: Store,
    mirror: Callable[..., MirrorReport],
    store_url: str,
    spark_environment: dict[str, str],
    tmp_path: Path,
    point: str,
) -> None:
    former = {f"k{n}": n for n in range(0, 500, 2)}
    wanted = {f"k{n}": n for n in range(100, 600)}
    mirror(former)
    die_at(DRIVER, point, store_url, environment=spark_environment, folder=tmp_path)
    has_committed = point == "after the commit"
    assert state(customers) == (wanted if has_committed else former)
    report = mirror(wanted, settle_timeout=0.0)
    assert (report.added == 0) == has_committed
    assert state(customers) == wanted
    assert in_progress(customers) == 0
    sink = MemorySink()
    drain(customers, "customers", sink, sink_name="memory")
    assert {key.decode(): int(value) for (_, key), value in sink.records().items()} == wanted
