"""``df.write.format("export_queue")``: the same promises by Spark's own interface (I3, I14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.spark.loading import files, segments, values
from tests.spark.test_load import EXPECTED, ROWS, lose_answers

from export_queue import CommitOutcomeUnknown, SparkJobFailed, Store, register_data_source


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """What differs between the kinds of stores is below the room of segments."""
    return sqlite_url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the store's files are."""
    return tmp_path / "store.db.segments"


@pytest.fixture(scope="module")
def frames(spark: Any) -> Any:
    """The session, which knows the format."""
    register_data_source(spark)
    return spark


@pytest.fixture
def rows(frames: Any) -> Any:
    """Rows of the queue ``orders``; several partitions, one of them empty."""
    frame = frames.range(0, ROWS, 1, 3).selectExpr("concat('k', id) as key", "named_struct('n', id) as value")
    return frame.union(frame.where("false"))


def write(frame: Any, url: str, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("export_queue").option("url", url).option("queue", "orders")
    writer.options(**options).mode(mode).save()


def test_a_frame_becomes_entries_in_one_commit(orders: Store, rows: Any, store_url: str, folder: Path) -> None:
    write(rows, store_url)
    assert values(orders) == EXPECTED
    assert {one.file for one in segments(orders)} == files(folder)
    assert len({one.transaction for one in segments(orders)}) == 1


def test_of_a_key_in_two_tasks_the_row_of_the_later_task_counts(orders: Store, frames: Any, store_url: str) -> None:
    first, later = (
        frames.range(start, start + 40, 1, 1 + n).selectExpr(
            "concat('k', id) as key", f"named_struct('n', {n}L) as value"
        )
        for n, start in ((1, 0), (2, 20))
    )
    write(first.union(later), store_url)
    assert values(orders) == {b"k%d" % n: b'{"n":1}' if n < 20 else b'{"n":2}' for n in range(60)}
    assert sum(unit.entries for unit in orders.backlog("orders")) == 60


def test_no_rows_are_no_entries(orders: Store, rows: Any, store_url: str) -> None:
    write(rows.where("false"), store_url)
    assert segments(orders) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": "red"}, "unknown option 'colour'; it takes behind_pooler, idempotency_key, key"),
        ({"password": "secret!"}, "give a reference to the password: option('secret', 'env:NAME')"),
        ({"url": "postgresql://me:hidden@host/db"}, "the store's URL holds a password"),
        ({"secret": "hidden"}, "expected env:NAME, file:/PATH or module:callable"),
        ({"queue": "order"}, "the store has no queue 'order'; it has: orders"),
        ({"queue_column": "key"}, "expected either queue or queue_column, found both"),
        ({"key": "id"}, "the DataFrame has no column 'id'; it has: key, value"),
        ({"key": "value"}, "codec str of keys: column 'value': expected string, found struct<n:bigint>"),
        ({"timeout": "soon"}, "option 'timeout': expected seconds above 0, found 'soon'"),
        ({"behind_pooler": "perhaps"}, "option 'behind_pooler': expected true or false, found 'perhaps'"),
        ({"mode": "overwrite"}, "queue 'orders' has no state"),
        ({"mode": "overwrite", "idempotency_key": "x"}, "unknown option 'idempotency_key'; the mode overwrite takes"),
        ({"mode": "overwrite", "max_deletes": "all"}, "expected a part from 0 to 1 or a whole number, found 'all'"),
        ({"scope": "x"}, "unknown option 'scope'"),
    ],
)
def test_what_cannot_work_is_refused_before_the_job(
    orders: Store, rows: Any, store_url: str, folder: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as raised:
        write(rows, **{"url": store_url, **options})
    assert message in str(raised.value)
    assert "hidden" not in str(raised.value)
    assert files(folder) == set()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("null, named_struct('n', 1L)", "row 0 of partition 3, both counted from 0: expected a key, found null"),
        ("repeat('k', 1025), named_struct('n', 1L)", "row 0 of partition 3, both counted from 0: key: expected 1 to"),
        ("cast(x'ff' as string), named_struct('n', 1L)", "key b'\\xff': expected UTF-8"),
        ("'bad', named_struct('n', double('nan'))", "value of key 'bad': expected a JSON value, but field n is nan"),
    ],
)
def test_a_row_that_is_refused_is_named_by_its_key_or_its_place(
    orders: Store, rows: Any, frames: Any, store_url: str, row: str, message: str
) -> None:
    bad = frames.sql(f"select {row}").toDF("key", "value")
    with pytest.raises(Exception, match="EntryError") as raised:
        write(rows.union(bad), store_url)
    assert message in str(raised.value)
    assert segments(orders) == []


def test_a_row_without_a_queue_is_named_by_its_place(orders: Store, frames: Any, store_url: str) -> None:
    columns = ["if(id = 7, null, 'orders') as q", "concat('k', id) as key", "id as value"]
    frame = frames.range(0, 9, 1, 2).selectExpr(*columns)
    writer = frame.write.format("export_queue").option("url", store_url).option("queue_column", "q")
    with pytest.raises(Exception, match="found null in row 3 of partition 1, both counted from 0, with key 'k7'"):
        writer.mode("append").save()
    assert segments(orders) == []


