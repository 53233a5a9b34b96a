"""A DataFrame becomes entries, all or none, once; and each is what ``queue.add`` would have written (I3, I14)."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.loading import die_at, files, segments, values, visible
from tests.support.drawn import drawn

from export_queue import (
    CommitOutcomeUnknown,
    ConfigurationError,
    EntryError,
    ExportQueueError,
    InvalidArgument,
    MemorySink,
    Retry,
    SparkJobFailed,
    Store,
    StoreSpec,
    StoreUnavailable,
    TransactionEnded,
    UnknownQueue,
    bucket,
    drain,
    write_transactional,
)
from export_queue.core.spark import LoadArguments
from export_queue.core.store import queries
from export_queue.core.transactions import outcomes

ROWS = 500
EXPECTED = {b"k%d" % n: b'{"n":%d}' % n for n in range(ROWS)}


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """What differs between the kinds of stores is below the room of segments."""
    return sqlite_url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the store's files are."""
    return tmp_path / "store.db.segments"


@pytest.fixture
def rows(spark: Any) -> Any:
    """Rows of the queue ``orders``; several partitions, in no order."""
    return spark.range(0, ROWS, 1, 3).selectExpr("concat('k', id) as key", "named_struct('n', id) as value")


def test_each_row_is_an_entry_in_the_file_of_its_unit(orders: Store, rows: Any, spark: Any) -> None:
    rows = spark.createDataFrame(rows.collect(), rows.schema)  # of unknown size: every core writes
    report = write_transactional(rows, orders, "orders")
    assert (report.entries, report.queues, report.files, report.repeated) == (ROWS, {"orders": ROWS}, 2, False)
    assert report.bytes == sum(len(key) + len(value) for key, value in EXPECTED.items())
    assert values(orders) == EXPECTED
    assert {(number, seq) for number, _, seq, _ in visible(orders)} <= {(n, report.transaction) for n in range(20)}
    assert all(bucket(key, 20) == number for number, key, _, _ in visible(orders))


def test_all_cores_write_also_if_all_keys_are_in_one_bucket(store: Store, rows: Any, spark: Any) -> None:
    store.configure_queue("narrow", buckets=1)
    report = write_transactional(spark.createDataFrame(rows.collect(), rows.schema), store, "narrow")
    assert report.files == 2
    assert min(one.entries for one in segments(store, "narrow")) > ROWS / 3
    assert values(store, "narrow") == EXPECTED


def test_no_rows_are_no_entries(orders: Store, rows: Any, spark: Any) -> None:
    report = write_transactional(rows.where("false"), orders, "orders")
    assert (report.entries, report.files) == (0, 0)
    assert write_transactional(spark.createDataFrame([], rows.schema), orders, "orders").entries == 0


