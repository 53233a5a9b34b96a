"""A function as the source of a queue's content, on both stores."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.contexts import context_of, opened_by

from export_queue import (
    ConflictError,
    EntryError,
    InvalidArgument,
    MemorySink,
    Range,
    Source,
    SqlSource,
    Store,
    StoreError,
    TableSource,
    bucket,
    drain,
)
from export_queue.core.queue import Queue, find_queue
from export_queue.core.sources import FunctionSource, find_source, function
from export_queue.core.transactions import OpenTransaction

Row = tuple[int, bytes, bytes | None]


@pytest.fixture
def queue(store: Store) -> Queue:
    store.configure_queue("q", buckets=16, buckets_per_range=4)
    with store.database.read() as work:
        return find_queue(work, "q")


def rows(store: Store, queue: Queue, source: Source, *within: Range) -> list[list[Row]]:
    with source.open(store.database, queue) as content:
        pages = [page for part in within for page in content.pages(part)]
        return [list(zip(page.buckets, page.keys, page.values, strict=True)) for page in pages]


def test_a_function_is_read_in_the_order_of_its_queue(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function, "PAGE_ROWS", 7)
    source = FunctionSource(lambda: ((f"k{n}", {"n": n} if n else None) for n in range(30)))
    wanted = sorted((bucket(key := b"k%d" % n, queue.buckets), key, b'{"n":%d}' % n if n else None) for n in range(30))
    (halves, whole) = (rows(store, queue, source, *parts) for parts in ([Range(0, 5), Range(5, 16)], [Range(0, 16)]))
    assert joined(whole) == joined(halves) == wanted
    assert max(map(len, whole)) == 7


def joined(pages: Sequence[Sequence[Row]]) -> list[Row]:
    return [row for page in pages for row in page]


def test_a_cut_is_below_every_transaction_in_progress(store: Store, queue: Queue) -> None:
    long = context_of(store, OpenTransaction(store.database, kind="long"))
    long.queue("q").add("late", 1)
    long.flush()
    with store.transaction() as tx:
        tx.queue("q").add("newer", 1)
        newer = tx.id
    with FunctionSource(list).open(store.database, queue) as content:
        assert content.cut < opened_by(long).id < newer
    opened_by(long).commit()
    with FunctionSource(list).open(store.database, queue) as content:
        assert content.cut >= newer


def test_what_is_no_content_is_refused(store: Store, queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="each key once"):
        rows(store, queue, FunctionSource(lambda: [("a", 1), ("a", 1)]))
    for nothing in (None, 7):
        with pytest.raises(InvalidArgument, match="pairs of key and value, found"):
            rows(store, queue, FunctionSource(lambda nothing=nothing: nothing))  # type: ignore[arg-type, misc]
    with pytest.raises(InvalidArgument, match="pairs of key and value, found str"):
        rows(store, queue, FunctionSource(lambda: ["ab"]))  # type: ignore[list-item, return-value]
    with pytest.raises(EntryError):
        rows(store, queue, FunctionSource(lambda: [(7, 1)]))


@pytest.fixture
def prices(store: Store) -> Store:
    store.configure_queue("prices", buckets=16, buckets_per_range=4, subscriptions=["cache"])
    store.configure_table("prices", row="str", value="json")
    with store.transaction() as tx:
        for n in range(20):
            tx.table("prices").set(f"k{n}", "price", n)
            tx.table("prices").set(f"k{n}", "unit", "EUR")
        tx.table("prices").delete("k3", "price")
        tx.table("prices").delete("k3", "unit")
        tx.table("prices").delete("k4", "unit")
    return store


def content(store: Store, source: Source) -> dict[str, Any]:
    with store.database.read() as work:
        queue = find_queue(work, "prices")
    found = joined(rows(store, queue, source, Range(0, 16)))
    return {key.decode(): None if value is None else json.loads(value) for _, key, value in found}


def test_a_row_of_a_table_is_a_record(prices: Store) -> None:
    numbers = [n for n in range(20) if n != 3]
    all_columns = {f"k{n}": {"price": n} | ({} if n == 4 else {"unit": "EUR"}) for n in numbers}
    assert content(prices, TableSource("prices")) == content(prices, find_source("table:prices")) == all_columns
    assert content(prices, TableSource("prices", value="price")) == {f"k{n}": n for n in numbers}
    assert content(prices, TableSource("prices", value=["unit"])) == {
        f"k{n}": {"unit": "EUR"} for n in numbers if n != 4
    }
    with pytest.raises(InvalidArgument, match="has no table 'nothing'"):
        content(prices, find_source("table:nothing"))


def test_a_table_is_read_at_a_settled_cut(prices: Store) -> None:
    with prices.database.read() as work:
        queue = find_queue(work, "prices")
    late = context_of(prices, OpenTransaction(prices.database, kind="long"))
    late.table("prices").set("k0", "price", 100)
    late.flush()
    with prices.transaction() as tx:
        tx.table("prices").set("k1", "price", 100)
        newer = tx.id
    with TableSource("prices", value="price").open(prices.database, queue) as found:
        opened_by(late).commit()
        values = {
            key: value for page in found.pages(Range(0, 16)) for key, value in zip(page.keys, page.values, strict=True)
        }
        assert found.cut < opened_by(late).committed.id < newer  # type: ignore[union-attr]
    assert (values[b"k0"], values[b"k1"]) == (b"0", b"1")


def test_a_first_load_of_another_reader_does_not_hold_back_a_table(prices: Store) -> None:
    prices.subscribe("prices", "a")
    prices.subscribe("prices", "b")
    with prices.first_load("prices/a"):
        assert prices.first_load("prices/b", source="table:prices").entries == 19


def test_a_query_is_read_in_the_stores_own_database(prices: Store) -> None:
    query = "select 7 as id, 'Bern' as city, 1 as floor union all select 8, 'Chur', 2"
    assert content(prices, SqlSource(query, key="id", value="city")) == {"7": "Bern", "8": "Chur"}
    assert content(prices, SqlSource(query, key=["id", "city"], value=["floor"])) == {
        '[7,"Bern"]': {"floor": 1},
        '[8,"Chur"]': {"floor": 2},
    }
    assert content(prices, SqlSource("select 'a' as key, 1 as value")) == {"a": 1}
    with pytest.raises(InvalidArgument, match="each key once"):
        content(prices, SqlSource("select 7 as id union all select 7", key="id"))
    with pytest.raises(StoreError, match="the query failed"):
        content(prices, SqlSource("select nothing", key="id"))


@pytest.mark.parametrize("kind", ["table", "query"])
def test_a_reader_loaded_from_rows_equals_them_with_concurrent_writers(prices: Store, kind: str) -> None:
    """Each transaction writes a row and adds the same to the queue: the sink ends as the rows are."""
    with prices.database.begin() as work:
        work.connection.exec_driver_sql(f"create table {rows_of(prices)} (id varchar(9) primary key, price integer)")
    stop, errors = threading.Event(), []

    def write(first: int) -> None:
        for n in itertools.count(first, 2):
            try:
                put(prices, f"k{n % 30}", n)
            except ConflictError:
                continue
            except BaseException as error:
                errors.append(error)
                return
            if stop.is_set():
                return

    prices.subscribe("prices", "new")
    writers = [threading.Thread(target=write, args=(first,)) for first in range(2)]
    for writer in writers:
        writer.start()
    source = (
        TableSource("prices", value="price")
        if kind == "table"
        else SqlSource(f"select id, price from {rows_of(prices)}", key="id", value="price")
    )
    try:
        prices.first_load("prices/new", source=source)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert not errors
    sink = MemorySink()
    drain(prices, "prices/new", sink, sink_name="memory")
    if kind == "table":
        with prices.transaction(read_only=True) as tx:
            expected = {row: price for row, _, price in tx.table("prices").scan(columns=["price"])}
    else:
        with prices.database.read() as work:
            expected = dict(work.connection.exec_driver_sql(f"select id, price from {rows_of(prices)}").all())
    assert {key.decode(): int(value) for (_, key), value in sink.records().items()} == expected


def rows_of(store: Store) -> str:
    """Name a table of users, with its schema where there are several."""
    return "public.prices_of_users" if store.url_safe.startswith("postgresql") else "prices_of_users"


def put(store: Store, key: str, price: int) -> None:
    with store.database.begin() as work:
        with store.transaction(connection=work.connection) as tx:
            tx.table("prices").set(key, "price", price)
            tx.queue("prices").add(key, price)
        work.connection.execute(
            sa.text(f"insert into {rows_of(store)} values (:id, :price) on conflict (id) do update set price = :price"),
            {"id": key, "price": price},
        )