def test_rows_of_several_queues_go_to_theirs(orders: Store, frames: Any, store_url: str) -> None:
    orders.configure_queue("texts", buckets=3, value="str")
    frame = frames.range(90).selectExpr(
        "if(id % 3 = 0, 'orders', 'texts') as q", "concat('k', id) as key", "cast(id as string) as value"
    )
    writer = frame.write.format("export_queue").option("url", store_url).option("queue_column", "q")
    writer.mode("append").save()
    assert values(orders) == {b"k%d" % n: b'"%d"' % n for n in range(0, 90, 3)}
    assert values(orders, "texts") == {b"k%d" % n: b"%d" % n for n in range(90) if n % 3}


def test_a_repeated_write_of_one_unit_of_work_adds_nothing(
    orders: Store, rows: Any, store_url: str, folder: Path
) -> None:
    write(rows, store_url, idempotency_key="night")
    written = files(folder)
    write(rows, store_url, idempotency_key="night")
    assert values(orders) == EXPECTED
    assert files(folder) == written
    orders.close_idempotency_key("night")
    write(rows, store_url, idempotency_key="night")
    assert orders.idempotency("night").result["entries"] == ROWS
    assert len({one.transaction for one in segments(orders)}) == 2


# -- its steps, called as Spark may call them ------------------------------------------------------------------------


@pytest.fixture
def begun(orders: Store, rows: Any, store_url: str) -> Any:
    """A writer and the message of a task that has written 50 rows, as other processes have them."""
    import pyarrow as pa
    from pyspark import cloudpickle
    from pyspark.sql import types as t

    from export_queue.core.spark import data_source as d

    source = d.ExportQueueDataSource({"url": store_url, "queue": "orders", "idempotency_key": "night"})
    schema = t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.LongType())])
    writer = cloudpickle.loads(cloudpickle.dumps(source.writer(schema, overwrite=False)))
    d_attempt = d.attempt_name
    d.attempt_name = lambda: (0, "00000-7")
    try:
        batch = pa.RecordBatch.from_pydict({"key": [f"k{n}" for n in range(50)], "value": list(range(50))})
        message = writer.write(iter([batch]))
    finally:
        d.attempt_name = d_attempt
    return writer, cloudpickle.loads(cloudpickle.dumps(message))


def test_an_abort_behind_a_commit_changes_nothing(orders: Store, begun: Any, folder: Path) -> None:
    writer, message = begun
    assert segments(orders) == []
    writer.commit([message])
    writer.abort([message])
    assert len(values(orders)) == 50
    assert {one.file for one in segments(orders)} == files(folder)


def test_a_commit_behind_an_abort_is_refused(orders: Store, begun: Any) -> None:
    writer, message = begun
    writer.abort([None])
    writer.abort([None])
    with pytest.raises(Exception, match="has ended|expired|refused|lost"):
        writer.commit([message])
    assert segments(orders) == []


@pytest.mark.parametrize("lacking", ["an outcome", "a message", "another partition"])
def test_a_commit_needs_the_outcome_of_each_task_once(orders: Store, begun: Any, lacking: str) -> None:
    from export_queue.core.spark.data_source import Message

    writer, message = begun
    second = {"an outcome": Message(None), "a message": None}.get(lacking, message)
    with pytest.raises(
        SparkJobFailed, match=r"expected one outcome from each of 2 tasks, found those of partitions \[0"
    ):
        writer.commit([message, second])
    assert segments(orders) == []
    with pytest.raises(Exception, match="has ended|expired|refused|lost"):
        writer.commit([message])


@pytest.mark.parametrize("arrives", [True, False])
def test_an_outcome_that_stays_unknown_is_settled_by_the_write_that_is_repeated(
    orders: Store, rows: Any, begun: Any, store_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    writer, message = begun
    with monkeypatch.context() as patch:
        lose_answers(
            type(orders.database.dialect.steps), patch, arrives=arrives, mute=True
        )  # the commit opens its own store
        with pytest.raises(CommitOutcomeUnknown):
            writer.commit([message])
    assert bool(segments(orders)) == arrives
    writer.abort([message])  # as Spark does behind a commit that failed
    write(rows, store_url, idempotency_key="night")
    assert len(values(orders)) == (50 if arrives else ROWS)
    assert {one.file for one in segments(orders)} <= files(folder)


def test_a_commit_whose_answer_is_lost_is_asked_for(orders: Store, begun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, message = begun
    lose_answers(type(orders.database.dialect.steps), monkeypatch, arrives=True)
    writer.commit([message])
    assert len(values(orders)) == 50


def test_a_commit_that_is_repeated_counts_once(orders: Store, begun: Any) -> None:
    writer, message = begun
    writer.commit([message])
    writer.commit([message])
    assert len(values(orders)) == 50


def test_rows_beyond_the_size_of_a_run_are_written_in_several_files(
    orders: Store, begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    from export_queue.core.spark import data_source as d

    monkeypatch.setattr(d, "RUN_BYTES", 1)
    monkeypatch.setattr(d, "attempt_name", lambda: (1, "00001-8"))
    writer, message = begun
    batches = [pa.RecordBatch.from_pydict({"key": [f"k{n}", f"j{n}"], "value": [n, n]}) for n in range(50, 60)]
    other = writer.write(iter(batches))
    writer.commit([message, other])
    assert len(values(orders)) == 70
    assert len({one.file for one in segments(orders)}) == 11