def test_a_frame_is_computed_once(orders: Store, rows: Any, spark: Any) -> None:
    computed = spark.sparkContext.accumulator(0)

    def counted(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            computed.add(batch.num_rows)
            yield batch

    write_transactional(rows.mapInArrow(counted, rows.schema), orders, "orders")
    assert computed.value == ROWS


def test_null_values_delete_and_other_columns_are_left_alone(orders: Store, spark: Any) -> None:
    frame = spark.sql("select 1 as other, 'a' as `my.key`, cast(null as int) as v union all select 2, 'b', 3")
    write_transactional(frame, orders, "orders", key="my.key", value="v")
    assert values(orders) == {b"a": None, b"b": b"3"}


def test_every_codec_writes_what_add_writes(store: Store, spark: Any) -> None:
    store.configure_queue("whole", key="int", value="int", buckets=7)
    store.configure_queue("raw", key="bytes", value="bytes", buckets=7)
    store.configure_queue("text", key="str", value="str", buckets=7)
    numbers = [(-(2**63), 2**63 - 1), (0, 0), (77, None)]
    write_transactional(spark.createDataFrame(numbers, "key long, value long"), store, "whole")
    raw = [(bytearray(b"\xff\x00"), bytearray(b"\xfe")), (bytearray(b"\x00"), bytearray(b""))]
    write_transactional(spark.createDataFrame(raw, "key binary, value binary"), store, "raw")
    write_transactional(spark.createDataFrame([("é", "\u2028"), ("b", "")], "key string, value string"), store, "text")
    for queue_id, given in {"whole": numbers, "raw": [(bytes(k), bytes(v)) for k, v in raw]}.items():
        queue = store.queue(queue_id)
        expected = {queue.encode_key(key): queue.encode_value(value, key=key) for key, value in given}
        assert values(store, queue_id) == expected
        assert all(bucket(key, 7) == number for number, key, _, _ in visible(store, queue_id))
    assert values(store, "text") == {"é".encode(): "\u2028".encode(), b"b": b""}


def test_json_of_collected_rows_is_what_add_writes(store: Store, spark: Any) -> None:
    store.configure_queue("documents")
    frame = spark.sql(
        "select concat('k', id) as key, named_struct('i', id, 'f', id / 7D, 'd', cast(id as decimal(20, 3)), "
        "'s', concat('é\"', id), 't', timestamp_seconds(id * 1e7 + 0.5), "
        "'day', date_add(date'2020-01-01', cast(id as int)), 'a', array(id, null), 'm', map('x', id), "
        "'b', id % 2 = 0, 'z', if(id > 3, id, null)) as value from range(9)"
    )
    write_transactional(frame, store, "documents")
    from datetime import UTC

    queue, expected = store.queue("documents"), {}
    for row in frame.collect():
        value = row["value"].asDict()
        value["t"] = value["t"].astimezone(UTC)  # collected times are those of this machine's zone, without its name
        expected[row["key"].encode()] = queue.encode_value(value, key=row["key"])
    assert values(store, "documents") == expected


# -- refused before anything is visible ------------------------------------------------------------------------------


def in_progress(store: Store) -> int:
    with store.database.read() as work:
        return len(queries.monitoring.holders(work))


def refusal(error: type[ExportQueueError], frame: Any, store: Store, *arguments: Any, **options: Any) -> str:
    with pytest.raises(error) as raised:
        write_transactional(frame, store, *arguments, **options)
    return str(raised.value)


def test_what_cannot_work_is_refused_before_the_job(orders: Store, rows: Any, folder: Path) -> None:
    orders.configure_queue("guarded", exclusive=True)
    orders.configure_queue("parted", subscriptions=["one"])
    assert "it has: guarded, orders" in refusal(UnknownQueue, rows, orders, "order")
    assert "which gets what is added to 'parted'" in refusal(InvalidArgument, rows, orders, "parted/one")
    assert "is exclusive" in refusal(InvalidArgument, rows, orders, "guarded")
    assert "no column 'id'" in refusal(InvalidArgument, rows, orders, "orders", key="id")
    assert "codec str of keys" in refusal(InvalidArgument, rows.selectExpr("1 as key", "value"), orders, "orders")
    assert "either queue or queue_column, found none" in refusal(InvalidArgument, rows, orders)
    assert "next to tx" in refusal(InvalidArgument, rows, orders, "orders", tx=object(), timeout=1.0)
    with orders.transaction() as tx:
        assert "expected a long transaction" in refusal(InvalidArgument, rows, orders, "orders", tx=tx)
    assert files(folder) == set()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("null, named_struct('n', 1L)", "row 0 of partition 3, both counted from 0: expected a key, found null"),
        ("'', named_struct('n', 1L)", "row 0 of partition 3, both counted from 0: key: expected 1 to 1024 bytes"),
        ("repeat('k', 1025), named_struct('n', 1L)", "key: expected 1 to 1024 bytes, found 1025"),
        ("'k7', named_struct('n', 8L)", "key 'k7' comes more than once"),
        ("cast(x'ff' as string), named_struct('n', 1L)", "key b'\\xff': expected UTF-8"),
    ],
)
def test_a_row_that_is_refused_leaves_nothing(orders: Store, rows: Any, spark: Any, row: str, message: str) -> None:
    frame = rows.union(spark.sql(f"select {row}"))
    assert message in refusal(EntryError, frame, orders, "orders")
    assert segments(orders) == []
    assert in_progress(orders) == 0
    write_transactional(rows, orders, "orders")
    assert values(orders) == EXPECTED


def test_a_row_without_a_key_is_named_by_its_place(orders: Store, rows: Any) -> None:
    frame = rows.selectExpr("if(value.n = 499, null, key) as key", "value")
    assert "row 166 of partition 2, both counted from 0" in refusal(EntryError, frame, orders, "orders")


