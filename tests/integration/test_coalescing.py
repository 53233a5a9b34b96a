"""Compactions that coalesce: what sinks end with is the same, and every entry is counted (I6, I9, I12, I13)."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import bulk
from tests.support.bulk import many, waits

from export_queue.core.client import Store
from export_queue.core.drain import Entry, drain
from export_queue.core.errors import ExportQueueError, FoldError, InvalidArgument, LeaseLost, OptionsDiffer
from export_queue.core.locks import ROWS, Area, Owner, acquire, member, release
from export_queue.core.queue import Range
from export_queue.core.segments import Candidates, CompactionReport, compact, compaction, waiting_segments
from export_queue.core.sinks import Delete, MemorySink, Put
from export_queue.core.store import queries, schema
from export_queue.core.transactions import take_snapshot

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


def concatenated(values: Sequence[Any]) -> Any:
    """A fold that shows what it was given."""
    return "".join("-" if value is None else str(value) for value in values)


def failing(values: Sequence[Any]) -> Any:
    raise ValueError(values)


CONCATENATED = f"{__name__}:concatenated"
FAILING = f"{__name__}:failing"


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


def segments(store: Store) -> list[str]:
    """Name the segments that wait, the oldest first."""
    with store.database.read() as work:
        found = waiting_segments(work, store.queue("orders"), take_snapshot(store.database), Range(0, 10))
    return [member(one.transaction, one.number) for one in found]


@contextlib.contextmanager
def held(store: Store, *names: str) -> Iterator[None]:
    """Hold sources in all units, as a drain does."""
    queue = store.queue("orders")
    areas = [Area(unit.first, unit.end, frozenset(names)) for unit in queue.units()]
    leases = acquire(store.database, queue, areas, owner=Owner("drain", "1"), priority=75, lease_seconds=60)
    yield
    release(store.database, leases)


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


def test_a_fold_of_users_stands_under_the_highest_sequence(files: Store) -> None:
    store = orders(files, CONCATENATED)
    for value in ("a", None, "b"):
        load(store, "anna", value)
    put(store, "anna", "c")
    load(store, "bert", "only")
    last = max(row[2] for row in waits(store) if row[1] == b"anna")
    assert merge(store).superseded == 3
    ((_, _, seq, value),) = (row for row in waits(store) if row[1] == b"anna")
    assert (seq, value) == (last, b'"a-bc"')
    assert of_key(store, "bert") == ["only"]


def test_what_waits_is_as_old_as_what_it_stands_for(files: Store) -> None:
    store = orders(files, "latest")
    for value in "abc":
        load(store, "anna", value)
    (unit,) = store.backlog("orders")
    merge(store)
    assert store.backlog("orders")[0].oldest_seq == unit.oldest_seq


def test_a_fold_is_folded_again_until_a_drain_has_looked(files: Store) -> None:
    store = orders(files, CONCATENATED)
    for value in "ab":
        load(store, "anna", value)
    merge(store)
    for value in "cd":
        load(store, "anna", value)
    merge(store)
    assert of_key(store, "anna") == ["abcd"]
    sink = MemorySink()
    dies_at(sink, 0)
    with pytest.raises(ExportQueueError, match="enough"):
        drained(store, sink)
    load(store, "anna", "e")
    load(store, "anna", "f")
    merge(store)
    assert of_key(store, "anna") == ["abcd", "ef"]


def test_a_fold_reaches_over_nothing_that_waits_elsewhere(files: Store) -> None:
    store = orders(files, CONCATENATED)
    load(store, "anna", "a")
    load(store, "anna", "b", padding=40)
    load(store, "anna", "c")
    load(store, "anna", "d")
    merge(store, small_bytes=10_000)
    assert of_key(store, "anna") == ["a", "b", "cd"]
    with held(store, segments(store)[0]):
        merge(store)
        assert of_key(store, "anna") == ["a", "bcd"]
    merge(store)
    assert of_key(store, "anna") == ["abcd"]


def test_a_fold_does_not_reach_over_rows_that_a_drain_holds(files: Store) -> None:
    store = orders(files, CONCATENATED)
    for value in "ab":
        load(store, "anna", value)
    put(store, "anna", "c")
    load(store, "anna", "d")
    with held(store, ROWS):
        merge(store)
        assert of_key(store, "anna") == ["ab", "c", "d"]
    merge(store)
    assert of_key(store, "anna") == ["abcd"]


def test_a_fold_does_not_reach_over_what_waits_in_an_older_layout(files: Store) -> None:
    """A long transaction keeps to the layout in which it has begun, though what was there before it was moved."""
    store = orders(files, CONCATENATED)
    load(store, "anna", "a")
    late = store.transaction(long=True)
    with late as tx:
        tx.queue("orders").add_batch(pa.table({"key": ["anna"], "value": ["b"]}))
        store.alter_queue("orders", buckets=20, buckets_per_range=10, guard="seq")
        assert store.compact("orders", older_layouts=True).inputs == 1
    load(store, "anna", "c")
    merge(store)
    assert sorted(of_key(store, "anna")) == ["a", "c"], "b waits in the older layout"
    assert store.compact("orders", older_layouts=True).inputs == 1
    merge(store)
    assert of_key(store, "anna") == ["abc"]


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


def index(entry: Entry) -> Iterator[Put | Delete]:
    """Export an index: a record for each pair of a value and a key that has it."""
    old, new = entry.value["old"], entry.value["new"]
    if old is not None:
        yield Delete("index", f"{old}/{entry.key}")
    if new is not None:
        yield Put("index", f"{new}/{entry.key}", {})


def indexed(sink: MemorySink) -> set[str]:
    return {name.decode() for _, name in sink.records()}


def chain(store: Store, *values: Any, key: str = "anna", in_rows: bool = False) -> None:
    for old, new in zip(values, values[1:], strict=False):
        (put if in_rows else load)(store, key, {"old": old, "new": new})


def test_pairs_become_one_pair(files: Store) -> None:
    store = orders(files, "old_new")
    chain(store, None, 1, 2)
    chain(store, 2, 3, in_rows=True)
    merge(store)
    assert of_key(store, "anna") == [{"old": None, "new": 3}]
    sink = MemorySink()
    drained(store, sink, exporter=index)
    assert indexed(sink) == {"3/anna"}


def test_what_a_dead_drain_has_brought_is_not_folded_away(files: Store) -> None:
    """The index would keep the value in between for ever: no entry would name it any more."""
    store = orders(files, "old_new")
    chain(store, None, 1, 2)
    sink = MemorySink()
    apply = dies_at(sink, 0)
    with pytest.raises(ExportQueueError, match="enough"):
        drained(store, sink, exporter=index)
    sink.apply = apply  # type: ignore[method-assign]
    assert indexed(sink) == {"2/anna"}
    chain(store, 2, 1, 3)
    merge(store)
    assert of_key(store, "anna") == [{"old": None, "new": 1}, {"old": 1, "new": 2}, {"old": 2, "new": 3}]
    drained(store, sink, exporter=index)
    assert indexed(sink) == {"3/anna"}


def test_a_dead_letter_that_comes_back_is_not_folded(files: Store) -> None:
    """What lies behind it has reached the sink: a value may have been left there and come again."""
    store, sink = orders(files, "old_new"), MemorySink()
    refused = [1]

    def refusing(entry: Entry) -> Iterator[Put | Delete]:
        if entry.value["new"] in refused:
            raise ValueError("not yet")
        yield from index(entry)

    chain(store, 0, 1, in_rows=True)
    drained(store, sink, exporter=refusing)
    refused.clear()
    chain(store, 1, 2, 1, in_rows=True)
    drained(store, sink, exporter=refusing)
    assert store.dead_letters.retry("orders") == 1
    chain(store, 1, 4, 5)
    merge(store)
    assert of_key(store, "anna") == [{"old": 0, "new": 1}, {"old": 1, "new": 5}]
    drained(store, sink, exporter=refusing)
    assert indexed(sink) == {"5/anna"}


def test_a_drain_that_has_lost_its_locks_looks_at_nothing_that_is_folded(
    files: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = orders(files, "old_new")
    chain(store, None, 1, 2)
    sink, ask = MemorySink(), queries.folds.are_folded

    def stands_still(work: Any, queue: int) -> bool:
        with store.database.begin() as other:
            other.connection.execute(schema.lock.update().values(revoked=True))
        merge(store)
        return ask(work, queue)

    monkeypatch.setattr(queries.folds, "are_folded", stands_still)
    with pytest.raises(LeaseLost):
        drained(store, sink, exporter=index)
    assert indexed(sink) == set()
    assert of_key(store, "anna") == [{"old": None, "new": 2}]


@pytest.mark.parametrize(
    ("coalesce", "words"),
    [
        (FAILING, "it raised ValueError"),
        ("old_new", r"expected an object .*, found str"),
        ("tests.integration.nowhere:fold", "cannot be imported"),
    ],
)
def test_a_fold_that_fails_changes_nothing(files: Store, tmp_path: Path, coalesce: str, words: str) -> None:
    store = orders(files, coalesce)
    for value in ("secret a", "secret b"):
        bulk.load(store, many(20, orjson.dumps(value)))
    before, there = waits(store), segments(store)
    on_disk = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(FoldError, match=words) as raised:
        merge(store)
    assert coalesce in raised.value.message
    assert "secret" not in str(raised.value)
    assert (waits(store), segments(store)) == (before, there)
    assert set(tmp_path.rglob("*.parquet")) <= on_disk
    with store.database.read() as work:
        assert work.connection.scalar(sa.select(sa.func.count()).select_from(schema.lock)) == 0
        assert work.connection.scalar(sa.select(sa.func.count()).select_from(schema.active)) == 0
    store.alter_queue("orders", coalesce="latest")
    assert merge(store).superseded == 20


def test_the_option_is_stored_and_altered_at_any_time(files: Store) -> None:
    store = orders(files, None)
    with pytest.raises(InvalidArgument, match="'latest', 'old_new'"):
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
    for unknown in ("last", "", "nowhere:"):
        with pytest.raises(InvalidArgument, match="'latest', 'old_new'"):
            store.alter_queue("orders", coalesce=unknown)
    assert store.alter_queue("orders", buckets_per_range=2, guard="seq").coalesce == "latest"
    assert store.alter_queue("orders", coalesce=False).coalesce is None


def test_a_fold_begins_with_what_comes_after_its_option(files: Store) -> None:
    """A drain that does not know of it may have brought what is there."""
    store = orders(files, None)
    load(store, "anna", "a")
    load(store, "anna", "b")
    store.alter_queue("orders", coalesce=CONCATENATED)
    load(store, "anna", "c")
    load(store, "anna", "d")
    merge(store)
    assert of_key(store, "anna") == ["a", "b", "cd"]
    store.alter_queue("orders", coalesce="latest")
    with store.database.read() as work:
        assert not queries.folds.are_folded(work, store.queue("orders").number)
    store.alter_queue("orders", coalesce=CONCATENATED)
    load(store, "anna", "e")
    load(store, "anna", "f")
    merge(store)
    assert of_key(store, "anna") == ["a", "b", "cd", "ef"]


def test_nothing_is_folded_while_it_is_unknown_what_drains_look_at(
    files: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = orders(files, None)

    def dies(*_: object) -> None:
        raise ExportQueueError("dead")

    with monkeypatch.context() as patch:
        patch.setattr(queries.folds, "note_look", dies)
        with pytest.raises(ExportQueueError, match="dead"):
            store.alter_queue("orders", coalesce=CONCATENATED)
    for value in "ab":
        load(store, "anna", value)
    merge(store)
    assert of_key(store, "anna") == ["a", "b"]
    drained(store, MemorySink())
    for value in "cd":
        load(store, "anna", value)
    merge(store)
    assert of_key(store, "anna") == ["cd"]


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
    store.alter_queue("orders", coalesce=CONCATENATED)
    for value in "ab":
        load(store, "anna", value)
    for reader in ("states", "events", "later"):
        assert compact(store.database, f"orders/{reader}", wanted=FEW).superseded == 1
    store.unsubscribe("orders", "later", discard=True, who="anna")
    store.maintain()
    with store.database.read() as work:
        assert work.connection.scalar(sa.select(sa.func.count()).select_from(schema.fold)) == 3


@pytest.mark.parametrize("coalesce", ["latest", "old_new"])
def test_what_was_coalesced_and_drained_does_not_come_back_from_its_inputs(files: Store, coalesce: str) -> None:
    store, sink = orders(files, coalesce, buckets=1, buckets_per_range=1), MemorySink()
    for key in ("a", "b", "c", "d"):
        chain(store, None, 1, 2, 3, key=key)
    chain(store, 3, 4, key="d", in_rows=True)
    merge(store)
    apply = dies_at(sink, 2)
    exporter = index if coalesce == "old_new" else None
    with pytest.raises(ExportQueueError, match="enough"):
        drained(store, sink, exporter=exporter, chunk_rows=1)
    sink.apply = apply  # type: ignore[method-assign]
    left = {row[1] for row in waits(store)}
    assert len(left) == len(waits(store)) < 4
    assert b"d" in left
    (path,) = Path(str(store.database.segments)).rglob("compaction-*.parquet")
    path.unlink()
    found = store.dead_letters.fall_back("orders", str(path))
    assert found.given_up == 1
    assert {row[1] for row in waits(store)} == left
    drained(store, sink, exporter=exporter)
    assert indexed(sink) == ({"3/a", "3/b", "3/c", "3/d"} if coalesce == "old_new" else set("abcd"))


@pytest.mark.parametrize("moment", STEPS)
def test_a_compaction_that_is_killed_folds_once_or_not_at_all(
    files: Store, open_store: Callable[[], Store], moment: str
) -> None:
    store = orders(files, CONCATENATED)
    for value in "abc":
        bulk.load(store, many(10, orjson.dumps(value)))

    def work() -> None:
        def die(step: str) -> None:
            if step == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        compaction.reached = die
        with open_store() as mine:
            mine.database.segments = store.database.segments
            compact(mine.database, "orders", wanted=FEW, owner=Owner("compaction"))

    process = fork.Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert of_key(store, "key-1") == (["abc"] if moment == "published" else ["a", "b", "c"])
    compact(store.database, "orders", wanted=FEW, owner=Owner("compaction"))
    assert {value for row in waits(store) for value in [row[3]]} == {b'"abc"'}
    assert len(waits(store)) == 10


numbers = iter(range(10**6))
keys = st.sampled_from(["anna", "bert", "carl"])
steps = st.one_of(
    st.tuples(st.sampled_from(["load", "load", "put", "large"]), keys, st.sampled_from([None, "x", "y", "z"])),
    st.tuples(st.sampled_from(["compact", "compact some", "drain", "die", "refuse", "retry"]), st.integers(0, 3)),
)


@pytest.mark.parametrize("coalesce", ["latest", "old_new"])
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(course=st.lists(steps, min_size=6, max_size=24))
def test_a_sink_ends_as_without_compaction_whatever_is_merged_when(
    files: Store, coalesce: str, course: list[tuple[Any, ...]]
) -> None:
    follow_course(files, coalesce, course)


@pytest.mark.full("a minute: long courses, on PostgreSQL too")
@pytest.mark.parametrize("coalesce", ["latest", "old_new"])
@pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(course=st.lists(steps, min_size=15, max_size=40))
def test_a_sink_ends_as_without_compaction_over_long_courses(
    files: Store, coalesce: str, course: list[tuple[Any, ...]]
) -> None:
    follow_course(files, coalesce, course)


def follow_course(store: Store, coalesce: str, course: list[tuple[Any, ...]]) -> None:
    """Change values of keys, merge and drain in any order, and compare the sink with the last values."""
    queue = f"orders-{next(numbers)}"
    store.configure_queue(queue, buckets=2, buckets_per_range=2, coalesce=coalesce)
    sink, current, added, dropped = MemorySink(), dict[str, Any](), 0, 0
    refused: list[int] = []

    def export(entry: Entry) -> Iterator[Put | Delete]:
        if refused and entry.seq % 2 == refused[0] % 2:
            raise ValueError("not yet")
        if coalesce == "old_new":
            yield from index(entry)
        elif entry.value["new"] is None:
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
    if coalesce == "old_new":
        assert indexed(sink) == {f"{value}/{key}" for key, value in current.items() if value is not None}
    else:
        found = {name.decode(): orjson.loads(value)["is"] for (_, name), value in sink.records().items()}
        assert found == {key: value for key, value in current.items() if value is not None}
    assert counted(store, queue, added, dropped) + dropped == added


def counted(store: Store, queue: str, added: int, dropped: int) -> int:
    """Reconcile all books: what was added is acknowledged, dead, coalesced, or waits."""
    acknowledged = sum(report["acknowledged"] for report in store.reports(queue_id=queue, limit=1000))
    waiting = sum(unit.entries for unit in store.backlog(queue))
    assert acknowledged + store.dead_letters.count(queue) + waiting + dropped == added
    return acknowledged
