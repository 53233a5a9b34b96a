"""Mirror loads: the state becomes equal to a data set, or nothing changes (I16)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.support.command_line import run_cli
from tests.support.waiting import wait_until

from export_queue import (
    Candidates,
    EntryError,
    InvalidArgument,
    MemorySink,
    MirrorRefused,
    OptionsDiffer,
    Range,
    RegistrationLost,
    SnapshotTooOld,
    StateIncomplete,
    Store,
    TransactionsInProgress,
    UnknownQueue,
    bucket,
    drain,
)
from export_queue.core.segments import compact
from export_queue.core.sources import StateContent
from export_queue.core.sources import state as states
from export_queue.core.state import MirrorOptions, trim
from export_queue.core.state import mirror as mirrors
from export_queue.core.store import queries
from export_queue.core.transactions import take_snapshot

pytestmark = pytest.mark.one_store("a mirror reads a state and adds entries as others do, on each store")


@pytest.fixture
def customers(store: Store) -> Store:
    store.configure_queue("customers", buckets=8, buckets_per_range=4, state=True)
    return store


def rows(*numbers: int, city: str = "Bern") -> list[dict[str, Any]]:
    return [{"id": number, "city": city} for number in numbers]


def in_sink(store: Store, sink: MemorySink) -> dict[bytes, bytes]:
    drain(store, "customers", sink, sink_name="memory")
    return {key: document for (_, key), document in sink.records().items()}


def test_a_sink_follows_a_data_set_deletes_included(customers: Store) -> None:
    sink = MemorySink()
    first = customers.mirror("customers", rows(1, 2, 3), key="id")
    assert (first.new, first.changed, first.deleted, first.unchanged) == (3, 0, 0, 0)
    assert in_sink(customers, sink).keys() == {b"1", b"2", b"3"}
    second = customers.mirror("customers", [*rows(1), *rows(2, city="Chur"), *rows(4)], key="id", max_deletes=1)
    assert (second.new, second.changed, second.deleted, second.unchanged) == (1, 1, 1, 1)
    assert second.samples == {"new": ["4"], "changed": ["2"], "deleted": ["3"]}
    assert in_sink(customers, sink) == {
        b"1": b'{"id":1,"city":"Bern"}',
        b"2": b'{"id":2,"city":"Chur"}',
        b"4": b'{"id":4,"city":"Bern"}',
    }


def test_an_unchanged_data_set_adds_nothing(customers: Store) -> None:
    customers.mirror("customers", rows(1, 2), key="id")
    drain(customers, "customers", MemorySink(), sink_name="memory")
    again = customers.mirror("customers", rows(2, 1), key="id")
    assert (again.added, again.unchanged) == (0, 2)
    assert customers.backlog("customers") == []


@pytest.mark.parametrize(
    ("most", "deletes", "refused"),
    [
        (0.2, 2, False),
        (0.2, 3, True),
        (0.0, 1, True),
        (1.0, 10, False),
        (3, 3, False),
        (3, 4, True),
        (1, 1, False),
        (1, 2, True),
    ],
)
def test_no_more_is_deleted_than_is_allowed(customers: Store, most: float, deletes: int, refused: bool) -> None:
    customers.mirror("customers", rows(*range(10)), key="id")
    data = rows(*range(deletes, 10))
    if refused:
        with pytest.raises(MirrorRefused, match=f"would delete {deletes} of 10 records"):
            customers.mirror("customers", data, key="id", max_deletes=most)
    else:
        customers.mirror("customers", data, key="id", max_deletes=most)
    assert customers.state("customers").count() == (10 if refused else 10 - deletes)


@pytest.mark.parametrize(("most", "allowed"), [(0.29, 29), (0.57, 57), (0.58, 58), (0.07, 7), (0.295, 29), (1.0, 100)])
def test_a_part_of_the_records_is_counted_in_decimals(most: float, allowed: int) -> None:
    assert MirrorOptions(max_deletes=most).allowed(100) == allowed


def test_a_dry_run_says_what_a_mirror_would_do(customers: Store) -> None:
    customers.mirror("customers", rows(1, 2), key="id")
    report = customers.mirror("customers", [], key="id", dry_run=True)
    assert (report.deleted, report.dry_run) == (2, True)
    assert customers.state("customers").count() == 2


def test_keys_outside_the_scope_are_left_alone(customers: Store) -> None:
    customers.mirror("customers", {"a-1": 1, "a-2": 2, "b-1": 3}.items())
    report = customers.mirror("customers", {"a-1": 1}.items(), scope="a-", max_deletes=1.0)
    assert (report.deleted, report.unchanged) == (1, 1)
    assert dict(customers.state("customers").scan()) == {"a-1": 1, "b-1": 3}
    with pytest.raises(EntryError, match="'c-1': expected one that begins with the scope 'a-'"):
        customers.mirror("customers", {"c-1": 1}.items(), scope="a-")


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        ([*rows(1), *rows(1)], {"key": "id"}, EntryError, "key '1' comes twice"),
        ([{"id": None}], {"key": "id"}, EntryError, "key 'id': expected a value"),
        ([{"id": 1.5}], {"key": "id"}, EntryError, "expected str, found float"),
        ([{"id": 1, "city": None}], {"key": "id", "value": "city"}, EntryError, "expected a value, found none"),
        ([*rows(1), {"city": "Bern"}], {"key": "id"}, EntryError, "column 'id': expected in each row"),
        ([("a", 1, 2)], {}, InvalidArgument, "expected each row to be a pair"),
        ([b"ab"], {}, InvalidArgument, "expected each row to be a pair of key and value, found bytes"),
        ("rows", {}, InvalidArgument, "expected an Arrow table or an iterable of rows, found str"),
        ({"a": 1}, {}, InvalidArgument, "expected an Arrow table or an iterable of rows, found dict"),
        (rows(1), {"key": "id", "max_deletes": 1.5}, InvalidArgument, "max_deletes"),
        (rows(1), {"key": "id", "max_deletes": -1}, InvalidArgument, "max_deletes"),
        (rows(1), {"value": "city"}, InvalidArgument, "value: expected together with key"),
    ],
)
def test_wrong_data_is_refused_by_name_and_nothing_changes(
    customers: Store, data: Any, options: Any, error: type[Exception], message: str
) -> None:
    customers.mirror("customers", rows(7), key="id")
    with pytest.raises(error, match=message):
        customers.mirror("customers", data, **options)
    assert dict(customers.state("customers").scan()) == {"7": {"id": 7, "city": "Bern"}}
    assert customers.mirror("customers", rows(7), key="id").added == 0


def test_a_key_that_comes_twice_far_apart_is_named(customers: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "_ADDED_AT_ONCE", 10)
    with pytest.raises(EntryError, match="key '3' comes twice"):
        customers.mirror("customers", [*rows(*range(25)), *rows(3), *rows(*range(30, 50))], key="id")
    assert customers.state("customers").count() == 0


def test_data_that_fails_in_the_middle_changes_nothing(customers: Store) -> None:
    customers.mirror("customers", rows(1, 2), key="id")

    def failing() -> Any:
        yield from rows(5)
        raise OSError("the connection broke")

    with pytest.raises(OSError, match="the connection broke"):
        customers.mirror("customers", failing, key="id")
    assert customers.state("customers").count() == 2


@pytest.mark.parametrize("store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
def test_a_query_that_fails_after_some_thousand_rows_changes_nothing(customers: Store, store_url: str) -> None:
    customers.mirror("customers", rows(1, 2), key="id")
    numbers = "with recursive n(id) as (select 1 union all select id + 1 from n where id < 20000) select id, "
    fails = "abs(-9223372036854775807 - id / 19000)" if store_url.startswith("sqlite") else "1 / (19000 - id)"
    complaint = run_cli(
        "mirror", "customers", "--key", "id", "--query", f"{numbers}{fails} as city from n", url=store_url, status=1
    )
    assert "the query failed" in complaint
    assert customers.state("customers").count() == 2
    assert (
        customers.backlog("customers")[0].entries + sum(one.entries for one in customers.backlog("customers")[1:]) == 2
    )
    assert customers.transactions_in_progress() == []


def test_other_columns_than_last_time_are_changes_or_an_error_by_name(customers: Store) -> None:
    def mirrored(columns: dict[str, list[Any]]) -> tuple[int, int, int, int]:
        report = customers.mirror("customers", pa.table(columns), key="id")
        return report.new, report.changed, report.deleted, report.unchanged

    assert mirrored({"id": [1, 2], "city": ["Bern", "Chur"]}) == (2, 0, 0, 0)
    assert mirrored({"id": [1, 2], "city": ["Bern", "Chur"], "zip": [3000, 7000]}) == (0, 2, 0, 0)
    assert mirrored({"id": ["1", "2"], "city": ["Bern", "Chur"], "zip": [3000, 7000]}) == (
        0,
        2,
        0,
        0,
    )  # in the document
    kept = dict(customers.state("customers").scan())
    for columns, problem in [
        ({"number": [1, 2], "city": ["Bern", "Chur"]}, "id"),
        ({"id": [1.5, 2.5], "city": ["Bern", "Chur"]}, "found (float|double)"),
        ({"id": [1, None], "city": ["Bern", "Chur"]}, "key 'id'|column 'id'"),
    ]:
        with pytest.raises((EntryError, InvalidArgument), match=problem):
            mirrored(columns)
    assert dict(customers.state("customers").scan()) == kept
    assert mirrored({"id": [1, 2], "city": ["Bern", "Chur"]}) == (0, 2, 0, 0)
    assert customers.state("customers").get("2") == {"id": 2, "city": "Chur"}


def test_scopes_that_overlap_agree_in_what_both_have(customers: Store) -> None:
    everything = {"ch-1": 1, "ch-be-1": 2, "ch-be-2": 3, "de-1": 4}
    assert customers.mirror("customers", everything.items()).new == 4
    inner = customers.mirror("customers", {"ch-be-1": 20}.items(), scope="ch-be-", max_deletes=1)
    assert (inner.changed, inner.deleted, inner.unchanged) == (1, 1, 0)
    outer = customers.mirror("customers", {"ch-1": 1, "ch-be-1": 20, "ch-be-3": 5}.items(), scope="ch-")
    assert (outer.new, outer.changed, outer.deleted, outer.unchanged) == (1, 0, 0, 2)
    assert dict(customers.state("customers").scan()) == {"ch-1": 1, "ch-be-1": 20, "ch-be-3": 5, "de-1": 4}


def test_a_mirror_is_refused_if_the_state_is_switched_off_and_on_meanwhile(customers: Store) -> None:
    def switched() -> None:
        customers.alter_queue("customers", state=False)
        customers.alter_queue("customers", state=True)

    def data() -> Any:
        switched()
        return rows(1)

    sink = MemorySink()
    customers.mirror("customers", rows(1, 2), key="id")
    with pytest.raises(UnknownQueue, match="was removed"):
        customers.mirror("customers", data, key="id", max_deletes=1.0)
    customers.first_load(customers.state("customers").id, source=lambda: (("1", rows(1)[0]), ("2", rows(2)[0])))
    older = customers.begin()
    with ThreadPoolExecutor(1) as pool:
        mirroring = pool.submit(customers.mirror, "customers", rows(1), key="id", max_deletes=1.0)
        wait_until(lambda: len(waiting_ids(customers)) == 2, "the mirror does not begin")
        switched()
        customers.abort(older)
        with pytest.raises(StateIncomplete):
            mirroring.result(60)
    assert in_sink(customers, sink).keys() == {b"1", b"2"}  # it would lack the delete, or keep what is gone
    customers.first_load(customers.state("customers").id, source=lambda: (("1", rows(1)[0]), ("2", rows(2)[0])))
    assert customers.mirror("customers", rows(1), key="id", max_deletes=1.0).deleted == 1
    assert in_sink(customers, sink).keys() == {b"1"}


def test_keys_of_other_systems_become_text(customers: Store) -> None:
    keys = [7, Decimal(8), date(2026, 1, 2), UUID(int=9), "text"]
    customers.mirror("customers", [{"id": key, "n": 1} for key in keys], key="id", value="n")
    found = dict(customers.state("customers").scan())
    assert set(found) == {"7", "8", "2026-01-02", str(UUID(int=9)), "text"}
    customers.mirror("customers", [{"a": "ch", "b": 7, "n": 1}], key=["a", "b"], value=["n"], max_deletes=1.0)
    assert dict(customers.state("customers").scan()) == {'["ch",7]': {"n": 1}}


def test_arrow_tables_and_readers_are_data(customers: Store) -> None:
    table = pa.table({"id": [1, 2], "city": ["Bern", None]})
    assert customers.mirror("customers", table, key="id").new == 2
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
    assert customers.mirror("customers", reader, key="id").unchanged == 2
    assert customers.mirror("customers", table.to_batches()[0], key="id").unchanged == 2


@pytest.mark.parametrize("in_files", [False, True])
def test_a_large_difference_is_added_in_parts(
    customers: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_files: bool
) -> None:
    customers.database.segments = str(tmp_path / "segments")
    monkeypatch.setattr(mirrors, "_FILES_FROM", 100 if in_files else 10_000)
    monkeypatch.setattr(mirrors, "_IN_A_FILE", 150)
    monkeypatch.setattr(mirrors, "_ADDED_AT_ONCE", 70)
    customers.mirror("customers", rows(*range(400)), key="id")
    assert bool(customers.bulk_files()) == in_files
    customers.mirror("customers", rows(*range(200, 500), city="Chur"), key="id", max_deletes=1.0)
    assert dict(customers.state("customers").scan()) == {str(i): {"id": i, "city": "Chur"} for i in range(200, 500)}
    sink = MemorySink()
    assert in_sink(customers, sink).keys() == {b"%d" % i for i in range(200, 500)}


def test_an_older_transaction_is_waited_for_and_then_named(customers: Store) -> None:
    value = customers.begin()
    with pytest.raises(TransactionsInProgress, match=str(value["id"])):
        customers.mirror("customers", rows(1), key="id", settle_timeout=0.1)
    read = threading.Event()

    def data() -> Any:
        read.set()
        return rows(1)

    with ThreadPoolExecutor(1) as pool:
        mirroring = pool.submit(customers.mirror, "customers", data, key="id", max_deletes=1.0)
        wait_until(lambda: len(waiting_ids(customers)) == 2, "the mirror does not begin")
        with customers.resume(value) as tx:
            tx.queue("customers").add("9", {"id": 9})
        assert not read.is_set()
        customers.commit(value)
        assert mirroring.result(60).deleted == 1
    assert customers.state("customers").count() == 1


def waiting_ids(store: Store) -> list[int]:
    with store.database.read() as work:
        return [one.id for one in queries.monitoring.holders(work)]


@pytest.mark.parametrize("scope", [None, "2"])
def test_of_two_mirrors_at_once_the_later_one_wins(customers: Store, scope: str | None) -> None:
    begun, follows = threading.Event(), threading.Event()

    def slow() -> Any:
        begun.set()
        assert follows.wait(60)
        return rows(1, 2)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(customers.mirror, "customers", slow, key="id")
        assert begun.wait(60)
        if scope is None:
            report = customers.mirror("customers", rows(2, 3), key="id")
            follows.set()
            with pytest.raises(RegistrationLost):
                first.result(60)
            assert (report.new, customers.state("customers").count()) == (2, 2)
        else:
            with pytest.raises(TransactionsInProgress):
                customers.mirror("customers", rows(2), key="id", scope=scope, settle_timeout=0.1)
            follows.set()
            assert first.result(60).new == 2
            assert customers.mirror("customers", rows(2), key="id", scope=scope).unchanged == 1


def test_a_mirror_whose_process_was_killed_holds_up_nobody(customers: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export_queue.core.transactions.invalid_ids.EXPIRE_SECONDS", 0.1)  # else 10 s pass
    killed = customers.begin()
    with customers.resume(killed) as tx:
        tx.queue("customers").mirror(rows(7), key="id")  # and then nothing more
    assert customers.mirror("customers", rows(1), key="id").new == 1
    with pytest.raises(RegistrationLost):
        customers.commit(killed)
    late = customers.begin(timeout=0.3)
    with customers.resume(late) as tx:
        tx.queue("customers").add("8", {"id": 8})
    assert customers.mirror("customers", rows(1), key="id").unchanged == 1


def test_a_state_that_begins_later_needs_a_first_load(store: Store) -> None:
    store.configure_queue("customers")
    with pytest.raises(InvalidArgument, match="has no state"):
        store.state("customers")
    with store.transaction() as tx:
        tx.queue("customers").add("old", 1)
    staged = store.begin()
    with store.resume(staged) as tx:
        tx.queue("customers").add("staged", 2)
    store.alter_queue("customers", state=True)
    store.commit(staged)
    with pytest.raises(StateIncomplete):
        store.state("customers").get("staged")
    with pytest.raises(StateIncomplete):
        store.mirror("customers", rows(1), key="id")
    with store.first_load(store.state("customers").id) as load:
        load.add("old", 1)
    assert dict(store.state("customers").scan()) == {"old": 1, "staged": 2}
    store.alter_queue("customers", state=False)
    store.alter_queue("customers", state=True)
    assert not store.state("customers").is_complete


def test_the_options_of_a_state_are_options_of_its_queue(customers: Store) -> None:
    customers.configure_queue("customers", buckets=8, buckets_per_range=4, state=True)
    with pytest.raises(OptionsDiffer):
        customers.configure_queue("customers", buckets=8, buckets_per_range=4)
    with pytest.raises(OptionsDiffer):
        customers.configure_queue("customers", buckets=8, buckets_per_range=4, state=True, history="7d")
    customers.alter_queue("customers", history="7d")
    customers.configure_queue("customers", buckets=8, buckets_per_range=4, state=True, history="7d")
    with pytest.raises(InvalidArgument, match="history"):
        customers.configure_queue("other", history="7d")
    with pytest.raises(InvalidArgument, match="is the state of queue"):
        drain(customers, "customers/@state", MemorySink(), sink_name="memory")
    assert [queue.id for queue in customers.queues()] == ["customers"]
    assert customers.subscriptions("customers") == []


def test_a_state_holds_no_tombstone_of_a_sink_back(customers: Store) -> None:
    sink = MemorySink()
    customers.mirror("customers", rows(1), key="id")
    in_sink(customers, sink)
    customers.mirror("customers", [], key="id", max_deletes=1.0)
    in_sink(customers, sink)
    assert customers.sweep_sink(sink).removed == 1


def test_former_values_are_deleted_after_the_history(customers: Store) -> None:
    customers.alter_queue("customers", history=0)
    cuts = []
    for city in ("Bern", "Chur"):
        with customers.transaction() as tx:
            tx.queue("customers").add("1", city)
            tx.queue("customers").add("2", city)
            cuts.append(tx.id)
    assert customers.state("customers").get("1", as_of=cuts[0]) == "Bern"
    with customers.transaction() as tx:
        tx.queue("customers").add("2", None)
    wait_until(lambda: trim(customers.database, limit=100) >= 4, "the former values are not deleted")
    assert dict(customers.state("customers").scan()) == {"1": "Chur"}
    with pytest.raises(SnapshotTooOld, match="older values are deleted"):
        customers.state("customers").get("1", as_of=cuts[0])


def in_a_file(store: Store, changes: dict[str, Any]) -> int:
    with store.transaction(long=True) as tx:
        tx.queue("customers").add_batch(pa.table({"key": [*changes], "value": [*changes.values()]}))
        return tx.id


def merge_state(store: Store, **wanted: int) -> None:
    compact(store.database, "customers/@state", wanted=Candidates(least=2, **wanted))


def test_former_values_are_kept_for_the_history(customers: Store, tmp_path: Path) -> None:
    customers.database.segments = str(tmp_path / "segments")
    first = in_a_file(customers, {"1": "Bern", "2": "Bern"})
    in_a_file(customers, {"1": "Chur", "2": None})
    with customers.transaction() as tx:
        tx.queue("customers").add("1", "Genf")
    with customers.transaction() as tx:
        tx.queue("customers").add("1", "Zug")
        last = tx.id
    assert trim(customers.database, limit=100) == 0
    merge_state(customers)
    assert dict(customers.state("customers").scan()) == {"1": "Zug"}
    assert dict(customers.state("customers").scan(as_of=first)) == {"1": "Bern", "2": "Bern"}
    assert dict(customers.state("customers").scan(as_of=last - 1)) == {"1": "Genf"}


def test_a_former_value_goes_only_when_its_successor_is_old(tmp_path: Path) -> None:
    now_ms = [1_800_000_000_000]
    with Store.open(f"sqlite:///{tmp_path}/store.db", clock=lambda: now_ms[0]) as store:
        store.create()
        store.configure_queue("customers", state=True, history="10s")
        cuts = []
        for city in ("Bern", "Chur"):
            with store.transaction() as tx:
                tx.queue("customers").add("1", city)
                cuts.append(tx.id)
            now_ms[0] += 15_000
        assert trim(store.database, limit=100) == 1
        store.mirror("customers", {"1": "Genf"}.items())
        now_ms[0] += 5_000
        assert trim(store.database, limit=100) == 0
        assert store.state("customers").get("1", as_of=datetime.fromtimestamp(now_ms[0] / 1000 - 9, UTC)) == "Chur"


def test_a_delete_goes_only_with_everything_older(customers: Store, tmp_path: Path) -> None:
    customers.database.segments = str(tmp_path / "segments")
    customers.alter_queue("customers", history=0)
    in_a_file(customers, {f"{i}": "x" * 2000 for i in range(100)})
    for _ in range(2):
        in_a_file(customers, {"1": None, "2": None} | dict.fromkeys([f"{i}" for i in range(3, 13)], "y"))
    merge_state(customers, small_bytes=10_000)  # without the large file
    assert customers.state("customers").count() == 98
    merge_state(customers)
    content = StateContent(customers.database, *found_state(customers))
    assert sum(len(page) for page in content.pages(Range(0, 8))) == 98
    assert customers.state("customers").count() == 98


@pytest.mark.parametrize("segments_at_once", [0, 2, 32])
def test_a_state_of_rows_and_files_is_read_in_pages(
    customers: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segments_at_once: int
) -> None:
    """Whether files are merged as columns or row by row, the pages have the latest entry of each key, in order."""
    monkeypatch.setattr(states, "PAGE_ROWS", 7)
    monkeypatch.setattr(states, "_MOST_AT_ONCE", segments_at_once)
    customers.database.segments = str(tmp_path / "segments")
    versions: dict[str, tuple[int, str | None]] = {}
    for start, value in ((0, "first"), (20, "second"), (50, None)):
        changes = {f"{n}": value for n in range(start, start + 40)}
        versions |= dict.fromkeys(changes, (in_a_file(customers, changes), value))
    with customers.transaction() as tx:
        for n in range(85, 95):
            tx.queue("customers").add(f"{n}", "row")
    content = StateContent(customers.database, *found_state(customers))
    pages = list(content.pages(Range(0, 8)))
    assert max(map(len, pages)) <= 7
    columns = ([one for page in pages for one in getattr(page, name)] for name in ("buckets", "keys", "seqs", "values"))
    found = list(zip(*columns, strict=True))
    assert [row[:2] for row in found] == sorted((bucket(key, 8), key) for key in (b"%d" % n for n in range(95)))
    for _, key, seq, value in found:
        if int(key) < 85:
            wanted_seq, wanted = versions[key.decode()]
            assert (seq, value) == (wanted_seq, None if wanted is None else b'"%s"' % wanted.encode())
        else:
            assert value == b'"row"'
    tables = [table.to_pylist() for table in content.tables(Range(0, 8))]
    assert [tuple(row.values()) for rows in tables for row in rows] == found


def found_state(store: Store) -> tuple[Any, Any, int, int]:
    snapshot = take_snapshot(store.database)
    return store.queue("customers/@state"), snapshot, snapshot.read_pointer, snapshot.read_pointer


@pytest.mark.parametrize("kind", ["parquet", "csv", "ndjson"])
def test_a_file_is_mirrored_from_the_shell(tmp_path: Path, kind: str) -> None:
    url, file = f"sqlite:///{tmp_path}/store.db", tmp_path / f"data.{kind}"
    with Store.open(url) as store:
        store.create()
        store.configure_queue("customers", state=True)
        if kind == "parquet":
            parquet.write_table(pa.table({"id": [1, 2], "city": ["Bern", "Chur"]}), file)
        else:
            lines = {"csv": "id,city\n1,Bern\n2,Chur\n", "ndjson": '{"id":1,"city":"Bern"}\n{"id":2,"city":"Chur"}\n'}
            file.write_text(lines[kind])
        arguments = ("mirror", "customers", "--key", "id", "--file", str(file))
        assert "2 new" in run_cli(*arguments, url=url)
        assert dict(store.state("customers").scan()) == {"1": {"id": 1, "city": "Bern"}, "2": {"id": 2, "city": "Chur"}}
        if kind != "csv":
            file.write_bytes(file.read_bytes()[:-5])
            assert "cannot be read" in run_cli(*arguments, url=url, status=1)
        assert store.state("customers").count() == 2


def test_a_former_state_is_brought_back_by_new_entries(customers: Store) -> None:
    sink = MemorySink()
    with customers.transaction() as tx:
        tx.queue("customers").add_many({"a-1": 1, "a-2": 2, "b-1": 3}.items())
        good = tx.id
    in_sink(customers, sink)
    customers.mirror("customers", {"a-1": 9, "b-1": 3, "b-2": 4}.items(), max_deletes=1.0)
    in_sink(customers, sink)
    state = customers.state("customers")
    foretold = state.rollback(to=good, dry_run=True)
    assert (foretold.new, foretold.changed, foretold.deleted, foretold.unchanged) == (1, 1, 1, 1)
    assert state.count() == 3
    part = state.rollback(to=good, scope="b-")
    assert (part.new, part.changed, part.deleted, part.unchanged) == (0, 0, 1, 1)
    assert dict(state.scan()) == {"a-1": 9, "b-1": 3}
    assert state.rollback(to=good).added == 2
    assert dict(state.scan()) == {"a-1": 1, "a-2": 2, "b-1": 3}
    assert in_sink(customers, sink) == {b"a-1": b"1", b"a-2": b"2", b"b-1": b"3"}
    assert state.rollback(to=good).added == 0


def test_nothing_is_brought_back_from_before_the_state_began(store: Store) -> None:
    store.configure_queue("orders", state=True)
    store.mirror("orders", [("a", 1), ("b", 2)])
    state = store.state("orders")
    for long_ago in (0, datetime(2020, 1, 1, tzinfo=UTC)):
        with pytest.raises(SnapshotTooOld, match="when it began"):
            state.rollback(to=long_ago)
        with pytest.raises(SnapshotTooOld, match="when it began"):
            state.count(as_of=long_ago)
    assert dict(state.scan()) == {"a": 1, "b": 2}