def test_a_value_that_is_refused_is_named_by_its_key(orders: Store, spark: Any) -> None:
    frame = spark.sql("select 'a' as key, 1D as value union all select 'b', double('nan')")
    assert "value of key 'b': expected a JSON value, but the value is nan" in refusal(
        EntryError, frame, orders, "orders"
    )
    frame = spark.sql("select 'a' as key, repeat('x', (1 << 20) + 1) as value")
    assert "value of key 'a': expected at most 1048576 bytes, found 1048579" in refusal(
        EntryError, frame, orders, "orders"
    )
    assert segments(orders) == []


def test_of_the_rows_of_a_key_the_latest_counts_if_a_column_says_which(orders: Store, spark: Any) -> None:
    frame = spark.createDataFrame(
        [("a", 1, 5), ("a", 2, 9), ("a", 3, 7), ("b", 4, None), ("b", 5, 0)], "key string, value int, at int"
    )
    write_transactional(frame, orders, "orders", latest_by="at")
    assert values(orders) == {b"a": b"2", b"b": b"5"}
    twice = spark.createDataFrame([("a", 1, 5), ("a", 2, 5)], "key string, value int, at int")
    assert "more than once with the same 'at'" in refusal(EntryError, twice, orders, "orders", latest_by="at")


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_key_that_comes_again_is_found_wherever_batches_end(orders: Store, cut: int) -> None:
    import pyarrow as pa

    from export_queue.core.spark.load_tasks import checked_for_repetition

    queue = orders.queue("orders")
    rows = pa.RecordBatch.from_pydict({"key": ["a", "b", "b", "c"], "latest": [1, 5, 5, 2]})
    batches = [rows.slice(0, cut), rows.slice(cut)]
    with pytest.raises(EntryError, match="key 'b' comes more than once in the DataFrame"):
        list(checked_for_repetition(batches, queue, None))
    with pytest.raises(EntryError, match="key 'b' comes more than once with the same 'at'"):
        list(checked_for_repetition(batches, queue, "at"))


# -- several queues, several frames ----------------------------------------------------------------------------------


def test_a_column_names_the_queue_of_each_row(orders: Store, spark: Any) -> None:
    orders.configure_queue("texts", buckets=3, value="str")
    orders.configure_queue("numbers", buckets=5, value="int")
    frame = spark.range(90).selectExpr(
        "if(id % 3 = 0, 'orders', 'texts') as q", "concat('k', id) as key", "cast(id as string) as value"
    )
    report = write_transactional(frame, orders, queue_column="q")
    assert report.queues == {"orders": 30, "texts": 60}
    assert values(orders, "orders") == {b"k%d" % n: b'"%d"' % n for n in range(0, 90, 3)}
    assert values(orders, "texts") == {b"k%d" % n: b"%d" % n for n in range(90) if n % 3}
    assert all(bucket(key, 3) == number for number, key, _, _ in visible(orders, "texts"))
    other = frame.union(spark.sql("select 'nowhere', 'a', 'b'"))
    assert "names queue 'nowhere'; the store has: numbers, orders, texts" in refusal(
        UnknownQueue, other, orders, queue_column="q"
    )
    unfit = frame.union(spark.sql("select 'numbers', 'a', 'b'"))
    assert "queue 'numbers', codec int of values" in refusal(InvalidArgument, unfit, orders, queue_column="q")
    assert "expected the id of a queue in each row, found null in the row with key 'a'" in refusal(
        EntryError, frame.union(spark.sql("select null, 'a', 'b'")), orders, queue_column="q"
    )
    assert len(values(orders)) == 30


def test_several_frames_and_plain_writes_commit_together(orders: Store, rows: Any) -> None:
    orders.configure_queue("others")
    with orders.transaction(long=True) as tx:
        write_transactional(rows.where("value.n < 100"), orders, "orders", tx=tx)
        tx.table("loads").set("nightly", "state", b"done")
        write_transactional(rows.where("value.n >= 100"), orders, "orders", tx=tx)
        write_transactional(rows, orders, "others", tx=tx)
        assert segments(orders) == []
    assert values(orders) == values(orders, "others") == EXPECTED
    with orders.transaction(read_only=True) as tx:
        assert tx.table("loads").get("nightly", "state") == b"done"


