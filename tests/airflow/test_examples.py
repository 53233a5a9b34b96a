"""Every example DAG runs, with real stores and Spark."""

from __future__ import annotations

import importlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest


def example(module: str, name: str) -> Any:
    """Write an example's DAG anew, since a test run changes it."""
    return getattr(importlib.import_module(f"export_queue.dags_examples.{module}"), name)()


@pytest.fixture
def orders(store_path: Path, run_dag: Any) -> Any:
    """A store that the example DAG has set up."""
    from export_queue.core.client import Store

    run = run_dag(example("set_up_orders", "set_up_orders"))
    assert run.state == "success"
    assert run.result("orders")["buckets"] == 1009
    with Store.open(f"sqlite:///{store_path}") as store:
        yield store


def test_setting_up_twice_changes_nothing(orders: Any, run_dag: Any) -> None:
    assert run_dag(example("set_up_orders", "set_up_orders")).state == "success"
    assert [queue.id for queue in orders.queues()] == ["orders"]


def test_recount_and_publish(orders: Any, run_dag: Any, redis_connection: Any, spark_connection: None) -> None:
    for _ in range(2):
        assert run_dag(example("recount_and_publish", "recount")).state == "success"
    assert sum(unit.entries for unit in orders.backlog("orders")) == 6

    run = run_dag(example("recount_and_publish", "publish"))

    assert run.state == "success"
    report = run.result("drain")
    assert (report["read"], report["acknowledged"], report["left"]) == (6, 6, 0)
    assert report["sink"] == "redis_default"
    assert orders.backlog("orders") == []
    found = {name: json.loads(redis_connection.get(f"customer:{name}")) for name in ("anna", "ben", "carla")}
    assert found == {"anna": {"total": 4}, "ben": {"total": 2}, "carla": {"total": 10}}


def test_bulk_load(store_path: Path, run_dag: Any, redis_connection: Any, spark_connection: None) -> None:
    run = run_dag(example("bulk_load", "bulk_load"))

    assert run.state == "success"
    report = run.result("load")
    assert (report["entries"], report["queues"], report["repeated"]) == (50, {"totals": 50}, False)
    assert run.result("drain")["acknowledged"] == 50
    assert json.loads(redis_connection.get("total:customer-7")) == {"orders": 20, "total": 9640}


def run_local_drain(run_dag: Any, connect: Any, folder: Path) -> None:
    connect("reports_default", conn_type="sqlite", host=str(folder / "reports.db"))
    run = run_dag(example("local_drain", "local_drain"))
    assert run.state == "success"
    assert run.result("drain")["acknowledged"] == 2
    rows = sqlite3.connect(folder / "reports.db").execute("SELECT page, visits FROM pages_live ORDER BY page")
    assert rows.fetchall() == [("home", 3), ("search", 1)]


def test_local_drain(store_path: Path, run_dag: Any, connect: Any, tmp_path: Path) -> None:
    run_local_drain(run_dag, connect, tmp_path)


