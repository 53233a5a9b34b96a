"""Verify on real sinks: planted differences are found, and what is pending, dead or younger is none (I17)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.kept_entries import KeptEntries
from tests.support.planted import PLANTED, PLANTERS, Planter, opened

from export_queue import (
    Delete,
    DrainReport,
    Entry,
    InvalidArgument,
    MemorySink,
    Operations,
    Put,
    SinkBindingError,
    SinkConfigurationError,
    SqlSink,
    Store,
    VerifyReport,
    drain,
    verify,
)
from export_queue.core.sinks import CompositeSink, StoredRecords
from export_queue.core.sources import FunctionSource
from export_queue.core.store import schema
from export_queue.core.store.portable import prefix_of
from export_queue.core.verify import waiting

pytestmark = [
    pytest.mark.one_store("what is pending and dead is read by the code of drains"),
    pytest.mark.timeout(240),  # the first test with Elasticsearch waits for its server
]
SOURCE = KeptEntries("orders/kept")


@pytest.fixture
def orders(store: Store) -> Store:
    store.configure_queue("orders", buckets=16, buckets_per_range=4)
    for name in ("sink", "kept"):
        store.subscribe("orders", name)
    return store


@pytest.fixture(params=PLANTED)
def planter(request: pytest.FixtureRequest) -> Planter:
    return PLANTERS[request.param](request)


def add(store: Store, entries: dict[str, dict[str, Any] | None]) -> None:
    with store.transaction() as tx:
        for key, value in entries.items():
            tx.queue("orders").add(key, value)


def document(n: int) -> dict[str, Any]:
    return {"n": n, "city": "Zürich"}


def fill(store: Store, sink: Any) -> None:
    """Add 40 records and delete eight of them, and drain."""
    add(store, {f"r{n}": document(n) for n in range(40)})
    add(store, {f"r{n}": document(-n) for n in range(10)})
    add(store, {f"r{n}": None for n in range(32, 40)})
    deliver(store, sink)


def deliver(store: Store, sink: Any, **options: Any) -> DrainReport:
    fenced = {"on_error": "fail"} if sink.capabilities.fenced else {}
    return drain(store, "orders/sink", sink, sink_name="sink", **fenced, **options)


def check(store: Store, sink: Any, source: Any = SOURCE, **options: Any) -> VerifyReport:
    return verify(store, "orders/sink", sink, sink_name="sink", source=source, **options)


def seqs(store: Store) -> dict[str, int]:
    """Return the sequence of the latest entry of each key."""
    return {one.position.key.decode(): one.position.seq for one in store.peek("orders/kept", limit=1000)}


def test_a_sink_that_has_everything_has_no_differences(orders: Store, planter: Planter) -> None:
    with opened(planter) as sink:
        fill(orders, sink)
        report = check(orders, sink)
    assert (report.differences, report.dead, report.queued, report.younger) == (0, 0, 0, 0), report.lines()
    assert report.compared == 40
    assert report.scanned == (40 if planter.is_ranked else 32)
    assert report.ranked == planter.is_ranked
    assert report.samples == {}


def test_the_store_keeps_the_result_of_each_comparison(orders: Store) -> None:
    sink, unlike = MemorySink(), FunctionSource(lambda: [("r1", document(5))])
    fill(orders, sink)
    assert orders.finished_comparisons("orders/sink") == []
    reports = [check(orders, sink), check(orders, sink, unlike)]
    kept = orders.finished_comparisons("orders/sink")
    assert [one.report for one in kept] == reports[::-1]  # newest first, with samples
    assert kept[0].report.samples
    assert VerifyReport.from_dict({**reports[0].to_dict(), "of_a_newer_version": 1}) == reports[0]
    assert kept[0].finished_ms >= kept[1].finished_ms > 0
    assert orders.finished_comparisons() == kept
    assert orders.finished_comparisons(limit=1) == kept[:1]
    assert orders.finished_comparisons("orders/kept") == []
    with pytest.raises(SinkBindingError):
        verify(orders, "orders/sink", sink, sink_name="another", source=SOURCE)
    assert orders.finished_comparisons() == kept  # only what reached its end
    orders.unsubscribe("orders", "sink", discard=True)
    orders.subscribe("orders", "sink")
    assert orders.finished_comparisons("orders/sink") == []  # they are of a removed namesake


def test_a_result_that_the_store_does_not_keep_is_returned_all_the_same(
    orders: Store, caplog: pytest.LogCaptureFixture
) -> None:
    sink = MemorySink()
    fill(orders, sink)
    with orders.database.begin() as work:
        work.connection.execute(sa.text(f"drop view {prefix_of(work.connection)}comparisons"))
        schema.comparison.drop(work.connection)
    assert check(orders, sink).differences == 0
    assert "the store does not keep the result of this comparison" in caplog.text
    assert "export-queue init" in caplog.text


def test_ten_planted_differences_of_five_kinds_are_found(orders: Store, planter: Planter) -> None:
    with opened(planter) as sink:
        fill(orders, sink)
        latest = seqs(orders)
        for n in (11, 12):
            planter.remove(f"r{n}")
        for n in (13, 14):
            planter.write(f"r{n}", 2 * latest[f"r{n}"] + 1, {"n": n, "city": "Genève"})
        for n in (1, 2):
            planter.write(f"r{n}", 2 * latest[f"r{n + 20}"] + 1, document(n))  # as the first transaction wrote it
        for n in (32, 33):
            planter.remove(f"r{n}")
        for n in (50, 51):
            planter.write(f"r{n}", 2 * latest["r20"] + 1, document(n))
        report = check(orders, sink)
    found = {kind: sorted(one.id for one in samples) for kind, samples in report.samples.items()}
    if planter.is_ranked:
        assert found == {
            "missing": ["r11", "r12", "r32", "r33"],
            "different": ["r13", "r14"],
            "stale": ["r1", "r2"],
            "extra": ["r50", "r51"],
        }
        assert report.differences == 10
    else:  # without ranks an old document is a different one, and there are no tombstones
        assert found == {
            "missing": ["r11", "r12"],
            "different": ["r1", "r13", "r14", "r2"],
            "extra": ["r50", "r51"],
        }
    assert (report.dead, report.queued, report.younger) == (0, 0, 0)
    json.dumps(report.to_dict())
    assert "Genève" not in str(report.to_dict())
    assert "Genève" not in "\n".join(report.lines())


def test_a_rank_above_every_entry_is_reported_with_its_remedy(orders: Store, planter: Planter) -> None:
    if not planter.is_ranked:
        pytest.skip("this sink has no ranks")
    with opened(planter) as sink:
        fill(orders, sink)
        planter.write("r20", 1 << 62, document(20))
        planter.write("r34", (1 << 62) + 1, document(34))
        planter.write("r90", 2 * max(seqs(orders).values()) + 10**12, None)  # a tombstone harms nothing yet
        add(orders, {"r20": document(21)})  # pending, and it will be stale
        report = check(orders, sink)
    assert sorted(one.id for one in report.samples["ahead"]) == ["r20", "r34"]
    assert report.differences == 2
    assert "first load" in "\n".join(report.lines())


def test_pending_entries_explain_what_differs_by_them_alone(orders: Store, planter: Planter) -> None:
    with opened(planter) as sink:
        fill(orders, sink)
        add(orders, {"r20": document(200), "r21": None, "new": document(7), "r39": document(39)})
        planter.remove("r22")
        report = check(orders, sink)
        assert (report.queued, report.missing, report.differences) == (4, 1, 1), report.lines()
        deliver(orders, sink)
        report = check(orders, sink)
    assert (report.queued, report.missing, report.differences) == (0, 1, 1), report.lines()


@pytest.fixture
def memory() -> MemorySink:
    return MemorySink()


class Choosy(MemorySink):
    """A sink that cannot write some documents."""

    def render(self, operations: Operations) -> Any:
        taken = [i for i, found in enumerate(operations.documents) if b"poison" not in (found or b"")]
        records, positions = super().render(operations.take(taken))
        return records, [taken[i] for i in positions]

    def apply(self, operations: Operations) -> Any:
        from export_queue import ApplyResult, Rejection

        bad = [i for i, found in enumerate(operations.documents) if b"poison" in (found or b"")]
        result = super().apply(operations.take([i for i in range(len(operations)) if i not in bad]))
        return ApplyResult(result.written, result.stale, tuple(Rejection(i, "no") for i in bad))


class Rejecting(Choosy):
    """A sink that finds out only with the write."""

    render = MemorySink.render


def test_dead_letters_explain_differences_until_they_are_dropped(orders: Store) -> None:
    sink = Choosy()
    fill(orders, sink)
    add(orders, {"r20": {"n": "poison"}, "fresh": {"n": "poison"}})
    assert deliver(orders, sink).dead == 2
    report = check(orders, sink)
    assert (report.dead, report.differences, report.queued, report.younger) == (2, 0, 0, 0), report.lines()
    assert sorted(one.id for one in report.samples["dead"]) == ["fresh", "r20"]
    orders.dead_letters.drop("orders/sink", who="test")
    report = check(orders, sink)
    assert (report.dead, report.missing, report.differences, report.younger) == (0, 2, 2, 0), report.lines()


def test_an_old_dead_letter_explains_nothing(orders: Store, memory: MemorySink) -> None:
    add(orders, {"a": {"n": "poison"}})
    sink = Choosy()
    assert deliver(orders, sink).dead == 1
    add(orders, {"a": document(1), "b": document(1)})
    deliver(orders, sink)
    del sink._contents.documents["orders", b"a"]
    report = check(orders, sink)
    assert (report.missing, report.dead) == (1, 0)


def test_a_dead_letter_that_is_retried_between_two_reads_is_pending(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, read_dead = Rejecting(), waiting._dead
    fill(orders, sink)
    add(orders, {"r20": {"n": "poison"}})
    assert deliver(orders, sink).dead == 1

    def retry_first(*arguments: Any) -> Any:
        orders.dead_letters.retry("orders/sink")
        yield from read_dead(*arguments)

    monkeypatch.setattr(waiting, "_dead", retry_first)
    report = check(orders, sink)
    assert (report.queued, report.dead, report.differences) == (1, 0, 0), report.lines()


def test_an_entry_that_dies_while_pending_ones_are_read_is_dead(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, read_pending = Rejecting(), waiting._pending
    fill(orders, sink)
    add(orders, {"r20": {"n": "poison"}})

    def drain_first(*arguments: Any) -> Any:
        deliver(orders, sink)
        yield from read_pending(*arguments)

    monkeypatch.setattr(waiting, "_pending", drain_first)
    report = check(orders, sink)
    assert (report.queued, report.dead, report.differences) == (0, 1, 0), report.lines()


def test_an_entry_that_is_committed_and_delivered_during_the_check_is_found(
    orders: Store, memory: MemorySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(orders, memory)
    look_up, versions = memory.look_up, iter(range(100, 104))
    memory._contents.documents["orders", b"r20"] = b"{}"

    def look_up_after_a_drain(*arguments: Any) -> Any:
        if (n := next(versions, None)) is not None:
            add(orders, {"r20": document(n)})
            deliver(orders, memory)
        return look_up(*arguments)

    monkeypatch.setattr(memory, "look_up", look_up_after_a_drain)
    report = check(orders, memory)
    assert (report.differences, report.younger) == (0, 0), report.lines()
    versions = iter(range(200, 1000))
    memory._contents.documents["orders", b"r20"] = b"{}"
    report = check(orders, memory, rounds=3)
    assert (report.differences, report.younger) == (0, 1), "it changes all the time"
    versions = iter(())
    memory._contents.documents["orders", b"r20"] = b"{}"
    assert check(orders, memory).different == 1


def spread(entry: Entry) -> Iterator[Put | Delete]:
    """Two records in two collections for each entry; none of them has the key as its id."""
    for name in ("left", "right"):
        record = f"{name}-{entry.key}"
        yield Delete(name, record) if entry.value is None else Put(name, record, {"v": entry.value})


def test_records_are_those_of_the_exporter(orders: Store, memory: MemorySink) -> None:
    add(orders, {f"r{n}": document(n) for n in range(20)})
    deliver(orders, memory, exporter=spread)
    report = check(orders, memory, exporter=spread)
    assert (report.compared, report.scanned, report.differences) == (40, 40, 0)
    memory._contents.documents["left", b"left-r3"] = b"{}"
    memory._contents.ranks["right", b"right-r99"] = memory._contents.documents["right", b"right-r99"] = 3  # type: ignore[assignment]
    memory._contents.documents["right", b"right-r99"] = b"x"
    add(orders, {"r4": None, "r77": document(77)})
    report = check(orders, memory, exporter=spread)
    assert (report.different, report.extra, report.queued) == (1, 1, 4), report.lines()
    with pytest.raises(SinkBindingError, match="exporter"):
        check(orders, memory, exporter="tests.integration.test_verify:other")


def by_city(entry: Entry) -> Iterator[Put | Delete]:
    """An inverted index: the value says which record the former entry has named."""
    if entry.value["old"] is not None:
        yield Delete("cities", f"{entry.value['old']}/{entry.key}")
    if entry.value["new"] is not None:
        yield Put("cities", f"{entry.value['new']}/{entry.key}", {"n": entry.key})


async def soon() -> list[Any]:
    return []


def no_cities() -> list[Put]:
    return []


def test_records_that_are_named_by_value_are_compared_with_a_list_of_records(orders: Store, planter: Planter) -> None:
    cities: dict[str, str] = {}

    def move(**to: str | None) -> None:
        add(orders, {key: {"old": cities.get(key), "new": city} for key, city in to.items()})
        cities.update({key: city for key, city in to.items() if city})
        for key in [key for key, city in to.items() if not city]:
            del cities[key]

    def records() -> Iterator[Put]:
        for key, city in cities.items():
            yield Put("cities", f"{city}/{key}", {"n": key})

    with opened(planter) as sink:
        move(**{f"c{n}": "bern" for n in range(30)})
        deliver(orders, sink, exporter=by_city)
        move(**{f"c{n}": "chur" for n in range(10)}, c20=None)
        named = {"exporter": by_city, "records": records, "source": "state"}
        report = check(orders, sink, **named)
        assert (report.compared, report.differences, report.queued) == (29, 0, 21), report.lines()
        deliver(orders, sink, exporter=by_city)
        report = check(orders, sink, **named)
        assert (report.compared, report.differences, report.ranked, report.source) == (29, 0, False, "records")
        assert check(orders, sink, **{**named, "records": no_cities}, collections=["cities"]).extra == 29
        del cities["c25"]
        cities["c40"] = "genf"
        report = check(orders, sink, **named)
        assert (report.extra, report.missing, report.differences) == (1, 1, 2), report.lines()
        with pytest.raises((InvalidArgument, SinkConfigurationError), match="could not tell an old"):
            check(orders, sink, **named, repair=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"records": 7}, "records: expected a function, found int"),
        ({"records": soon}, "records: .*async"),
        ({"records": lambda: soon()}, "records returned a coroutine"),
        ({"source": soon}, "source: .*async"),
        ({"source": lambda: soon()}, "source returned a coroutine"),
        ({"records": "tests.integration.test_verify:nothing"}, "cannot be imported"),
        ({"records": no_cities, "source": no_cities}, "either a source or records, found both"),
        ({"records": lambda: [("a", 1)]}, "a function of records yields Put, found tuple"),
    ],
)
def test_what_yields_no_records_is_refused(orders: Store, memory: MemorySink, options: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check(orders, memory, **{"source": "state", "exporter": by_city, **options})


def test_collections_that_no_entry_names_any_more_are_read_if_they_are_named(orders: Store, memory: MemorySink) -> None:
    add(orders, {"r1": document(1)})
    deliver(orders, memory, exporter=spread)
    memory._contents.ranks["former", b"r2"] = 3
    memory._contents.documents["former", b"r2"] = b"{}"
    assert check(orders, memory, exporter=spread).differences == 0
    report = check(orders, memory, exporter=spread, collections=["former", "left"])
    assert (report.extra, report.differences, report.compared) == (1, 1, 2)
    for wrong in ("former", [""], [1]):
        with pytest.raises(InvalidArgument, match="collections: expected a list of names"):
            check(orders, memory, collections=wrong)


def other(entry: Entry) -> list[Put]:
    return [Put("other", str(entry.key), "x")]


def test_records_with_a_time_to_live_may_be_gone(orders: Store, memory: MemorySink) -> None:
    def for_a_while(entry: Entry) -> list[Put]:
        return [Put("orders", str(entry.key), "x", ttl=60)]

    add(orders, {"a": document(1), "b": document(2)})
    deliver(orders, memory, exporter=for_a_while)
    memory._contents.documents.clear()
    assert check(orders, memory, exporter=for_a_while).differences == 0


def test_swept_tombstones_are_not_missed(orders: Store, planter: Planter) -> None:
    if not planter.is_ranked or "elasticsearch" in type(planter).__name__.lower():
        pytest.skip("it has no tombstones, or its sweep waits for requests under way")
    with opened(planter) as sink:
        fill(orders, sink)
        floor = max(seqs(orders).values())
        assert sink.sweep(store_id=orders.id, floor=floor) == 8
        assert check(orders, sink).differences == 0


def test_a_function_is_compared_by_documents(orders: Store, planter: Planter) -> None:
    table = {f"r{n}": document(n) for n in range(20)}
    with opened(planter) as sink:
        add(orders, table)
        deliver(orders, sink)
        report = check(orders, sink, source=lambda: table.items())
        assert (report.differences, report.younger, report.ranked) == (0, 0, False), report.lines()
        table |= {"r3": document(33), "r50": document(50)}
        del table["r4"]
        report = check(orders, sink, source=FunctionSource(lambda: table.items()))
        assert (report.different, report.missing, report.extra, report.younger) == (1, 1, 1, 0), report.lines()


def test_what_cannot_be_compared_is_refused(orders: Store, memory: MemorySink) -> None:
    class Plain:
        capabilities = memory.capabilities
        admit, apply, close = memory.admit, memory.apply, lambda self: None

    with pytest.raises(SinkConfigurationError, match=r"a Plain, cannot be compared: it has no method scan"):
        check(orders, Plain())
    fill(orders, memory)
    with pytest.raises(SinkBindingError, match="drains into sink 'sink', found a comparison with 'MemorySink'"):
        verify(orders, "orders/sink", memory, source=SOURCE)
    with pytest.raises(InvalidArgument, match="no option speed"):
        check(orders, memory, speed=7)
    with pytest.raises(InvalidArgument, match="expected a source or a function, found int"):
        check(orders, memory, source=7)
    with pytest.raises(InvalidArgument, match="state"):  # the queue has none
        verify(orders, "orders/sink", memory, sink_name="sink")


def test_progress_is_reported(orders: Store, memory: MemorySink) -> None:
    fill(orders, memory)
    memory._contents.documents.clear()
    seen: list[Any] = []
    report = check(orders, memory, on_progress=seen.append)
    assert {one.step for one in seen} == {"source", "sink", "check"}
    assert report.missing == 32
    assert len(report.samples["missing"]) == 10


TYPED = {
    "name": "text",
    "count": "integer",
    "ratio": "real",
    "price": "numeric",
    "open": "boolean",
    "more": "json",
    "at": "timestamp",
}
ROWS: list[dict[str, Any]] = [
    {"name": "Zürich", "count": 7, "ratio": 0.1, "price": 1.1, "open": True, "more": {"b": [1, 2.5], "a": None}},
    {"name": "", "count": -(2**62), "ratio": 1e-300, "price": 12, "open": False, "more": [], "at": "2026-07-01"},
    {"name": "1e3", "count": 0, "ratio": 3, "price": 1e2, "more": {"n": 1e2, "m": 1.0, "é": "\u2028"}},
    {"at": "2026-07-01T12:00:00.123456+02:00", "more": "text", "ratio": -0.0, "price": 0.0},
    {"at": "2026-07-01 12:00:00", "more": {"deep": {"z": 1, "a": [True, False]}}, "price": -1234.5, "other": 1},
    {},
]
KEYS: dict[str, Any] = {
    "text": ("id", lambda n: f"Ä {n}"),
    "integer": ({"no": "integer"}, str),
    "uuid": ({"no": "uuid"}, lambda n: f"00000000-0000-4000-8000-{n:012d}"),
    "date": ({"day": "date"}, lambda n: f"2026-01-{n + 1:02d}"),
    "several": ({"shop": "text", "no": "integer"}, lambda n: f'["a {n}",{n}]'),
}


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"])
@pytest.mark.parametrize("kind", KEYS)
def test_columns_are_compared_by_their_types(
    orders: Store, request: pytest.FixtureRequest, database: str, kind: str
) -> None:
    """Whatever a database makes of a value, it does not differ from itself, and one that was changed does."""
    key, name = KEYS[kind]
    planter = PLANTERS[database](request)
    url = planter.options["url"]  # type: ignore[attr-defined]
    add(orders, {name(n): row for n, row in enumerate(ROWS)})
    add(orders, {name(len(ROWS)): None})
    sink = SqlSink(url, key=key, columns=TYPED)
    try:
        assert deliver(orders, sink).dead == 0
        report = check(orders, sink)
        assert (report.differences, report.dead, report.scanned) == (0, 0, len(ROWS) + 1), report.lines()
        changes = {"name": "'Genf'", "count": "8", "more": "'{}'", "ratio": "0.2"}
        for column, value in changes.items():
            with planter.engine.begin() as connection:  # type: ignore[attr-defined]
                before = connection.execute(sa.text(f"SELECT {column} FROM orders WHERE price = 1.1")).scalar_one()
                back = json.dumps(before) if isinstance(before, dict) else before
                connection.execute(sa.text(f"UPDATE orders SET {column} = {value} WHERE price = 1.1"))
            assert check(orders, sink).different == 1, column
            with planter.engine.begin() as connection:  # type: ignore[attr-defined]
                connection.execute(sa.text(f"UPDATE orders SET {column} = :back WHERE price = 1.1"), {"back": back})
            assert check(orders, sink).differences == 0, column
    finally:
        sink.close()
        planter.engine.dispose()  # type: ignore[attr-defined]


def test_parts_of_a_composite_sink_are_compared(orders: Store) -> None:
    parts = [("left", MemorySink()), ("right", MemorySink())]
    sink = CompositeSink(parts)
    fill(orders, sink)
    assert check(orders, sink).differences == 0
    del parts[0][1]._contents.documents["orders", b"r20"]
    parts[1][1]._contents.documents["orders", b"r21"] = b"x"
    report = check(orders, sink)
    assert {kind: [str(one.target) for one in found] for kind, found in report.samples.items()} == {
        "missing": ["left: orders"],
        "different": ["right: orders"],
    }


def test_many_differences_take_bounded_time_and_samples(orders: Store, memory: MemorySink) -> None:
    add(orders, {f"r{n}": document(n) for n in range(5000)})
    deliver(orders, memory)
    memory.clear()
    report = check(orders, memory)
    assert (report.missing, len(report.samples["missing"])) == (5000, 10)


def test_the_state_of_a_queue_is_the_default_source(store: Store, memory: MemorySink) -> None:
    store.configure_queue("orders", buckets=16, buckets_per_range=4, state=True)
    add(store, {f"r{n}": document(n) for n in range(40)})
    add(store, {f"r{n}": document(-n) for n in range(10)})
    add(store, {f"r{n}": None for n in range(32, 40)})
    drain(store, "orders", memory, sink_name="sink")
    report = verify(store, "orders", memory, sink_name="sink")
    assert (report.compared, report.differences, report.ranked, report.source) == (40, 0, True, "state")
    add(store, {"r30": None, "r31": document(7), "fresh": document(8)})
    memory._contents.documents.pop(("orders", b"r20"))
    memory._contents.ranks.pop(("orders", b"r39"))  # a tombstone
    report = verify(store, "orders", memory, sink_name="sink")
    assert (report.missing, report.differences, report.queued) == (2, 2, 3), report.lines()
    store.alter_queue("orders", buckets=8, buckets_per_range=2, guard="seq")
    drain(store, "orders", memory, sink_name="sink")
    report = verify(store, "orders", memory, sink_name="sink")
    assert (report.missing, report.differences, report.queued, report.younger) == (2, 2, 0, 0), report.lines()


# --- first loads ------------------------------------------------------------------------------------------------------


def load_state(store: Store, reader: str) -> None:
    """Make the first load of a reader from the state of ``orders``."""
    with store.first_load(reader) as first:
        for key, value in store.state("orders").scan():
            first.add(key, value)


@pytest.fixture
def remembered(store: Store) -> Store:
    """A store with a queue ``orders`` with a state and a subscription, and entries, some of which are drained."""
    store.configure_queue("orders", buckets=16, buckets_per_range=4, state=True, subscriptions=["sink"])
    add(store, {f"r{n}": document(n) for n in range(20)})
    drain(store, "orders/sink", MemorySink(), sink_name="old")
    add(store, {f"r{n}": None for n in range(15, 20)})
    return store


def plant_five(store: Store, sink: MemorySink, reader: str) -> None:
    """Plant one difference of each kind."""
    ranks, documents = sink._contents.ranks, sink._contents.documents
    for column in (ranks, documents):
        column.pop(("orders", b"r0"))  # type: ignore[attr-defined]
    ranks["orders", b"r1"] = 3
    documents["orders", b"r2"] = b"{}"
    ranks["orders", b"r16"], documents["orders", b"r16"] = ranks["orders", b"r4"], b"{}"
    ranks["orders", b"r3"] += 10
    report = verify(store, reader, sink, sink_name="sink")
    found = (report.missing, report.stale, report.different, report.extra, report.ahead, report.differences)
    assert found == (1, 1, 1, 1, 1, 5), report.lines()


def test_a_reader_that_began_later_equals_the_state(remembered: Store, memory: MemorySink) -> None:
    remembered.subscribe("orders", "late")
    load_state(remembered, "orders/late")
    assert verify(remembered, "orders/late", memory, sink_name="sink").queued == 15
    drain(remembered, "orders/late", memory, sink_name="sink")
    assert verify(remembered, "orders/late", memory, sink_name="sink").differences == 0
    add(remembered, {"r5": document(55), "r6": None, "r17": document(17)})
    report = verify(remembered, "orders/late", memory, sink_name="sink")
    assert (report.differences, report.queued) == (0, 3), report.lines()
    drain(remembered, "orders/late", memory, sink_name="sink")
    assert verify(remembered, "orders/late", memory, sink_name="sink").differences == 0
    memory._contents.ranks.pop(("orders", b"r6"))  # a tombstone of the subscription's own time
    assert verify(remembered, "orders/late", memory, sink_name="sink").missing == 1
    add(remembered, {"r6": None})
    drain(remembered, "orders/late", memory, sink_name="sink")
    plant_five(remembered, memory, "orders/late")


def test_a_first_load_that_is_made_and_delivered_during_the_check_is_found(
    remembered: Store, memory: MemorySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered.subscribe("orders", "late")
    assert verify(remembered, "orders/late", memory, sink_name="sink").missing == 15

    def look_up(target: str, ids: Sequence[bytes]) -> StoredRecords:
        monkeypatch.undo()
        load_state(remembered, "orders/late")
        drain(remembered, "orders/late", memory, sink_name="sink")
        return memory.look_up(target, ids)

    monkeypatch.setattr(memory, "look_up", look_up)
    report = verify(remembered, "orders/late", memory, sink_name="sink")
    assert (report.differences, report.younger) == (0, 0), report.lines()


def test_a_new_sink_that_was_loaded_equals_the_state(remembered: Store, memory: MemorySink) -> None:
    remembered.rebind("orders/sink", "sink")
    load_state(remembered, "orders/sink")
    drain(remembered, "orders/sink", memory, sink_name="sink")
    assert verify(remembered, "orders/sink", memory, sink_name="sink").differences == 0
    plant_five(remembered, memory, "orders/sink")


def test_a_new_sink_to_which_all_was_added_again_equals_the_state(store: Store, memory: MemorySink) -> None:
    store.configure_queue("orders", buckets=16, buckets_per_range=4, state=True)
    add(store, {f"r{n}": document(n) for n in range(5)} | {"gone": None})
    drain(store, "orders", MemorySink(), sink_name="old")
    store.rebind("orders", "sink")
    add(store, dict(store.state("orders").scan()))
    drain(store, "orders", memory, sink_name="sink")
    assert verify(store, "orders", memory, sink_name="sink").differences == 0


def test_a_state_that_began_later_equals_the_sink(store: Store, memory: MemorySink) -> None:
    store.configure_queue("orders", buckets=16, buckets_per_range=4)
    add(store, {f"r{n}": document(n) for n in range(20)})
    drain(store, "orders", memory, sink_name="sink")
    add(store, {f"r{n}": None for n in range(15, 20)} | {"r4": document(44)})
    store.alter_queue("orders", state=True)
    with store.first_load(store.state("orders").id) as first:
        for n in range(15):
            first.add(f"r{n}", document(44 if n == 4 else n))
    report = verify(store, "orders", memory, sink_name="sink")
    assert (report.differences, report.queued) == (0, 6), report.lines()
    add(store, {"r5": document(55), "r6": None})
    drain(store, "orders", memory, sink_name="sink")
    assert verify(store, "orders", memory, sink_name="sink").differences == 0
    memory._contents.ranks.pop(("orders", b"r7"))
    memory._contents.documents.pop(("orders", b"r7"))
    memory._contents.documents["orders", b"r8"] = b"{}"
    report = verify(store, "orders", memory, sink_name="sink")
    assert (report.missing, report.different, report.differences) == (1, 1, 2), report.lines()
