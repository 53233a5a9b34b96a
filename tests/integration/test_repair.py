"""Repairs on real sinks: afterwards verify is clean, and nothing newer was overwritten (I9, I16, I17)."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.integration.test_verify import PLANTERS, add, check, deliver, document, fill, seqs
from tests.integration.test_verify_at_work import AtWork, drain_and_kill, produce, seeded, stage
from tests.support.kept_entries import KeptEntries
from tests.support.planted import PLANTED, Planter, opened

from export_queue import (
    Delete,
    Entry,
    InvalidArgument,
    LockNotAvailable,
    MemorySink,
    Operations,
    Put,
    Retry,
    SinkConfigurationError,
    SinkSpec,
    SinkUnavailable,
    SqlSink,
    Store,
    VerifyReport,
    drain,
    verify,
)
from export_queue.core.maintenance import safe_floor
from export_queue.core.sinks import CompositeSink
from export_queue.core.verify import repair as repair_module

pytestmark = [
    pytest.mark.one_store("what is pending and dead is read by the code of drains"),
    pytest.mark.timeout(240),  # the first test with Elasticsearch waits for its server
]
fork = multiprocessing.get_context("fork")


@pytest.fixture
def orders(store: Store) -> Store:
    store.configure_queue("orders", buckets=16, buckets_per_range=4)
    for name in ("sink", "kept"):
        store.subscribe("orders", name)
    return store


@pytest.fixture(params=[one for one in PLANTED if not one.values[0].endswith("fence")])
def planter(request: pytest.FixtureRequest) -> Planter:
    return PLANTERS[request.param](request)


@pytest.fixture
def memory() -> MemorySink:
    return MemorySink()


def mend(store: Store, sink: Any, **options: Any) -> VerifyReport:
    return check(store, sink, repair=True, **{"max_deletes": 1.0, **options})


def test_ten_planted_differences_are_repaired(orders: Store, planter: Planter) -> None:
    with opened(planter) as sink:
        fill(orders, sink)
        latest = seqs(orders)
        for n in (11, 12, 32, 33):
            planter.remove(f"r{n}")
        for n in (13, 14):
            planter.write(f"r{n}", 2 * latest[f"r{n}"] + 1, {"n": n, "city": "Genève"})
        for n in (1, 2):
            planter.write(f"r{n}", 2 * latest[f"r{n + 20}"] + 1, document(n))
        for n in (50, 51):
            planter.write(f"r{n}", 2 * latest["r20"] + 1, document(n))
        assert check(orders, sink).differences == 10
        report = mend(orders, sink)
        assert (report.differences, report.repaired, report.undeleted) == (0, 10, 0), report.lines()
        assert "10 repaired" in report.line()
        assert seqs(orders) == latest, "no sequence is new"
        add(orders, {"r13": document(130), "r50": document(500), "r32": document(320), "r11": None})
        deliver(orders, sink)
        report = mend(orders, sink)
        assert (report.differences, report.repaired, report.queued, report.younger) == (0, 0, 0, 0), report.lines()


def test_a_record_below_the_floor_is_repaired(orders: Store, planter: Planter) -> None:
    if "elasticsearch" in type(planter).__name__.lower():
        pytest.skip("its sweep waits for requests under way; the conformance suite has it")
    with opened(planter) as sink:
        fill(orders, sink)
        assert sink.sweep(store_id=orders.id, floor=max(seqs(orders).values())) == 8
        planter.remove("r20")
        planter.write("r21", 1, document(-21))
        report = mend(orders, sink)
        assert (report.differences, report.repaired) == (0, 2), report.lines()


def test_what_is_queued_dead_or_ahead_is_left_alone(orders: Store, memory: MemorySink) -> None:
    def choosy(entry: Entry) -> Iterator[Put | Delete]:
        if entry.value == {"n": "poison"}:
            raise ValueError("poison")
        yield Put("orders", entry.key, entry.value) if entry.value is not None else Delete("orders", entry.key)

    add(orders, {f"r{n}": document(n) for n in range(40)})
    deliver(orders, memory, exporter=choosy)
    add(orders, {"r1": {"n": "poison"}})
    assert deliver(orders, memory, exporter=choosy).dead == 1
    add(orders, {"r2": document(200), "r3": None})
    contents = memory._contents
    contents.ranks["orders", b"r5"] = 1 << 62
    for n in (2, 3, 4):
        contents.documents["orders", b"r%d" % n] = b"spoilt"
    contents.documents["orders", b"r5"] = b"spoilt"
    before = dict(contents.documents)
    report = mend(orders, memory, exporter=choosy)
    assert (report.repaired, report.ahead, report.differences) == (1, 1, 1), report.lines()
    assert (report.dead, report.queued) == (1, 2)
    changed = {record for record, found in contents.documents.items() if found != before.get(record)}
    assert changed == {("orders", b"r4")}


def test_no_drain_works_while_a_repair_writes(
    store: Store, memory: MemorySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a delete could be delivered and its tombstone swept, and the repair would bring the record back."""
    store.configure_queue("orders", buckets=16, buckets_per_range=4, state=True)
    store.subscribe("orders", "sink")
    fill(store, memory)
    memory._contents.documents.pop(("orders", b"r20"))
    repair = memory.repair

    def repair_late(operations: Operations) -> Any:
        add(store, {"r20": None})
        with contextlib.suppress(LockNotAvailable):
            deliver(store, memory, if_locked="fail")
        memory.sweep(store_id=store.id, floor=safe_floor(store.database).floor)
        return repair(operations)

    monkeypatch.setattr(memory, "repair", repair_late)
    report = mend(store, memory, source="state")
    assert (report.differences, report.repaired, report.queued) == (0, 1, 1), report.lines()
    assert deliver(store, memory).acknowledged == 1
    assert check(store, memory, source="state").differences == 0
    assert ("orders", b"r20") not in memory.records()


