"""Compactions that coalesce: what sinks end with is the same, and every entry is counted (I6, I9, I12, I13)."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import bulk
from tests.support.bulk import many, waits

from export_queue import (
    Candidates,
    CompactionReport,
    Delete,
    Entry,
    ExportQueueError,
    InvalidArgument,
    MemorySink,
    OptionsDiffer,
    Owner,
    Put,
    Store,
    drain,
)
from export_queue.core.segments import compact, watched_steps

pytestmark = pytest.mark.one_store("which entries a compaction leaves out is decided in the same way on each store")

FEW = Candidates(least=2)
STEPS = ["locked", "begun", "written", "publishing", "published"]
fork = multiprocessing.get_context("fork")


@pytest.fixture
def files(store: Store, tmp_path: Path) -> Store:
    """A store whose files are in a folder of the test's."""
    store.database.segments = str(tmp_path / "segments")
    return store


def orders(store: Store, coalesce: str | None, **options: Any) -> Store:
    """Give the store a queue of two units."""
    store.configure_queue(
        "orders", coalesce=coalesce, **{"buckets": 10, "buckets_per_range": 5, "value": "json", **options}
    )
    return store


def load(store: Store, key: str, value: Any, *, padding: int = 0) -> None:
    """Commit a value in a file, and others beside it that make the file large."""
    entries: dict[str, bytes | None] = {key: None if value is None else orjson.dumps(value)}
    entries |= {f"padding-{i}": orjson.dumps("x" * 1000) for i in range(padding)}
    bulk.load(store, entries)


def put(store: Store, key: str, value: Any) -> None:
    with store.transaction() as tx:
        tx.queue("orders").add(key, value)


def of_key(store: Store, key: str) -> list[Any]:
    """The values of a key that wait, in the order of their sequences."""
    found = [row for row in waits(store) if row[1] == key.encode()]
    assert [row[2] for row in found] == sorted(row[2] for row in found)
    return [None if row[3] is None else orjson.loads(row[3]) for row in found]


def merge(store: Store, **wanted: Any) -> CompactionReport:
    report = compact(store.database, "orders", wanted=Candidates(**{"least": 2, **wanted}))
    assert all(unit.read == unit.written + unit.superseded for unit in report.units)
    assert report.read == report.written + report.superseded
    return report


def drained(store: Store, sink: MemorySink, **options: Any) -> int:
    return drain(store, "orders", sink, sink_name="sink", **options).read


def dies_at(sink: MemorySink, batch: int) -> Callable[[Any], Any]:
    """Have the sink take so many batches, and the drain never hear of the last; returns what it did before."""
    apply, batches = sink.apply, iter(range(batch))

    def last(operations: Any) -> Any:
        found = apply(operations)
        if next(batches, None) is None:
            raise ExportQueueError("enough")
        return found

    sink.apply = last  # type: ignore[method-assign]
    return apply


def test_the_latest_entry_of_a_key_stays_and_the_others_are_counted(files: Store) -> None:
    store = orders(files, "latest")
    for number in range(4):
        bulk.load(store, many(30, b"%d" % number))
    put(store, "key-3", "row")
    load(store, "key-5", None)
    report = merge(store)
    assert (report.read, report.written, report.superseded) == (122, 30, 92)
    assert "122 read = 30 written + 92 superseded" in report.line()
    assert len(waits(store)) == sum(unit.entries for unit in store.backlog("orders")) == 30
    sink = MemorySink()
    assert drained(store, sink) == 30
    records = {record[1]: value for record, value in sink.records().items()}
    assert len(records) == 29
    assert records[b"key-3"] == b'"row"'
    assert records[b"key-4"] == b"3"
    assert waits(store) == []


def test_without_the_option_nothing_is_dropped(files: Store) -> None:
    store = orders(files, None)
    for number in range(4):
        bulk.load(store, many(30, b"%d" % number))
    assert merge(store).superseded == 0
    assert len(waits(store)) == 120


def test_what_waits_is_as_old_as_what_it_stands_for(files: Store) -> None:
    store = orders(files, "latest")
    for value in "abc":
        load(store, "anna", value)
    (unit,) = store.backlog("orders")
    merge(store)
    assert store.backlog("orders")[0].oldest_seq == unit.oldest_seq


