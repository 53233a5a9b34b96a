"""Commands that lift a protection: each says what is lost, and leaves a mark until that is made good or declared so."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import sqlalchemy as sa
from tests.support.command_line import run_cli
from tests.support.elasticsearch import ElasticsearchServer
from tests.support.patience import AT_ONCE
from tests.support.servers import RedisServer

from export_queue import (
    Candidates,
    MemorySink,
    SinkBelongsToAnother,
    SinkLostData,
    SinkSpec,
    SqlSink,
    Store,
    drain,
    follow,
    readmit,
)
from export_queue.core.maintenance import maintain
from export_queue.core.segments import compact
from export_queue.core.store import schema

pytestmark = pytest.mark.one_store("what commands and reports say of a loss is the same on each store")

FIVE = pa.table({"key": list("abcde"), "value": ["1"] * 5})


@pytest.fixture
def shop(store: Store) -> Store:
    """A queue ``orders``, and a queue ``stock`` with the subscriptions ``search`` and ``cache``."""
    store.configure_queue("orders", buckets=4, buckets_per_range=4)
    store.configure_queue("stock", buckets=4, buckets_per_range=4, subscriptions=["search", "cache"])
    return store


@pytest.fixture
def command(shop: Store, store_url: str) -> Callable[..., Any]:
    """Run a command on the store; returns what its JSON says."""

    def run(*arguments: str, status: int = 0) -> Any:
        told = run_cli(*arguments, "--json", url=store_url, status=status)
        return told if status else json.loads(told)

    return run


def add(shop: Store, *keys: str, queue: str = "orders") -> None:
    with shop.transaction() as tx:
        for key in keys:
            tx.queue(queue).add(key, {"of": key})


def row(command: Callable[..., Any], reader: str | None) -> dict[str, Any]:
    """The line of the status that a reader has."""
    return next(line for line in command("status") if line["queue"] == reader)


def texts(command: Callable[..., Any], reader: str | None) -> list[str]:
    return [mark["text"] for mark in row(command, reader)["marks"]]


def has_lost(shop: Store, reader: str) -> bool:
    return re.search(f'^export_queue_sink_losses{{queue="{reader}"}} [1-9]', shop.metrics(), re.MULTILINE) is not None


@pytest.fixture
def described(redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file that describes a sink in Redis."""
    monkeypatch.setenv("PASSWORD_OF_REDIS", redis_server.password)
    options = {"host": redis_server.host, "port": redis_server.port, "key": "$collection:$id"}
    path = tmp_path / "cache.json"
    spec = {"kind": "redis", "options": options, "secrets": {"password": "env:PASSWORD_OF_REDIS"}, "name": "cache"}
    path.write_text(json.dumps(spec))
    return str(path)


def test_a_cache_that_was_emptied_stays_incomplete_until_somebody_promises(shop, command, described, redis_client):
    add(shop, "a", "b", "c")
    command("drain", "orders", "--sink", described)
    redis_client.flushall()
    add(shop, "d")
    assert "readmit" in command("drain", "orders", "--sink", described, status=1)
    (told,) = command("readmit", "orders", described, "--who", "anna")["incomplete"]
    assert "it may lack 3 entries that drains had delivered to it" in told
    assert told.endswith("by anna")
    for read in (1, 0):
        report = command("drain", "orders", "--sink", described)
        assert (report["read"], report["incomplete"]) == (read, [told])
    assert row(command, "orders")["incomplete"] is True
    assert texts(command, "orders") == [told]
    assert has_lost(shop, "orders")
    add(shop, "a", "b", "c")
    assert command("drain", "orders", "--sink", described)["incomplete"] == [told], "nobody has said that it is all"
    assert command("complete", "orders", "--who", "ben")["losses"] == 1
    assert command("drain", "orders", "--sink", described)["incomplete"] == []
    assert row(command, "orders")["incomplete"] is None
    (promise,) = row(command, "orders")["marks"]
    assert (promise["act"], promise["who"], promise["is_loss"]) == ("complete", "ben", False)
    assert "with 1 open loss of 3 entries" in promise["text"]
    assert not has_lost(shop, "orders")


def test_a_first_load_makes_a_subscriptions_cache_complete_again(shop, command, described, redis_client):
    add(shop, "a", "b", queue="stock")
    command("drain", "stock/cache", "--sink", described)
    redis_client.flushall()
    add(shop, "c", queue="stock")
    command("drain", "stock/cache", "--sink", described, status=1)
    command("readmit", "stock/cache", described)
    assert command("drain", "stock/cache", "--sink", described)["incomplete"]
    assert row(command, "stock/cache")["first_load"] == "missing"
    assert row(command, "stock/search")["incomplete"] is None
    with shop.first_load("stock/cache") as load:
        load.add_many([("a", {"of": "a"}), ("b", {"of": "b"})])
    report = command("drain", "stock/cache", "--sink", described)
    assert (report["incomplete"], report["first_load"]) == ([], "made")
    assert texts(command, "stock/cache") == []
    assert not has_lost(shop, "stock/cache")
    assert len(redis_client.keys("stock:*")) == 3