def test_a_newer_entry_that_was_delivered_before_the_locks_is_not_overwritten(
    orders: Store, memory: MemorySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(orders, memory)
    for n in (20, 21, 22):
        memory._contents.documents.pop(("orders", b"r%d" % n))
    held = repair_module._held

    def held_late(*arguments: Any, **named: Any) -> Any:
        add(orders, {"r20": document(200), "r21": None})
        deliver(orders, memory)
        add(orders, {"r22": document(220)})
        return held(*arguments, **named)

    monkeypatch.setattr(repair_module, "_held", held_late)
    report = mend(orders, memory)
    assert (report.differences, report.repaired, report.queued) == (0, 0, 1), report.lines()
    deliver(orders, memory)
    assert check(orders, memory).differences == 0


def test_too_many_extra_records_are_reported_and_none_is_deleted(orders: Store, memory: MemorySink) -> None:
    fill(orders, memory)
    for n in range(10):
        memory._contents.ranks["orders", b"other%d" % n] = 3
        memory._contents.documents["orders", b"other%d" % n] = b"{}"
    memory._contents.documents.pop(("orders", b"r20"))
    report = mend(orders, memory, max_deletes=9)
    assert (report.repaired, report.undeleted, report.extra, report.differences) == (1, 10, 10, 10)
    assert "10 extra records were not deleted" in "\n".join(report.lines())
    report = mend(orders, memory, max_deletes=10)
    assert (report.repaired, report.undeleted, report.differences) == (10, 0, 0)


def spread(entry: Entry) -> Iterator[Put | Delete]:
    for name in ("left", "right"):
        record = f"{name}-{entry.key}"
        yield Delete(name, record) if entry.value is None else Put(name, record, {"v": entry.value})


def test_records_of_an_exporter_and_of_all_parts_are_repaired(orders: Store) -> None:
    parts = [MemorySink(), MemorySink()]
    sink = CompositeSink([("one", parts[0]), ("two", parts[1])])
    add(orders, {f"r{n}": document(n) for n in range(20)})
    deliver(orders, sink, exporter=spread)
    parts[0]._contents.documents.pop(("left", b"left-r3"))
    parts[1]._contents.documents["right", b"right-r4"] = b"{}"
    for part in parts:
        part._contents.ranks["right", b"right-x"] = 3
        part._contents.documents["right", b"right-x"] = b"{}"
    report = mend(orders, sink, exporter=spread)
    assert (report.differences, report.repaired) == (0, 3), report.lines()
    assert parts[0].records() == parts[1].records()


def test_what_cannot_be_repaired_is_refused(orders: Store, memory: MemorySink, tmp_path: Path) -> None:
    class Plain(MemorySink):
        repair = None

    fill(orders, memory)
    with pytest.raises(SinkConfigurationError, match="a Plain, cannot be repaired: it has no method repair"):
        mend(orders, Plain())
    with pytest.raises(InvalidArgument, match="does not know the sequences"):
        mend(orders, memory, source=lambda: [("a", 1)])
    with pytest.raises(InvalidArgument, match="repair: expected true or false"):
        check(orders, memory, repair="yes")
    orders.configure_queue("fenced", buckets=4)
    orders.subscribe("fenced", "sink")
    sink = SqlSink(f"sqlite:///{tmp_path}/fenced.db", guard="fence")
    with contextlib.closing(sink), pytest.raises(SinkConfigurationError, match=r"guard fence"):
        verify(orders, "fenced/sink", sink, source=KeptEntries("fenced/sink"), repair=True)


class Killed(SqlSink):
    """A sink whose process is killed before or after one of its batches."""

    batches = 0

    def __init__(self, url: str, at: int, *, after: bool) -> None:
        super().__init__(url, document="json")
        self.at, self.after = at, after

    def repair(self, operations: Operations) -> Any:
        self.batches += 1
        if self.batches == self.at and not self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = super().repair(operations)
        if self.batches == self.at and self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def repair_until_killed(open_store: Callable[[], Store], url: str, at: int, after: bool) -> None:
    with open_store() as store:
        mend(store, Killed(url, at, after=after), lease_seconds=1.0)


@pytest.mark.parametrize(("at", "after"), [(1, False), (1, True), (4, True), (8, False)])
def test_a_repair_that_is_killed_is_repeated(
    orders: Store, open_store: Callable[[], Store], tmp_path: Path, at: int, after: bool
) -> None:
    url = f"sqlite:///{tmp_path}/sink.db"
    with contextlib.closing(SqlSink(url, document="json")) as sink:
        fill(orders, sink)
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.execute(sa.text("UPDATE orders SET document = '{}' WHERE _deleted = 0"))
            connection.execute(sa.text("INSERT INTO orders VALUES ('extra', '{}', 3, 0)"))
        one = fork.Process(target=repair_until_killed, args=(open_store, url, at, after))
        one.start()
        one.join(60)
        assert one.exitcode == -signal.SIGKILL
        left = check(orders, sink).differences
        assert left == 33 if (at, after) == (1, False) else 0 < left < 33
        add(orders, {"r20": document(200)})
        report = mend(orders, sink)
        assert report.differences == 0, report.lines()
        assert report.repaired in (left - 1, left), "r20 may have been repaired before the kill"
        deliver(orders, sink)
        assert check(orders, sink).differences == 0
        engine.dispose()


def test_a_record_that_was_spoilt_before_its_entry_was_acknowledged_is_repaired(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain delivers and is killed; then delivering again changes nothing."""

    class Dying(MemorySink):
        dies = True

        def apply(self, operations: Operations) -> Any:
            result = super().apply(operations)
            if self.dies:
                raise SinkUnavailable("gone")
            return result

    sink = Dying()
    add(orders, {"r1": document(1)})
    with pytest.raises(SinkUnavailable):
        drain(orders, "orders/sink", sink, sink_name="sink", retry=Retry(attempts=1))
    sink._contents.documents["orders", b"r1"] = b"{}"
    assert check(orders, sink).different == 1
    assert mend(orders, sink).differences == 0
    sink.dies = False
    deliver(orders, sink)
    assert check(orders, sink).differences == 0


def vandalise(url: str) -> Callable[[Store, Any], None]:
    """Return a step that spoils records past the sink."""
    statements = (
        "DELETE FROM orders WHERE id = :id",
        "UPDATE orders SET document = '{}' WHERE id = :id AND NOT _deleted",
        "UPDATE orders SET _rank = 1, document = '{}', _deleted = 0 WHERE id = :id",
        "INSERT INTO orders VALUES (:id || 'x', '{}', 3, 0) ON CONFLICT DO NOTHING",
    )

    def step(store: Store, generator: Any) -> None:
        engine = sa.create_engine(url, connect_args={"timeout": 30})
        with contextlib.suppress(sa.exc.OperationalError), engine.begin() as connection:
            connection.execute(sa.text(generator.choice(statements)), {"id": f"k{generator.randrange(25)}"})
        engine.dispose()

    return step


@pytest.mark.parametrize("exporter", [None, spread], ids=["copies", "exporter"])
def test_repairs_next_to_writers_drains_and_kills_overwrite_nothing_newer(
    store: Store, open_store: Callable[[], Store], tmp_path: Path, exporter: Any
) -> None:
    generator = seeded()
    url = f"sqlite:///{tmp_path}/sink.db"
    sink = SinkSpec("sql", {"url": url, "document": "json"}, name="sink")
    store.configure_queue("orders", buckets=8, buckets_per_range=2, state=True)
    store.subscribe("orders", "sink")
    stop = fork.Event()
    drains = fork.Process(target=drain_and_kill, args=(open_store, sink, exporter, stop, generator.random()))
    drains.start()
    work, vandals = AtWork(open_store), AtWork(open_store)
    options = {"exporter": exporter, "max_deletes": 1.0, "lease_seconds": 5.0, "repair": True}
    try:
        for step in (produce, produce, stage):
            work.start(step, generator.random())
        if exporter is None:
            vandals.start(vandalise(url), generator.random())
        for _ in range(4):
            verify(store, "orders/sink", sink, **options)
        vandals.stop()
        mended = verify(store, "orders/sink", sink, **options)
    finally:
        stop.set()
        drains.join()
        work.stop()
        vandals.stop()
    assert mended.differences == 0, "\n".join(mended.lines())
    repair_drain(store, sink, exporter)
    last = verify(store, "orders/sink", sink, exporter=exporter)
    assert (last.differences, last.queued, last.younger) == (0, 0, 0), "\n".join(last.lines())
    if exporter is None:
        with sa.create_engine(url).connect() as connection:
            rows = connection.execute(sa.text("SELECT id, document FROM orders WHERE NOT _deleted")).all()
        assert {key: json.loads(value) for key, value in rows} == dict(store.state("orders").scan())


def repair_drain(store: Store, sink: SinkSpec, exporter: Any) -> None:
    drain(store, "orders/sink", sink, exporter=exporter, lease_seconds=2.0)


def test_records_of_a_first_load_are_repaired_with_its_sequence(store: Store, memory: MemorySink) -> None:
    store.configure_queue("orders", buckets=16, buckets_per_range=4, state=True)
    store.subscribe("orders", "other")
    add(store, {f"r{n}": document(n) for n in range(20)})
    store.subscribe("orders", "sink")
    with store.first_load("orders/sink") as load:
        load.add_many(store.state("orders").scan())
    deliver(store, memory)
    assert check(store, memory, source="state").differences == 0
    ranks = memory.ranks()
    memory._contents.documents["orders", b"r3"] = b"{}"
    memory._contents.documents.pop(("orders", b"r4"))
    report = mend(store, memory, source="state")
    assert (report.differences, report.repaired) == (0, 2), report.lines()
    assert memory.ranks() == ranks