@pytest.mark.parametrize("hop", ["merged once more", "moved"])
def test_what_waits_stays_as_old_as_what_it_stands_for_from_hop_to_hop(files: Store, hop: str) -> None:
    store, sink = orders(files, "latest"), MemorySink()
    load(store, "anna", "a")
    put(store, "anna", None)
    first = merge(store)
    (before,) = store.backlog("orders")
    if hop == "moved":
        store.alter_queue("orders", buckets=3, buckets_per_range=3, guard="seq")
        second: CompactionReport = store.compact("orders", older_layouts=True)
    else:
        bulk.load(store, many(30, b"0"))
        second = merge(store)
    assert min(unit.oldest_seq for unit in store.backlog("orders")) == before.oldest_seq
    store.sweep_sink(sink)
    for report in (second, first):
        store.dead_letters.fall_back("orders", *report.files)
    drained(store, sink)
    assert sink.records()[("orders", b"anna")] == b'"a"'  # the delete was a row, which is given up


def test_the_latest_entry_wins_over_one_that_waits_elsewhere(files: Store) -> None:
    store = orders(files, "latest")
    load(store, "anna", "a")
    load(store, "anna", "b", padding=40)
    load(store, "anna", "c")
    assert merge(store, small_bytes=10_000).superseded == 1
    assert of_key(store, "anna") == ["b", "c"]
    sink = MemorySink()
    drained(store, sink)
    assert sink.records()[("orders", b"anna")] == b'"c"'


def test_the_option_is_stored_and_altered_at_any_time(files: Store) -> None:
    store = orders(files, None)
    with pytest.raises(InvalidArgument, match="expected 'latest' or None"):
        store.configure_queue("other", coalesce="last")
    with pytest.raises(OptionsDiffer, match="coalesce: expected 'latest', found None") as raised:
        orders(store, "latest")
    assert "alter orders --coalesce latest --store" in raised.value.hint
    load(store, "anna", "a")
    assert store.alter_queue("orders", coalesce="latest").coalesce == "latest"
    assert orders(store, "latest").queue("orders").coalesce == "latest"
    with pytest.raises(OptionsDiffer) as raised:
        orders(store, None)
    assert "alter orders --no-coalesce --store" in raised.value.hint
    for unknown in ("last", "", "old_new", "module:function"):
        with pytest.raises(InvalidArgument, match="expected 'latest' or None"):
            store.alter_queue("orders", coalesce=unknown)
    assert store.alter_queue("orders", buckets_per_range=2, guard="seq").coalesce == "latest"
    assert store.alter_queue("orders", coalesce=False).coalesce is None


def test_each_subscription_coalesces_as_its_queue_or_as_it_was_told_alone(files: Store) -> None:
    store = orders(files, "latest", subscriptions=["states", "events"])
    store.alter_queue("orders/events", coalesce=False)
    with pytest.raises(InvalidArgument, match="has the options of its queue"):
        store.alter_queue("orders/events", coalesce="latest", max_value_bytes=7)
    assert store.subscribe("orders", "later").coalesce == "latest"
    assert store.queue("orders").coalesce == "latest"
    for value in "ab":
        load(store, "anna", value)
    assert compact(store.database, "orders/states", wanted=FEW).superseded == 1
    assert compact(store.database, "orders/events", wanted=FEW).superseded == 0
    for reader, read in (("states", 1), ("events", 2), ("later", 2)):
        assert drain(store, f"orders/{reader}", MemorySink(), sink_name=reader).read == read
    store.alter_queue("orders", coalesce="latest")
    for value in "ab":
        load(store, "anna", value)
    for reader in ("states", "events", "later"):
        assert compact(store.database, f"orders/{reader}", wanted=FEW).superseded == 1


def test_what_was_coalesced_and_drained_does_not_come_back_from_its_inputs(files: Store) -> None:
    store, sink = orders(files, "latest", buckets=1, buckets_per_range=1), MemorySink()
    for key in ("a", "b", "c", "d"):
        for value in (1, 2, 3):
            load(store, key, value)
    put(store, "d", 4)
    merge(store)
    apply = dies_at(sink, 2)
    with pytest.raises(ExportQueueError, match="enough"):
        drained(store, sink, chunk_rows=1)
    sink.apply = apply  # type: ignore[method-assign]
    left = {row[1] for row in waits(store)}
    assert len(left) == len(waits(store)) < 4
    assert b"d" in left
    (path,) = Path(str(store.database.segments)).rglob("compaction-*.parquet")
    path.unlink()
    found = store.dead_letters.fall_back("orders", str(path))
    assert found.given_up == 1
    assert {row[1] for row in waits(store)} == left
    drained(store, sink)
    assert {key for _, key in sink.records()} == {b"a", b"b", b"c", b"d"}