def test_a_first_load_that_began_before_the_loss_is_not_enough(shop, command, described, redis_client):
    shop.subscribe("stock", "late")
    add(shop, "a", queue="stock")
    command("drain", "stock/late", "--sink", described)
    with shop.first_load("stock/late") as load:
        load.add("b", {"of": "b"})
        redis_client.flushall()
        command("readmit", "stock/late", described)
    assert row(command, "stock/late")["incomplete"] is True
    assert row(command, "stock/late")["first_load"] == "missing"
    with shop.first_load("stock/late") as load:
        load.add_many([("a", {"of": "a"}), ("b", {"of": "b"})])
    assert row(command, "stock/late")["incomplete"] is None


def test_a_promise_may_be_given_with_the_command(shop, command, described, redis_client):
    add(shop, "a", queue="stock")
    command("drain", "stock/cache", "--sink", described)
    redis_client.flushall()
    assert command("readmit", "stock/cache", described, "--complete", "--who", "anna")["incomplete"] == []
    (promise,) = row(command, "stock/cache")["marks"]
    assert (promise["act"], promise["who"]) == ("complete", "anna")
    assert promise["at"].endswith("+00:00")
    assert command("drain", "stock/cache", "--sink", described)["first_load"] == "waived"
    assert command("rebind", "stock/cache", "other", "--complete")["incomplete"] == []


def test_a_refused_readmission_leaves_no_mark(shop, command):
    class Unwilling(MemorySink):
        def admit(self, *, readmit: bool = False, **facts: Any) -> None:
            if readmit:
                raise SinkBelongsToAnother("another store feeds it")
            super().admit(**facts)

    sink = Unwilling()
    add(shop, "a", queue="stock")
    drain(shop, "stock/cache", sink, sink_name="s")
    with pytest.raises(SinkBelongsToAnother):
        readmit(shop, "stock/cache", sink)
    assert shop.marks("stock/cache") == []
    assert shop.queue("stock/cache").first_load is None


@pytest.mark.parametrize("statement", ["DROP TABLE orders", "DELETE FROM orders"])
def test_a_table_that_was_emptied_leaves_a_mark(shop, command, tmp_path, statement):
    sink = SqlSink(f"sqlite:///{tmp_path}/copies.db")
    add(shop, "a", "b")
    drain(shop, "orders", sink, sink_name="copies")
    engine = sa.create_engine(f"sqlite:///{tmp_path}/copies.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP VIEW orders_live")
        connection.exec_driver_sql(statement)
    engine.dispose()
    add(shop, "c")
    with pytest.raises(SinkLostData):
        drain(shop, "orders", sink, sink_name="copies")
    (mark,) = readmit(shop, "orders", sink)
    assert (mark.act, mark.count) == ("readmit", 2)
    assert drain(shop, "orders", sink, sink_name="copies").incomplete == (mark.line(),)
    assert "copies was readmitted" in texts(command, "orders")[0]
    sink.close()


@pytest.mark.timeout(240)
def test_an_index_that_was_deleted_leaves_a_mark(shop, command, elasticsearch_server: ElasticsearchServer):
    server, queue = elasticsearch_server, f"orders_{uuid4().hex}"  # control records are those of the server
    shop.configure_queue(queue)
    sink = server.sink(server.url, username=server.user, password=server.password, index="marks-$collection")
    try:
        add(shop, "a", "b", queue=queue)
        drain(shop, queue, sink, sink_name="index")
        for index in server.request("GET", "/marks-*")[1]:
            server.request("DELETE", f"/{index}")
        add(shop, "c", queue=queue)
        with pytest.raises(SinkLostData):
            drain(shop, queue, sink, sink_name="index")
        (mark,) = readmit(shop, queue, sink)
        assert (mark.act, mark.count) == ("readmit", 2)
        assert drain(shop, queue, sink, sink_name="index").incomplete == (mark.line(),)
    finally:
        sink.close()
        for index in server.request("GET", "/marks-*")[1]:
            server.request("DELETE", f"/{index}")