def test_frames_of_a_transaction_lie_in_the_layout_in_which_it_began(orders: Store, rows: Any) -> None:
    with orders.transaction(long=True) as tx:
        replaced = rows.where("value.n < 300").selectExpr("key", "named_struct('n', -1) as value")
        write_transactional(replaced, orders, "orders", tx=tx)
        orders.alter_queue("orders", buckets=7, buckets_per_range=3, guard="seq")
        write_transactional(rows, orders, "orders", tx=tx)
    queue = orders.queue("orders")
    assert {segment.layout for segment in segments(orders)} == {1}
    report = write_transactional(rows.limit(3), orders, "orders")
    assert {segment.layout for segment in segments(orders) if segment.transaction == report.transaction} == {2}
    sink = MemorySink()
    drain(orders, "orders", sink, sink_name="s")
    assert {key: value for (_, key), value in sink.records().items()} == EXPECTED
    assert (queue.layout, orders.queue("orders").older) == (2, ())


def test_an_error_behind_a_load_takes_it_back(orders: Store, rows: Any) -> None:
    with pytest.raises(ZeroDivisionError), orders.transaction(long=True) as tx:
        write_transactional(rows, orders, "orders", tx=tx)
        _ = 1 / 0
    assert segments(orders) == []


def test_a_file_that_is_not_where_the_driver_looks_fails_the_whole_load(
    orders: Store, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where executors of other machines take a local folder for a shared one; the error is caught by the user."""
    from export_queue.core.spark import load

    gather = load.collect_files

    def gather_and_lose(outcomes: Any) -> Any:
        found = gather(outcomes)
        Path(found["others"][0].file).unlink()
        return found

    orders.configure_queue("others")
    monkeypatch.setattr(load, "collect_files", gather_and_lose)
    named = rows.selectExpr("key", "value", "if(value.n < 100, 'others', 'orders') as q")
    with pytest.raises(TransactionEnded), orders.transaction(long=True) as tx:
        message = refusal(ConfigurationError, named, orders, queue_column="q", tx=tx)
        assert "the driver finds no file" in message
    assert segments(orders) == segments(orders, "others") == []


# -- once ------------------------------------------------------------------------------------------------------------


def test_a_repeated_call_returns_the_first_report_and_writes_nothing(orders: Store, rows: Any, folder: Path) -> None:
    first = write_transactional(rows, orders, "orders", idempotency_key="2026-01-01")
    written = files(folder)
    again = write_transactional(rows, orders, "orders", idempotency_key="2026-01-01")
    assert (again.repeated, again.transaction, again.entries) == (True, first.transaction, ROWS)
    assert files(folder) == written
    assert values(orders) == EXPECTED


def test_a_key_of_other_work_is_refused(orders: Store, rows: Any) -> None:
    orders.run(lambda tx: tx.table("t").set("a", "b", b"c"), idempotency_key="other")
    assert "work that was not a load" in refusal(InvalidArgument, rows, orders, "orders", idempotency_key="other")


def test_of_two_calls_at_once_one_counts(orders: Store, rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other call commits while this one is about to."""
    from export_queue.core.spark import load

    stage, others = load.stage_files, []

    def stage_late(*arguments: Any) -> None:
        if not others:
            others.append(None)
            others[0] = write_transactional(rows, orders, "orders", idempotency_key="key")
        stage(*arguments)

    monkeypatch.setattr(load, "stage_files", stage_late)
    report = write_transactional(rows, orders, "orders", idempotency_key="key")
    assert (report.repeated, report.transaction) == (True, others[0].transaction)
    assert values(orders) == EXPECTED


# -- tasks that fail -------------------------------------------------------------------------------------------------

POINTS = ("before", "within", "after")


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Let attempts of the writing task of partition 0 fail at a point, the first one or all."""
    from export_queue.core.spark import load

    made = load.load_task

    def plant(point: str, *, dies: bool = False, always: bool = False) -> None:
        mark = str(tmp_path / "failed")

        def faulty(setup: Any) -> Any:
            task = made(setup)

            def run(batches: Any) -> Any:
                from pathlib import Path

                from pyspark import TaskContext

                def fail() -> None:
                    if TaskContext.get().partitionId() or (Path(mark).exists() and not always):
                        return
                    with Path(mark).open("a") as file:
                        file.write("x")
                    if dies:
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise OSError("planted")

                def interrupted() -> Any:
                    for batch in batches:
                        half = batch.num_rows // 2
                        yield batch.slice(0, half)
                        if point == "within":
                            fail()
                        yield batch.slice(half)

                if point == "before":
                    fail()
                outcomes = list(task(interrupted()))
                if point == "after":
                    fail()
                yield from outcomes

            return run

        monkeypatch.setattr(load, "load_task", faulty)

    return plant


@pytest.mark.parametrize(
    ("point", "dies"),
    [
        ("after", False),
        ("after", True),
        *(
            pytest.param(p, d, marks=pytest.mark.full("the same at another point"))
            for p, d in drawn([(p, d) for p in POINTS[:2] for d in (0, 1)], about="points")
        ),
    ],
)
def test_a_task_that_is_repeated_adds_its_rows_once(
    orders: Store, rows: Any, fault: Callable[..., None], folder: Path, tmp_path: Path, point: str, dies: bool
) -> None:
    fault(point, dies=dies)
    report = write_transactional(rows, orders, "orders")
    assert (tmp_path / "failed").exists()
    assert values(orders) == EXPECTED
    named = {one.file for one in segments(orders)}
    assert len(named) == report.files
    assert named <= files(folder)
    if point == "after":
        assert len(files(folder)) == report.files + 1  # of the attempt that nobody heard of


def test_a_task_that_fails_for_good_leaves_nothing(
    orders: Store, rows: Any, fault: Callable[..., None], tmp_path: Path
) -> None:
    fault("after", always=True)
    message = refusal(SparkJobFailed, rows, orders, "orders", idempotency_key="key")
    assert "planted" in message
    assert (tmp_path / "failed").read_text() == "xxxx"
    assert segments(orders) == []
    assert not orders.idempotency("key").committed


def test_an_interrupted_load_leaves_nothing(orders: Store, rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from export_queue.core.spark import action

    def interrupt(progress: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(action.JobProgress, "tell", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_transactional(rows, orders, "orders")
    assert (segments(orders), in_progress(orders)) == ([], 0)
    write_transactional(rows, orders, "orders")
    assert values(orders) == EXPECTED


def test_the_log_tells_how_far_the_job_is_and_what_was_added(
    orders: Store, rows: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from export_queue.core.spark import action

    monkeypatch.setattr(action, "EVERY_SECONDS", 0.0)
    with caplog.at_level("INFO", logger="export_queue"):
        report = write_transactional(rows, orders, "orders")
    lines = [record.getMessage() for record in caplog.records]
    assert f"load of orders, transaction {report.transaction}: " in lines[0]
    assert re.search(r"\d+ of \d+ tasks ended, \d+ running, 0 failed$", lines[0])
    assert lines[-1] == report.line()
    assert lines[-1].startswith(f"orders: 500 entries, {report.bytes} bytes in {report.files} files; ")


# -- the commit ------------------------------------------------------------------------------------------------------


def lose_answers(steps: Any, monkeypatch: pytest.MonkeyPatch, *, arrives: bool, mute: bool = False) -> None:
    """Let the store's answer to a commit be lost.

    :param steps: those of a store, or the class of all stores' steps.
    """
    commit = steps.commit

    def lost(*arguments: Any) -> Any:
        monkeypatch.undo() if not mute else monkeypatch.setattr(steps, "decide", silent)
        if arrives:
            commit(*arguments)
        error = StoreUnavailable("the connection broke")
        error.sent = True
        raise error

    def silent(*arguments: Any) -> Any:
        raise StoreUnavailable("nobody answers")

    monkeypatch.setattr(steps, "commit", lost)
    if mute:
        monkeypatch.setattr(outcomes, "ASKING", Retry(attempts=None, seconds=0.3))


def test_a_commit_whose_answer_is_lost_is_asked_for(orders: Store, rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_answers(orders.database.dialect.steps, monkeypatch, arrives=True)
    report = write_transactional(rows, orders, "orders")
    assert not report.repeated
    assert values(orders) == EXPECTED


@pytest.mark.parametrize("arrives", [True, False])
def test_an_outcome_that_stays_unknown_is_settled_by_the_idempotency_key(
    orders: Store, rows: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    with monkeypatch.context() as patch:
        lose_answers(orders.database.dialect.steps, patch, arrives=arrives, mute=True)
        with pytest.raises(CommitOutcomeUnknown):
            write_transactional(rows, orders, "orders", idempotency_key="key")
    assert len(segments(orders)) == (4 if arrives else 0)
    again = write_transactional(rows, orders, "orders", idempotency_key="key")
    assert again.repeated == arrives
    assert values(orders) == EXPECTED
    assert {one.file for one in segments(orders)} <= files(folder)


# -- the driver ------------------------------------------------------------------------------------------------------

DRIVER = """
import os, signal, sys
from export_queue import StoreSpec, write_transactional
from export_queue.core.spark import load
from export_queue.core.transactions import OpenTransaction
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(0, 500, 1, 3).selectExpr("concat('k', id) as key", "named_struct('n', id) as value")
point, url = sys.argv[1:]
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
def after(function): return lambda *a, **k: (function(*a, **k), die())
if point == "before the job": load._run = die
if point == "after the tasks": load.collect_files = die
if point == "between staging and commit": load.stage_files = after(load.stage_files)
if point == "after the commit": OpenTransaction.commit = after(OpenTransaction.commit)
write_transactional(rows, StoreSpec(url=url), "orders", idempotency_key="key")
"""


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
def test_a_driver_that_dies_leaves_all_or_nothing(
    orders: Store,
    rows: Any,
    store_url: str,
    spark_environment: dict[str, str],
    tmp_path: Path,
    folder: Path,
    point: str,
) -> None:
    die_at(DRIVER, point, store_url, environment=spark_environment, folder=tmp_path)
    assert values(orders) == (EXPECTED if point == "after the commit" else {})
    report = write_transactional(rows, orders, "orders", idempotency_key="key")
    assert report.repeated == (point == "after the commit")
    assert values(orders) == EXPECTED
    assert {one.file for one in segments(orders)} <= files(folder)


@pytest.mark.parametrize(
    ("frame", "arguments", "message"),
    [
        ("{folder}/frames.py:missing", {}, "missing"),
        ("{folder}/broken.py:one", {}, "No module named 'no_such_module'"),
        ("{folder}/absent.py:one", {}, "the script cannot be read"),
        ("no_such_module:one", {}, "no_such_module:one cannot be imported"),
        ("{folder}/frames.py:one", {"day": 1}, "argument 'day'"),
    ],
)
def test_a_frame_that_cannot_be_called_ends_the_driver_before_spark_starts(
    store_url: str, tmp_path: Path, frame: str, arguments: dict[str, Any], message: str
) -> None:
    from export_queue.core.spark.load_driver import run

    (tmp_path / "frames.py").write_text("def one(spark): raise AssertionError\n")
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    found = frame.format(folder=tmp_path)
    with pytest.raises((ConfigurationError, InvalidArgument), match=message):
        run(LoadArguments(store=StoreSpec(url=store_url), frame=found, frame_arguments=arguments))


# -- drained -----------------------------------------------------------------------------------------------------------


def test_a_drained_load_equals_plain_adds_of_the_same_rows(store: Store, spark: Any) -> None:
    from export_queue.core.drain import drain
    from export_queue.core.sinks import MemorySink

    rows = [(f"k{n}", None if n % 7 == 0 else n) for n in range(300)]
    found = []
    for queue_id in ("loaded", "added"):
        store.configure_queue(queue_id, buckets=20, buckets_per_range=5)
    with store.transaction() as tx:  # older entries of the same keys give way
        for queue_id in ("loaded", "added"):
            tx.queue(queue_id).add_many((f"k{n}", "old") for n in range(0, 300, 3))
    write_transactional(spark.createDataFrame(rows, "key string, value int"), store, "loaded")
    with store.transaction() as tx:
        tx.queue("added").add_many(rows)
    with store.transaction() as tx:  # and the load's give way to younger ones
        for queue_id in ("loaded", "added"):
            tx.queue(queue_id).add_many((f"k{n}", "young") for n in range(0, 300, 5))
    for queue_id in ("loaded", "added"):
        sink = MemorySink()
        report = drain(store, queue_id, sink, sink_name=queue_id)
        assert (report.acknowledged, report.left) == (460, 0)
        found.append({key: document for (_, key), document in sink.records().items()})
    assert found[0] == found[1]
    assert len(found[0]) > 200
    assert segments(store, "loaded") == []