@pytest.mark.parametrize("moment", STEPS)
def test_a_killed_compaction_drops_entries_once_or_not_at_all(
    files: Store, open_store: Callable[[], Store], moment: str
) -> None:
    store = orders(files, "latest")
    for value in "abc":
        bulk.load(store, many(10, orjson.dumps(value)))

    def work() -> None:
        def die(step: str) -> None:
            if step == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        watched_steps.WATCHERS[:] = [die]
        with open_store() as mine:
            mine.database.segments = store.database.segments
            compact(mine.database, "orders", wanted=FEW, owner=Owner("compaction"))

    process = fork.Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert of_key(store, "key-1") == (["c"] if moment == "published" else ["a", "b", "c"])
    compact(store.database, "orders", wanted=FEW, owner=Owner("compaction"))
    assert {value for row in waits(store) for value in [row[3]]} == {b'"c"'}
    assert len(waits(store)) == 10


numbers = iter(range(10**6))
keys = st.sampled_from(["anna", "bert", "carl"])
steps = st.one_of(
    st.tuples(st.sampled_from(["load", "load", "put", "large"]), keys, st.sampled_from([None, "x", "y", "z"])),
    st.tuples(st.sampled_from(["compact", "compact some", "drain", "die", "refuse", "retry"]), st.integers(0, 3)),
)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(course=st.lists(steps, min_size=6, max_size=24))
def test_a_sink_ends_as_without_compaction_whatever_is_merged_when(files: Store, course: list[tuple[Any, ...]]) -> None:
    follow_course(files, course)


@pytest.mark.full("a minute: long courses, on PostgreSQL too")
@pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(course=st.lists(steps, min_size=15, max_size=40))
def test_a_sink_ends_as_without_compaction_over_long_courses(files: Store, course: list[tuple[Any, ...]]) -> None:
    follow_course(files, course)


def follow_course(store: Store, course: list[tuple[Any, ...]]) -> None:
    """Change values of keys, merge and drain in any order, and compare the sink with the last values."""
    queue = f"orders-{next(numbers)}"
    store.configure_queue(queue, buckets=2, buckets_per_range=2, coalesce="latest")
    sink, current, added, dropped = MemorySink(), dict[str, Any](), 0, 0
    refused: list[int] = []

    def export(entry: Entry) -> Iterator[Put | Delete]:
        if refused and entry.seq % 2 == refused[0] % 2:
            raise ValueError("not yet")
        if entry.value["new"] is None:
            yield Delete("states", entry.key)
        else:
            yield Put("states", entry.key, {"is": entry.value["new"]})

    def bring(**options: Any) -> int:
        return drain(store, queue, sink, sink_name="sink", exporter=export, **options).acknowledged

    for act, *details in course:
        if act in ("load", "put", "large"):
            key, value = details
            pair = {"old": current.get(key), "new": value}
            current[key] = value
            added += 1
            if act == "put":
                with store.transaction() as tx:
                    tx.queue(queue).add(key, pair)
                continue
            entries: dict[str, bytes | None] = {key: orjson.dumps(pair)}
            if act == "large":
                padding = {"old": None, "new": "x" * 500}
                entries |= {f"padding-{added}": orjson.dumps(padding)}
                current[f"padding-{added}"] = "x" * 500
                added += 1
            bulk.load(store, entries, queue_id=queue)
        elif act.startswith("compact"):
            small = 300 if act == "compact some" else 1 << 20
            report = compact(store.database, queue, wanted=Candidates(least=2, small_bytes=small))
            dropped += report.superseded
        elif act == "die":
            apply = dies_at(sink, details[0])
            with contextlib.suppress(ExportQueueError):
                bring(chunk_rows=1)
            sink.apply = apply  # type: ignore[method-assign]
        elif act == "drain":
            bring()
        elif act == "refuse":
            refused[:] = [details[0]]
            bring()
            refused.clear()
        else:
            store.dead_letters.retry(queue)
        counted(store, queue, added, dropped)
    store.dead_letters.retry(queue)
    bring()
    assert store.backlog(queue) == []
    found = {name.decode(): orjson.loads(value)["is"] for (_, name), value in sink.records().items()}
    assert found == {key: value for key, value in current.items() if value is not None}
    assert counted(store, queue, added, dropped) + dropped == added


def counted(store: Store, queue: str, added: int, dropped: int) -> int:
    """Reconcile all books: what was added is acknowledged, dead, coalesced, or waits."""
    acknowledged = sum(report["acknowledged"] for report in store.reports(queue_id=queue, limit=1000))
    waiting = sum(unit.entries for unit in store.backlog(queue))
    assert acknowledged + store.dead_letters.count(queue) + waiting + dropped == added
    return acknowledged