def test_an_index_that_was_replaced_by_one_with_documents_may_hold_deleted_records(
    shop, elasticsearch_server: ElasticsearchServer
):
    """As after a restore of a snapshot under another name: no first load makes such a sink complete."""
    server, name = elasticsearch_server, f"orders_{uuid4().hex}"
    shop.configure_queue(name, subscriptions=["search"])
    alias, reader = f"marks-{name}", f"{name}/search"
    sink = server.sink(server.url, username=server.user, password=server.password, index="marks-$collection")
    try:
        add(shop, "a", queue=name)
        drain(shop, reader, sink, sink_name="index")
        ((index, made),) = server.request("GET", f"/{alias}")[1].items()
        document = {"of": "a"}
        server.request("DELETE", f"/{index}")
        body = {"mappings": made["mappings"], "aliases": made["aliases"]}
        assert server.request("PUT", f"/{index}-restored", body)[0] == 200
        assert server.request("PUT", f"/{index}-restored/_doc/a?refresh=true", document)[0] == 201
        with pytest.raises(SinkLostData) as refused:
            drain(shop, reader, sink, sink_name="index")
        assert str(refused.value.hint).startswith("empty it first")
        readmit(shop, reader, sink)
        with shop.first_load(reader) as load:
            load.add("b", {"of": "b"})
        (told,) = drain(shop, reader, sink, sink_name="index").incomplete
        assert "it may hold records that were deleted since" in told
    finally:
        sink.close()
        for found in server.request("GET", "/marks-*")[1]:
            server.request("DELETE", f"/{found}")


def test_a_table_that_was_replaced_by_one_with_rows_may_hold_deleted_records(shop, tmp_path):
    url = f"sqlite:///{tmp_path}/copies.db"
    spec = SinkSpec("sql", {"url": url}, name="copies")
    add(shop, "a", queue="stock")
    drain(shop, "stock/search", spec)
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM stock WHERE id <> 'a'")  # the mark alone
    with pytest.raises(SinkLostData) as refused:
        drain(shop, "stock/search", spec)
    assert str(refused.value.hint).startswith("empty it first")
    readmit(shop, "stock/search", spec)
    load_b(shop)
    (told,) = drain(shop, "stock/search", spec).incomplete
    assert "it may hold records that were deleted since" in told
    assert living(url) == {"a", "b"}


def older_copy(shop: Store, tmp_path: Path) -> tuple[str, SinkSpec]:
    """A sink of ``stock/search`` that was put back to an older state, with a record that was deleted since."""
    now, before = tmp_path / "copies.db", tmp_path / "before.db"
    spec = SinkSpec("sql", {"url": f"sqlite:///{now}"}, name="copies")
    add(shop, "a", "b", queue="stock")
    drain(shop, "stock/search", spec)
    shutil.copy(now, before)
    with shop.transaction() as tx:
        tx.queue("stock").add("a", None)
    drain(shop, "stock/search", spec)
    for path in tmp_path.glob("copies.db*"):
        path.unlink()
    shutil.copy(before, now)
    with pytest.raises(SinkLostData, match="older state") as refused:
        drain(shop, "stock/search", spec)
    assert str(refused.value.hint).startswith("empty it first")
    return f"sqlite:///{now}", spec


def load_b(shop: Store) -> None:
    with shop.first_load("stock/search") as load:
        load.add("b", {"of": "b"})


def living(url: str) -> set[str]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return set(connection.execute(sa.text("SELECT id FROM stock_live")).scalars())


def test_no_first_load_makes_a_sink_in_an_older_state_complete(shop, command, tmp_path):
    url, spec = older_copy(shop, tmp_path)
    readmit(shop, "stock/search", spec)
    load_b(shop)
    (told,) = drain(shop, "stock/search", spec).incomplete
    assert "it may hold records that were deleted since" in told
    assert living(url) == {"a", "b"}
    assert texts(command, "stock/search") == [told]
    Path(url.removeprefix("sqlite:///")).unlink()  # emptied
    with pytest.raises(SinkLostData):
        drain(shop, "stock/search", spec)
    readmit(shop, "stock/search", spec)
    load_b(shop)
    assert drain(shop, "stock/search", spec).incomplete == ()
    assert living(url) == {"b"}


def test_a_sink_in_an_older_state_that_is_emptied_first_is_complete_after_a_first_load(shop, tmp_path):
    url, spec = older_copy(shop, tmp_path)
    Path(url.removeprefix("sqlite:///")).unlink()
    readmit(shop, "stock/search", spec)
    load_b(shop)
    assert drain(shop, "stock/search", spec).incomplete == ()
    assert living(url) == {"b"}