def test_retry_dead_letters(
    store_path: Path, run_dag: Any, connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from export_queue.dags_examples import exporters

    def refuse(entry: Any) -> Any:
        raise ValueError(f"no form of {entry.key}")

    connect("reports_default", conn_type="sqlite", host=str(tmp_path / "reports.db"))
    with monkeypatch.context() as broken:
        broken.setattr(exporters, "as_row", refuse)
        failed = run_dag(example("local_drain", "local_drain"))
    assert failed.state == "failed"
    assert "2 dead letters" in str(failed.errors)

    run = run_dag(example("retry_dead_letters", "retry_dead_letters"), run_conf={"error": "OtherError"})
    assert run.result("retry") == {"requeued": 0, "left": 2}
    assert run.states()["drain"] == "failed", "they are still there"
    run = run_dag(example("retry_dead_letters", "retry_dead_letters"))
    assert run.state == "success"
    assert run.result("retry") == {"requeued": 2, "left": 0}
    rows = sqlite3.connect(tmp_path / "reports.db").execute("SELECT page, visits FROM pages_live ORDER BY page")
    assert rows.fetchall() == [("home", 3), ("search", 1)]


def test_business_tables(store_path: Path, run_dag: Any, connect: Any, tmp_path: Path) -> None:
    from export_queue import Store
    from export_queue.dags_examples import business_tables

    connect("shop_default", conn_type="sqlite", host=str(store_path))
    connect("reports_default", conn_type="sqlite", host=str(tmp_path / "reports.db"))
    with Store.open(f"sqlite:///{store_path}") as store:
        store.create()
    shop = sqlite3.connect(store_path, isolation_level=None)
    shop.execute("create table orders (number integer primary key, customer text, cents integer)")
    for taken in (2, 0):  # the second run is as a retry
        run = run_dag(example("business_tables", "business_tables"))
        assert run.state == "success", run.errors
        assert (run.result("take_orders"), run.result("drain")["acknowledged"]) == (taken, taken)
    assert shop.execute("select number from orders order by number").fetchall() == [(1,), (2,)]
    with pytest.MonkeyPatch.context() as patch:  # one order cannot be written, so nothing of either is exported
        more = [{"number": 3, "customer": "carla", "cents": 5}, {"number": 4, "customer": ["not a text"], "cents": 5}]
        patch.setattr(business_tables, "new_orders", lambda: more)
        assert run_dag(example("business_tables", "business_tables")).state == "failed"
    assert shop.execute("select count(*) from orders").fetchone() == (2,)
    with Store.open(f"sqlite:///{store_path}") as store:
        assert store.backlog("orders") == []
    rows = sqlite3.connect(tmp_path / "reports.db").execute("SELECT id FROM orders_live ORDER BY id").fetchall()
    assert rows == [("1",), ("2",)]


def test_index_by_city(store_path: Path, run_dag: Any, connect: Any, tmp_path: Path) -> None:
    from export_queue.dags_examples import index_by_city

    connect("reports_default", conn_type="sqlite", host=str(tmp_path / "reports.db"))

    def index_after(addresses: dict[str, str | None]) -> list[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(index_by_city, "new_addresses", lambda: addresses)
            run = run_dag(example("index_by_city", "index_by_city"))
        assert run.state == "success", run.errors
        rows = sqlite3.connect(tmp_path / "reports.db").execute("SELECT id FROM by_city_live ORDER BY id").fetchall()
        return [name for (name,) in rows]

    assert index_after(index_by_city.new_addresses()) == ["Bergen/ben", "Oslo/anna", "Oslo/carla"]
    assert index_after({"anna": "Bergen", "ben": None}) == ["Bergen/anna", "Oslo/carla"]
    assert index_after({"anna": "Oslo"}) == ["Oslo/anna", "Oslo/carla"]


def test_two_copies_as_one(store_path: Path, run_dag: Any, connect: Any, tmp_path: Path, redis_connection: Any) -> None:
    from export_queue.dags_examples import two_copies_as_one

    connect("reports_default", conn_type="sqlite", host=str(tmp_path / "reports.db"))

    def publish(prices: dict[str, Any]) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(two_copies_as_one, "new_prices", lambda: prices)
            return run_dag(example("two_copies_as_one", "two_copies_as_one"))

    def copies() -> tuple[dict[str, int], dict[str, int]]:
        rows = sqlite3.connect(tmp_path / "reports.db").execute("SELECT id, cents FROM prices_live").fetchall()
        cached = {key.decode().removeprefix("price:"): key for key in redis_connection.scan_iter("price:*")}
        return dict(rows), {name: json.loads(redis_connection.get(key))["cents"] for name, key in cached.items()}

    run = publish(two_copies_as_one.new_prices())
    assert run.state == "success", run.errors
    assert run.result("drain")["sink"] == "reports_default + redis_default"
    assert copies() == ({"apple": 50, "pear": 70},) * 2
    assert publish({"pear": None, "plum": 30}).state == "success"
    assert copies() == ({"apple": 50, "plum": 30},) * 2
    run = publish({"apple": "fifty", "plum": 35})  # the table refuses it, so it does not reach the cache
    assert run.state == "failed"
    assert copies() == ({"apple": 50, "plum": 35},) * 2


def test_maintenance(store_path: Path, run_dag: Any, connect: Any, tmp_path: Path) -> None:
    from export_queue.core.client import Store

    run_local_drain(run_dag, connect, tmp_path)
    run = run_dag(example("maintenance", "maintenance"))
    assert run.state == "success"
    told = run.result("clean_up")
    assert (told["more"], told["busy"], told["swept"]["sink"]) == (False, False, "reports_default")
    with Store.open(f"sqlite:///{store_path}") as store:
        assert int(told["swept"]["floor"]) > 0
        assert store.backlog("visits") == []


def test_one_transaction(orders: Any, run_dag: Any) -> None:
    for n in (1, 2):
        run = run_dag(example("one_transaction", "one_transaction"))
        assert run.state == "success", run.errors
        assert run.result("nightly.sum_up") == 14 * n
    with orders.transaction() as tx:
        assert [value for _, _, value in tx.table("sales").scan()] == [10, 10, 8]
    assert sum(unit.entries for unit in orders.backlog("sales")) == 8


def test_nightly_verify(store_path: Path, run_dag: Any, connect: Any, tmp_path: Path) -> None:
    connect("reports_default", conn_type="sqlite", host=str(tmp_path / "reports.db"))
    run = run_dag(example("nightly_verify", "nightly_verify"))
    assert run.state == "success"
    report = run.result("verify")
    assert (report["compared"], report["differences"], report["ranked"]) == (2, 0, False)


def test_mirror_a_query(store_path: Path, run_dag: Any, connect: Any, tmp_path: Path) -> None:
    connect("warehouse_default", conn_type="sqlite", host=str(tmp_path / "warehouse.db"))
    connect("reports_default", conn_type="sqlite", host=str(tmp_path / "reports.db"))
    warehouse = sqlite3.connect(tmp_path / "warehouse.db", isolation_level=None)
    warehouse.execute("create table products (id integer, name text, price numeric)")
    warehouse.executemany("insert into products values (?, ?, ?)", [(i, f"product {i}", i / 3) for i in range(20)])
    assert run_dag(example("mirror_a_query", "mirror_a_query")).state == "success"
    warehouse.execute("delete from products where id = 3")
    run = run_dag(example("mirror_a_query", "mirror_a_query"))
    assert run.state == "success"
    assert (run.result("mirror")["deleted"], run.result("mirror")["unchanged"]) == (1, 19)
    assert run.result("verify")["differences"] == 0
    assert run.result("drain")["acknowledged"] == 1


def test_mirror_a_dataframe(
    store_path: Path, run_dag: Any, connect: Any, tmp_path: Path, spark_connection: None
) -> None:
    connect("reports_default", conn_type="sqlite", host=str(tmp_path / "reports.db"))
    run = run_dag(example("mirror_a_dataframe", "mirror_a_dataframe"))
    assert run.state == "success"
    report = run.result("mirror")
    assert (report["new"], report["changed"], report["deleted"], report["unchanged"]) == (50, 0, 0, 0)
    assert run.result("drain")["acknowledged"] == 50
    assert run.result("verify")["differences"] == 0
    again = run_dag(example("mirror_a_dataframe", "mirror_a_dataframe"))
    assert (again.result("mirror")["new"], again.result("mirror")["unchanged"]) == (0, 50)
    assert again.result("drain")["acknowledged"] == 0


def test_rebuild_an_index(store_path: Path, run_dag: Any, connect: Any, tmp_path: Path) -> None:
    from export_queue import SinkSpec, Store, drain

    connect("search_default", conn_type="sqlite", host=str(tmp_path / "search.db"))
    with Store.open(f"sqlite:///{store_path}") as store:
        store.create()
        store.configure_queue("products", state=True, subscriptions=["search"])
        store.run(lambda tx: tx.queue("products").add("7", {"name": "pear"}))
        sink = SinkSpec("sql", {"url": f"sqlite:///{tmp_path / 'search.db'}"}, name="search_default")
        drain(store, "products/search", sink)
        new = {"table": "$collection-2", "columns": {"name": "text"}}
        run = run_dag(example("rebuild_an_index", "rebuild_an_index"), run_conf={"new_options": new})
        assert run.state == "success", run.errors
        assert [reader.id for reader in store.subscriptions("products")] == ["products/search-2"]
    assert (run.result("start")["new"], run.result("switch")["phase"]) == ("products/search-2", "switched")
    assert run.result("finish")["phase"] == "finished"
    rows = sqlite3.connect(tmp_path / "search.db").execute("SELECT id, name FROM products_now").fetchall()
    assert rows == [("7", "pear")]


def test_replay_a_part(store_path: Path, run_dag: Any, connect: Any, tmp_path: Path) -> None:
    from export_queue import SinkSpec, Store, drain

    connect("reports_default", conn_type="sqlite", host=str(tmp_path / "reports.db"))
    with Store.open(f"sqlite:///{store_path}") as store:
        store.create()
        store.configure_queue("products", state=True)
        store.run(lambda tx: tx.queue("products").add_many((str(n), {"n": n}) for n in range(20)))
        drain(
            store, "products", SinkSpec("sql", {"url": f"sqlite:///{tmp_path / 'reports.db'}"}, name="reports_default")
        )
    reports = sqlite3.connect(tmp_path / "reports.db", isolation_level=None)
    reports.execute("UPDATE products SET document = '{}' WHERE NOT id LIKE 'xq_%'")
    run = run_dag(example("replay_a_part", "replay_a_part"), run_conf={"prefix": "1"})
    assert run.state == "success", run.errors
    assert (run.result("replay")["replayed"], run.result("drain")["acknowledged"]) == (11, 11)
    assert (run.result("verify")["repaired"], run.result("verify")["differences"]) == (9, 0)
    rows = reports.execute("SELECT id, document FROM products_live").fetchall()
    assert {key: json.loads(document) for key, document in rows} == {str(n): {"n": n} for n in range(20)}


def test_add_a_reader(store_path: Path, run_dag: Any, connect: Any, tmp_path: Path) -> None:
    from export_queue import Store

    connect("reports_default", conn_type="sqlite", host=str(tmp_path / "reports.db"))
    with Store.open(f"sqlite:///{store_path}") as store:
        store.create()
        store.configure_queue("products", state=True, subscriptions=["search"])
        store.run(lambda tx: tx.queue("products").add_many((str(n), {"n": n}) for n in range(20)))
        store.run(lambda tx: tx.queue("products").add("3", None))
        for acknowledged in (20, 0):
            run = run_dag(example("add_a_reader", "add_a_reader"))
            assert run.state == "success", run.errors
            assert run.result("drain")["acknowledged"] == acknowledged
            assert run.result("verify")["differences"] == 0
        assert store.queue("products/reports").first_load == "made"
        assert sum(unit.entries for unit in store.backlog("products/search")) == 21
    rows = sqlite3.connect(tmp_path / "reports.db").execute("SELECT id FROM products_live").fetchall()
    assert {key for (key,) in rows} == {str(n) for n in range(20) if n != 3}


def test_compact_and_drain(store_path: Path, run_dag: Any, connect: Any, tmp_path: Path) -> None:
    connect("reports_default", conn_type="sqlite", host=str(tmp_path / "reports.db"))
    run = run_dag(example("compact_and_drain", "compact_and_drain"))
    assert run.state == "success"
    report = run.result("compact")
    assert (report["inputs"], report["outputs"], report["units"]) == (24, 2, 2)
    assert report["read"] == report["written"] == 240
    assert run.result("drain")["acknowledged"] == 240
    rows = sqlite3.connect(tmp_path / "reports.db").execute("SELECT document FROM readings_live").fetchall()
    assert [json.loads(document) for (document,) in rows] == [{"reading": 11}] * 20


@pytest.mark.full("a submission of Spark; recount_and_publish has one")
def test_compact_on_spark(orders: Any, run_dag: Any, spark_connection: None) -> None:
    import pyarrow as pa

    for number in range(8):
        with orders.transaction(long=True) as tx:
            tx.queue("orders").add_batch(pa.table({"key": ["anna", "ben"], "value": [{"total": number}] * 2}))
    run = run_dag(example("compact_on_spark", "compact_on_spark"))
    assert run.state == "success"
    foretold, report = run.result("foretell"), run.result("compact")
    assert (foretold["dry_run"], foretold["inputs"], foretold["files"]) == (True, 16, [])
    assert (report["dry_run"], report["inputs"], report["outputs"], report["lost"]) == (False, 16, 2, 0)
    assert report["read"] == report["written"] == 16
    assert sum(unit.entries for unit in orders.backlog("orders")) == 16
    assert run_dag(example("compact_on_spark", "compact_on_spark")).result("compact")["inputs"] == 0


@pytest.mark.full("a submission of Spark; recount_and_publish has one")
def test_verify_on_spark(store_path: Path, run_dag: Any, connect: Any, spark_connection: None, tmp_path: Path) -> None:
    from export_queue import SinkSpec, Store, drain

    connect("reports_default", conn_type="sqlite", host=str(tmp_path / "reports.db"))
    with Store.open(f"sqlite:///{store_path}") as store:
        store.create()
        store.configure_queue("products", state=True)
        store.run(lambda tx: tx.queue("products").add_many((str(n), {"n": n}) for n in range(20)))
        drain(
            store, "products", SinkSpec("sql", {"url": f"sqlite:///{tmp_path / 'reports.db'}"}, name="reports_default")
        )
    reports = sqlite3.connect(tmp_path / "reports.db", isolation_level=None)
    reports.execute("UPDATE products SET document = '{}' WHERE id IN ('3', '7')")
    run = run_dag(example("verify_on_spark", "verify_on_spark"))
    assert run.state == "success", run.errors
    assert (run.result("verify")["repaired"], run.result("verify")["differences"]) == (2, 0)
    rows = reports.execute("SELECT id, document FROM products_live").fetchall()
    assert {key: json.loads(document) for key, document in rows} == {str(n): {"n": n} for n in range(20)}


def test_react_to_changes(store_path: Path, run_dag: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from export_queue import Store, polling

    looks = []
    answer = polling.Poller._answer

    def change_at_second_look(poller: polling.Poller, questions: Any) -> Any:
        found = answer(poller, questions)
        looks.append([bool(one.waiting) for one in found.values()])
        if len(looks) == 2:
            change({"salt": 3, "rice": 40})
        return found

    def change(stock: dict[str, int]) -> None:
        with store.transaction() as tx:
            for name, number in stock.items():
                tx.table("goods").set(name, "stock", number)

    def written() -> Any:
        dag = example("react_to_changes", "react_to_changes")
        dag.task_dict["wait"].poke_interval = 0.05
        return dag

    monkeypatch.setattr(polling.Poller, "_answer", change_at_second_look)
    with Store.open(f"sqlite:///{store_path}") as store:
        run = run_dag(written())
        assert run.state == "success"
        assert looks[:2] == [[False], [False]], "the run waited on the trigger"
        seen = run.result("wait")
        assert (sorted(seen["rows"]), seen["more"]) == (["rice", "salt"], 0)
        assert (run.result("work_off")["done"], run.result("work_off")["left"]) == (2, 0)
        with store.transaction() as tx:
            assert list(tx.table("orders").scan()) == [("salt", "wanted", 7)]
        assert not store.waiting_rows("goods", "stock")

        change({"salt": 11})
        run = run_dag(written())
        assert run.result("wait")["rows"] == ["salt"]
        with store.transaction() as tx:
            assert list(tx.table("orders").scan()) == []


def test_wait_for_export(store_path: Path, run_dag: Any) -> None:
    from export_queue import MemorySink, Store, drain, polling

    copy = MemorySink()
    looks = []
    answer = polling.Poller._answer

    def drain_after_first_look(poller: polling.Poller, questions: Any) -> Any:
        found = answer(poller, questions)
        looks.extend(bool(one.waiting) for one in found.values())
        if len(looks) == 1:
            with Store.open(f"sqlite:///{store_path}") as store:
                drain(store, "prices", copy, sink_name="copy")
        return found

    dag = example("wait_for_export", "wait_for_export")
    dag.task_dict["wait"].poke_interval = 0.05
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polling.Poller, "_answer", drain_after_first_look)
        run = run_dag(dag)
    assert run.errors == {}
    assert looks == [False, True]
    assert [json.loads(document) for document in copy.records().values()] == [{"cents": 250}]


@pytest.mark.full("three submissions of Spark; recount_and_publish has one")
def test_all_examples_run_together_on_one_store(
    orders: Any, run_dag: Any, redis_connection: Any, spark_connection: None, connect: Any, tmp_path: Path
) -> None:
    def recount() -> None:
        assert run_dag(example("recount_and_publish", "recount")).state == "success"

    recount()
    run_local_drain(run_dag, connect, tmp_path)
    assert run_dag(example("recount_and_publish", "publish")).state == "success"
    recount()

    run = run_dag(example("mapped_drain", "mapped_drain"))

    assert run.states() == {"wait": "success", "drain[0]": "success", "drain[1]": "success"}
    reports = [run.result("drain", index) for index in range(2)]
    assert sum(report["acknowledged"] for report in reports) == 3
    assert [report["ranges"] for report in reports] == run.result("wait")
    assert redis_connection.get("customer:carla") == b'{"total":10}'
    assert {queue.id: queue.sink for queue in orders.queues()} == {
        "orders": "redis_default",
        "visits": "reports_default",
    }
    assert not any(orders.backlog(queue.id) for queue in orders.queues())
    for name in ("maintenance", "retry_dead_letters"):
        assert run_dag(example(name, name)).state == "success"
    names = {path.stem for path in Path(importlib.import_module("export_queue.dags_examples").__path__[0]).glob("*.py")}
    assert names == {
        "__init__",
        "airports",  # runs in test_airports, with all of its stores
        "bulk_load",  # has a queue of its own
        "add_a_reader",  # so has this one
        "business_tables",
        "compact_and_drain",  # so has this one
        "compact_on_spark",
        "exporters",
        "frames",
        "index_by_city",
        "sales_by_day",
        "set_up_orders",
        "two_copies_as_one",
        "recount_and_publish",
        "mapped_drain",
        "local_drain",
        "maintenance",
        "mirror_a_dataframe",
        "mirror_a_query",
        "nightly_verify",
        "one_transaction",
        "react_to_changes",
        "rebuild_an_index",
        "replay_a_part",
        "retry_dead_letters",
        "verify_on_spark",
        "wait_for_export",
    }