def test_a_sink_that_a_reader_comes_back_to_is_in_an_older_state(shop):
    old, new = MemorySink(), MemorySink()
    add(shop, "a", "b", queue="stock")
    drain(shop, "stock/search", old, sink_name="old")
    shop.rebind("stock/search", "new", complete=True)
    with shop.transaction() as tx:
        tx.queue("stock").add("a", None)
    drain(shop, "stock/search", new, sink_name="new")
    shop.rebind("stock/search", "old")
    load_b(shop)
    (told,) = drain(shop, "stock/search", old, sink_name="old").incomplete
    assert "it may hold records that were deleted since" in told
    assert ("stock", b"a") in old.records()


def test_the_remedy_of_an_incomplete_sink_is_one_that_its_reader_has(shop):
    for queue, expected in (("orders", "add all records that it lacks"), ("stock/search", "make a first load")):
        sink = MemorySink()
        add(shop, "a", queue=queue.partition("/")[0])
        drain(shop, queue, sink, sink_name="cache")
        sink.clear()
        readmit(shop, queue, sink)
        (warning,) = drain(shop, queue, sink, sink_name="cache").warnings()[-1:]
        assert expected in warning


def test_a_follower_says_that_its_sink_is_incomplete(shop):
    sink = MemorySink()
    add(shop, "a")
    drain(shop, "orders", sink, sink_name="s")
    shop.rebind("orders", "s")
    add(shop, "b")
    report = follow(shop, "orders", sink, sink_name="s", stop=lambda: not shop.waiting_ranges("orders"))
    assert len(report.incomplete) == 1


def fail(entry: Any) -> list[Any]:
    raise ValueError("no")


def waive(shop: Store, command: Callable[..., Any], folder: Path) -> str:
    add(shop, "a", "b", queue="stock")
    drain(shop, "stock/cache", MemorySink(), sink_name="s")
    shop.subscribe("stock", "late")
    (told,) = command("waive-first-load", "stock/late", "--who", "anna")["marks"]
    assert told.startswith("the first load was waived: 2 entries were delivered to other readers")
    return "stock/late"


def discard(shop: Store, command: Callable[..., Any], folder: Path) -> str:
    add(shop, "a", queue="stock")
    drain(shop, "stock/cache", MemorySink(), sink_name="s", exporter=fail)
    add(shop, "b", "c", queue="stock")
    told = command("unsubscribe", "stock", "cache", "--discard", "--who", "anna")
    assert (told["entries"], told["dead_letters"]) == (2, 1)
    assert "stock/cache" not in {line["queue"] for line in command("status")}
    return "stock"


def rebind(shop: Store, command: Callable[..., Any], folder: Path) -> str:
    add(shop, "a", "b")
    drain(shop, "orders", MemorySink(), sink_name="s")
    (told,) = command("rebind", "orders", "t", "--who", "anna")["incomplete"]
    assert "from sink s to t: it may lack 2 entries that drains had delivered" in told
    return "orders"


def drop(shop: Store, command: Callable[..., Any], folder: Path) -> str:
    add(shop, "a", "b")
    drain(shop, "orders", MemorySink(), sink_name="s", exporter=fail)
    assert command("dead", "drop", "orders", "--all", "--who", "anna")[0]["dropped"] == 2
    return "orders"


def give_up(shop: Store, command: Callable[..., Any], folder: Path) -> str:
    shop.database.segments = str(folder / "segments")
    with shop.transaction(long=True) as tx:
        tx.queue("orders").add_batch(FIVE)
    (file,) = (folder / "segments").rglob("*.parquet")
    file.unlink()
    assert shop.dead_letters.give_up_file("orders", str(file), who="anna") == 5
    return "orders"


def fall_back(shop: Store, command: Callable[..., Any], folder: Path) -> str:
    shop.database.segments = str(folder / "segments")
    with shop.transaction(long=True) as tx:
        tx.queue("orders").add_batch(FIVE)
    add(shop, *map(str, range(7)))
    compact(shop.database, "orders", wanted=Candidates(least=2))
    (file,) = (folder / "segments").rglob("compaction-*.parquet")
    file.unlink()
    assert command("fall-back", "orders", str(file), "--who", "anna")["given_up"] == 7
    return "orders"


def adopt(shop: Store, command: Callable[..., Any], folder: Path) -> None:
    shop.begin()
    shop.begin()
    assert command("adopt", "--who", "anna")["ended"] == 2


def floor(shop: Store, command: Callable[..., Any], folder: Path) -> None:
    shop.create(floor=1 << 61, who="anna")
    shop.create(floor=1 << 60, who="ben")  # changes nothing


def forget(shop: Store, command: Callable[..., Any], folder: Path) -> None:
    number = int(shop.begin()["id"])
    with shop.database.begin() as work:
        work.connection.execute(schema.invalid.insert().values(id=number, since_ms=work.now(), left_to="warehouse"))
    assert shop.forget_invalid(number, who="anna")
    assert not shop.forget_invalid(number, who="ben")


def close(shop: Store, command: Callable[..., Any], folder: Path) -> None:
    shop.run(lambda tx: tx.queue("orders").add("a", 1), idempotency_key="night")
    command("idempotency", "night", "--close", "--who", "anna")
    shop.run(lambda tx: tx.queue("orders").add("a", 1), idempotency_key="morning")
    shop.close_idempotency_key("morning", has_ended=True)


ACTS: dict[str, tuple[Callable[[Store, Callable[..., Any], Path], str | None], bool, str]] = {
    "waive": (waive, False, "the first load was waived"),
    "unsubscribe": (discard, True, "subscription cache was removed with 2 entries and 1 dead letters"),
    "rebind": (rebind, True, "rebound from sink s to t"),
    "drop": (drop, True, "2 dead letters were dropped"),
    "give up": (give_up, True, "5 entries in the lost file"),
    "fall back": (fall_back, True, "7 entries in the lost file"),
    "adopt": (adopt, False, "2 transactions were in progress"),
    "floor": (floor, False, f"rebuilt with floor {1 << 61}"),
    "forget": (forget, False, "under which warehouse had left data"),
    "close key": (close, False, "idempotency key 'night' was closed"),
}


@pytest.mark.parametrize("act", ACTS)
def test_what_lifts_a_protection_leaves_a_mark_until_it_is_acknowledged(shop, command, tmp_path, act, store_url):
    run, is_loss, text = ACTS[act]
    reader = run(shop, command, tmp_path)
    (told,) = texts(command, reader)
    assert text in told
    assert told.endswith("by anna")
    assert "by anna" in run_cli("status", url=store_url)
    assert row(command, reader)["incomplete"] is (True if is_loss else None)
    if reader is not None:
        assert has_lost(shop, reader) is is_loss
    command("complete", *filter(None, [reader]), "--who", "ben")
    if reader is None:
        assert shop.marks() == []
        assert None not in {line["queue"] for line in command("status")}
    else:
        assert not any(mark.is_loss for mark in shop.marks(reader))
        assert not has_lost(shop, reader)


def test_a_removed_subscription_counts_what_waited_and_what_was_dead(shop, command, tmp_path):
    discard(shop, command, tmp_path)
    assert [mark["entries"] for mark in row(command, "stock")["marks"]] == [3]
    command("complete", "stock", "--who", "ben")
    (promise,) = texts(command, "stock")
    assert "with 1 open loss of 3 entries" in promise


def test_a_first_load_of_a_new_subscription_of_the_same_name_makes_a_removal_good(shop, command, tmp_path):
    discard(shop, command, tmp_path)
    shop.subscribe("stock", "cache")
    shop.subscribe("stock", "other")
    with shop.first_load("stock/other") as load:
        load.add("a", 1)
    assert texts(command, "stock")
    with shop.first_load("stock/cache") as load:
        load.add("a", 1)
    assert shop.marks("stock") == []


def test_a_reader_that_is_removed_leaves_its_namesake_no_marks(shop, command):
    add(shop, "a", queue="stock")
    drain(shop, "stock/cache", MemorySink(), sink_name="s")
    shop.rebind("stock/cache", "t")
    shop.unsubscribe("stock", "cache")
    shop.subscribe("stock", "cache")
    assert shop.marks("stock/cache") == []
    assert shop.marks("stock") == []


def test_a_sink_stays_incomplete_for_longer_than_records_are_kept(shop):
    add(shop, "a")
    drain(shop, "orders", MemorySink(), sink_name="s")
    shop.rebind("orders", "t")
    audit = schema.dead_letter_audit
    with shop.database.begin() as work:
        work.connection.execute(audit.update().values(id=audit.c.id - 400 * 24 * 3600 * 10**9))
    assert maintain(shop.database, patience=AT_ONCE).dead_letter_acts == 0
    assert len(shop.marks("orders")) == 1
    shop.declare_complete("orders")
    assert maintain(shop.database, patience=AT_ONCE).dead_letter_acts == 1


def test_a_promise_that_promises_nothing_is_not_recorded(shop, command):
    assert command("complete", "orders")["losses"] == 0
    command("waive-first-load", "stock/cache")
    assert shop.marks("orders") == shop.marks("stock/cache") == []
    shop.rebind("orders", "never drained")
    assert shop.marks("orders") == []
