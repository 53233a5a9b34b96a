"""What decides which record is written belongs to a reader: it is stored, filled in, and refused where it differs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.servers import RedisServer

from export_queue import (
    MemorySink,
    Put,
    SinkBelongsToAnother,
    SinkBindingError,
    SinkSpec,
    SqlSink,
    Store,
    drain,
    follow,
    readmit,
)
from export_queue.core.sinks import CompositeSink

EVERY_STORE = pytest.mark.usefixtures("store_url")
passwords: list[str] = []


def a_password() -> str:
    return passwords[-1]


@pytest.fixture
def exports(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[Store]:
    """A store on SQLite; with the mark ``EVERY_STORE`` one on each kind."""
    has_kinds = "store_url" in request.fixturenames
    with Store.open(request.getfixturevalue("store_url") if has_kinds else sqlite_url) as opened:
        opened.create()
        opened.configure_queue("customers", buckets=1, value="json")
        yield opened


@pytest.fixture
def cache(redis_server: RedisServer, redis_client: Any) -> Callable[..., SinkSpec]:
    """Describe a sink in a Redis server that holds nothing."""
    passwords.append(redis_server.password)
    fixed = {"host": redis_server.host, "port": redis_server.port}

    def describe(name: str = "cache", **options: Any) -> SinkSpec:
        return SinkSpec("redis", {**fixed, **options}, {"password": f"{__name__}:a_password"}, name=name)

    return describe


def add(exports: Store, *keys: str, queue: str = "customers") -> None:
    with exports.transaction() as tx:
        for key in keys:
            tx.queue(queue).add(key, {"id": key})


def double(entry: Any) -> list[Put]:
    return [Put(entry.queue, f"{entry.key}-{n}", entry.value) for n in range(2)]


same_by_another_name = double


def labelled(entry: Any, label: str = "plain", mark: object = None) -> list[Put]:
    return [Put(label, entry.key, entry.value)]


class Labelled:
    """An exporter that is made with an argument."""

    def __init__(self, label: str = "plain") -> None:
        self.label = label

    def export(self, entry: Any) -> list[Put]:
        return [Put(self.label, entry.key, entry.value)]


@EVERY_STORE
def test_a_drain_without_the_options_takes_those_that_are_stored(exports, cache, redis_client):
    add(exports, "1")
    drain(exports, "customers", cache(key="customer:$id", target="hash"))
    add(exports, "2")
    assert drain(exports, "customers", cache(socket_timeout=5.0)).acknowledged == 1
    assert sorted(key for key in redis_client.scan_iter() if not key.startswith(b"xq:")) == [
        b"customer:1",
        b"customer:2",
    ]
    assert redis_client.hgetall("customer:2") == {b"id": b"2"}


@EVERY_STORE
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"key": "$collection:$id"}, r"with key='customer:\$id', found a drain with key='\$collection:\$id'"),
        ({"key": "client:$id"}, "key='client"),
        ({"target": "hash"}, "target='hash'"),
        ({"key": "c:$id", "target": "set"}, "key=.*, target='set'"),
        ({"guard": "fence"}, "guard='fence'"),
    ],
)
def test_a_drain_with_other_options_is_refused_and_changes_nothing(exports, cache, redis_client, options, named):
    add(exports, "1")
    drain(exports, "customers", cache(key="customer:$id"))
    add(exports, "2")
    before = {key: redis_client.type(key) for key in redis_client.scan_iter()}
    with pytest.raises(SinkBindingError, match=named) as refused:
        drain(exports, "customers", cache(**options), on_error="fail")
    assert not refused.value.transient
    assert "export-queue rebind customers cache" in refused.value.hint
    assert {key: redis_client.type(key) for key in redis_client.scan_iter()} == before
    assert sum(unit.entries for unit in exports.backlog("customers")) == 1
    assert drain(exports, "customers", cache(key="customer:$id")).acknowledged == 1


def test_other_ways_to_write_the_same_options_are_the_same(exports, cache, tmp_path):
    add(exports, "1")
    drain(exports, "customers", cache())
    for key in (
        "$collection:$id",
        "${collection}:${id}",
        "customers:$id",
    ):  # the default, and what it comes to where nothing else is written
        add(exports, key)
        assert drain(exports, "customers", cache(key=key, target="string", guard="seq")).acknowledged == 1
    exports.configure_queue("orders", buckets=1, value="json")
    url = f"sqlite:///{tmp_path}/sink.db"
    ways: list[dict[str, Any]] = [
        {"columns": ["code", "name"], "key": "number"},
        {"columns": {"name": "text", "code": "text"}, "key": ["number"]},
        {"key": {"number": "text"}, "create_tables": False, "timeout": 5.0},
    ]
    for n, options in enumerate(ways):
        add(exports, str(n), queue="orders")
        assert drain(exports, "orders", SinkSpec("sql", {"url": url, **options}, name="reports")).acknowledged == 1
    others: list[dict[str, Any]] = [
        {"columns": ["code"]},
        {"columns": {"code": "text", "name": "json"}},
        {"key": ["id"]},
        {"table": "copy_of_$collection"},
        {"document": "json"},
    ]
    for options in others[:-1]:
        with pytest.raises(SinkBindingError, match=next(iter(options))):
            drain(exports, "orders", SinkSpec("sql", {"url": url, **options}, name="reports"))


def test_the_order_of_the_columns_of_a_key_is_part_of_it(exports, tmp_path):
    url = f"sqlite:///{tmp_path}/sink.db"
    add(exports, '["a","1"]')
    drain(exports, "customers", SinkSpec("sql", {"url": url, "key": ["region", "number"]}, name="reports"))
    with pytest.raises(SinkBindingError, match=r"key=\{'number': 'text', 'region': 'text'\}"):
        drain(exports, "customers", SinkSpec("sql", {"url": url, "key": ["number", "region"]}, name="reports"))


@pytest.mark.parametrize("given", [double, f"{__name__}:double", f"{__name__}:same_by_another_name", None])
def test_the_exporter_is_stored_by_its_name(exports, given):
    sink = MemorySink()
    add(exports, "1")
    drain(exports, "customers", sink, exporter=f"{__name__}:double")
    add(exports, "2")
    drain(exports, "customers", sink, exporter=given)
    assert sorted(record for _, record in sink.records()) == [b"1-0", b"1-1", b"2-0", b"2-1"]


def test_another_exporter_is_refused_also_in_the_place_of_none(exports):
    sink = MemorySink()
    add(exports, "1")
    drain(exports, "customers", sink)
    with pytest.raises(SinkBindingError, match="exporter='default', found a drain with exporter='.*:double'"):
        drain(exports, "customers", sink, exporter=double)


def test_an_exporter_that_cannot_be_imported_is_asked_for(exports):
    sink = MemorySink()
    add(exports, "1")
    drain(exports, "customers", sink, exporter=Labelled("german"))
    with pytest.raises(SinkBindingError, match="no other program can import") as refused:
        drain(exports, "customers", sink)
    assert "pass that exporter" in refused.value.hint
    with pytest.raises(SinkBindingError, match="exporter="):
        drain(exports, "customers", sink, exporter=Labelled)
    add(exports, "2")
    drain(exports, "customers", sink, exporter=Labelled("german"))
    assert set(sink.records()) == {("german", b"1"), ("german", b"2")}


@pytest.mark.parametrize(
    ("first", "same", "other"),
    [
        (partial(labelled, label="a"), partial(labelled, label="a"), partial(labelled, label="b")),
        (partial(labelled, mark=double), partial(labelled, mark=double), partial(labelled)),
        (Labelled("a").export, Labelled("a").export, Labelled),
    ],
)
def test_an_exporter_that_was_given_arguments_is_no_import_path(exports, first, same, other):
    sink = MemorySink()
    add(exports, "1")
    drain(exports, "customers", sink, exporter=first)
    with pytest.raises(SinkBindingError, match="no other program can import"):
        drain(exports, "customers", sink)
    with pytest.raises(SinkBindingError, match="exporter="):
        drain(exports, "customers", sink, exporter=other)
    add(exports, "2")
    assert drain(exports, "customers", sink, exporter=same).acknowledged == 1


def test_a_drain_whose_entries_are_all_set_aside_binds_to_nothing(exports):
    sink = MemorySink()
    add(exports, "1")
    assert drain(exports, "customers", sink, exporter=lambda entry: 1 / 0).dead == 1
    exports.dead_letters.retry("customers")
    assert drain(exports, "customers", sink).acknowledged == 1
    with pytest.raises(SinkBindingError, match="exporter='default'"):
        drain(exports, "customers", sink, exporter=double)


def test_an_empty_drain_binds_a_later_one_that_says_nothing(exports, cache, redis_client):
    drain(exports, "customers", cache(key="customer:$id"), exporter=f"{__name__}:double")
    add(exports, "1")
    drain(exports, "customers", cache())
    assert redis_client.exists("customer:1-0", "customer:1-1") == 2


def test_a_follower_takes_the_stored_options_and_is_refused_with_others(exports, cache, redis_client):
    add(exports, "1")
    drain(exports, "customers", cache(key="customer:$id"), exporter=f"{__name__}:double")
    add(exports, "2")
    stop = threading.Event()

    def is_done() -> bool:
        return stop.is_set() or not any(unit.entries for unit in exports.backlog("customers"))

    follow(exports, "customers", cache(), stop=is_done)
    assert redis_client.exists("customer:2-0", "customer:2-1") == 2
    add(exports, "3")
    with pytest.raises(SinkBindingError, match="key="):
        follow(exports, "customers", cache(key="$id"), stop=is_done)


def test_a_readmission_takes_the_stored_options_and_is_refused_with_others(exports, cache, redis_client):
    add(exports, "1")
    drain(exports, "customers", cache(key="customer:$id"))
    redis_client.flushdb()
    with pytest.raises(SinkBindingError, match="key="):
        readmit(exports, "customers", cache(key="$id"))
    readmit(exports, "customers", cache())
    add(exports, "2")
    drain(exports, "customers", cache())
    assert redis_client.exists("customer:2")


@EVERY_STORE
def test_rebinding_lets_the_next_drain_store_its_own_options(exports, cache, redis_client):
    add(exports, "1")
    drain(exports, "customers", cache(key="customer:$id"))
    exports.rebind("customers", "cache")
    add(exports, "2")
    drain(exports, "customers", cache(key="client:$id"), exporter=f"{__name__}:double")
    add(exports, "3")
    drain(exports, "customers", cache())
    assert redis_client.exists("customer:1", "client:2-0", "client:3-1") == 3


def test_as_long_as_nothing_was_delivered_options_may_change(exports, cache, redis_client):
    drain(exports, "customers", cache(key="a:$id"))
    drain(exports, "customers", cache(key="b:$id"))
    add(exports, "1")
    drain(exports, "customers", cache(key="c:$id"))
    assert redis_client.exists("c:1")
    with pytest.raises(SinkBindingError):
        drain(exports, "customers", cache(key="a:$id"))


@EVERY_STORE
def test_of_two_first_drains_with_different_options_one_delivers(exports):
    """Both have been admitted, and have found nothing stored, before either of them delivers."""
    add(exports, "1", "2")
    both_are_admitted = threading.Barrier(2)
    sink, errors = MemorySink(), []

    def at_once(label: str) -> Callable[[Any], list[Put]]:
        def export(entry: Any) -> list[Put]:
            return [Put(label, entry.key, entry.value)]

        export.__qualname__ = f"export_{label}"
        return export

    class Slow(MemorySink):
        is_admitted = False

        def admit(self, **arguments: Any) -> None:
            sink.admit(**arguments)
            if not self.is_admitted:
                self.is_admitted = True
                both_are_admitted.wait(30)

        def apply(self, operations: Any) -> Any:
            return sink.apply(operations)

    def run(label: str) -> None:
        try:
            drain(exports, "customers", Slow(), sink_name="s", exporter=at_once(label), lock_timeout=30)
        except (SinkBindingError, SinkBelongsToAnother) as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(label,)) for label in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (winner,) = {collection for collection, _ in sink.records()}
    assert len(errors) <= 1, "the other one may have found nothing that waits"
    with pytest.raises(SinkBindingError, match=f"exporter=.*export_{winner}"):
        drain(exports, "customers", sink, sink_name="s", exporter=at_once("b" if winner == "a" else "a"))


def test_readers_have_options_of_their_own_also_where_they_share_a_sink(exports, cache, redis_client):
    exports.configure_queue("orders", buckets=1, value="json", subscriptions=["a", "b"])
    add(exports, "1", queue="orders")
    drain(exports, "orders/a", cache(key="a:$id"))
    drain(exports, "orders/b", cache(key="b:$id"))
    add(exports, "2", queue="orders")
    drain(exports, "orders/a", cache())
    drain(exports, "orders/b", cache())
    assert redis_client.exists("a:1", "a:2", "b:1", "b:2") == 4
    exports.unsubscribe("orders", "b")
    exports.subscribe("orders", "b")
    add(exports, "3", queue="orders")
    drain(exports, "orders/b", cache(key="c:$id"))
    assert redis_client.exists("c:3"), "a new subscription of the same name is bound to nothing"


def test_the_parts_of_a_composite_sink_are_filled_in_and_compared_by_name(exports, cache, redis_client, tmp_path):
    def both(table: Mapping[str, Any], key: Mapping[str, Any], *, turned: bool = False) -> SinkSpec:
        file = SinkSpec("sql", {"url": f"sqlite:///{tmp_path}/sink.db", **table}, name="file")

        described = [
            {"kind": one.kind, "options": one.options, "secrets": one.secrets, "name": one.name}
            for one in (file, cache(**key))
        ]
        return SinkSpec("composite", {"parts": described[::-1] if turned else described}, name="both")

    add(exports, "1")
    drain(exports, "customers", both({"table": "t"}, {"key": "k:$id"}))
    add(exports, "2")
    drain(exports, "customers", both({}, {}, turned=True))
    assert redis_client.exists("k:1", "k:2") == 2
    with sa.create_engine(f"sqlite:///{tmp_path}/sink.db").connect() as connection:
        assert connection.scalar(sa.text("select count(*) from t_live")) == 2
    with pytest.raises(SinkBindingError, match="file.table='t', found a drain with file.table='u'"):
        drain(exports, "customers", both({"table": "u"}, {}))


class Shouting:
    """A sink of a user's own, with an option that decides which record is written, and one that does not."""

    def __init__(self, prefix: str = "", timeout: float = 1.0) -> None:
        self.prefix, self.timeout, self._sink = prefix, timeout, MemorySink("shouting")

    def binding(self) -> Mapping[str, Any]:
        return {"prefix": self.prefix}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


def test_nothing_of_a_sink_that_does_not_say_what_belongs_to_the_binding_is_compared(exports, tmp_path):
    class Wrapper:
        def __init__(self, **options: Any) -> None:
            self._sink = SqlSink(f"sqlite:///{tmp_path}/sink.db", **options)
            for name in ("capabilities", "admit", "apply", "close", "continue_drain"):
                setattr(self, name, getattr(self._sink, name))

    def sql(**options: Any) -> SinkSpec:
        return SinkSpec("sql", {"url": f"sqlite:///{tmp_path}/sink.db", **options}, name="s")

    sinks: list[Any] = [Wrapper(), sql(), Wrapper()]
    for number, sink in enumerate(sinks):
        add(exports, str(number))
        assert drain(exports, "customers", sink, sink_name="s").acknowledged == 1
    with pytest.raises(SinkBindingError, match=r"table='\$collection', found a drain with table='t'"):
        drain(exports, "customers", sql(table="t"))
    with pytest.raises(SinkBindingError, match="exporter="):
        drain(exports, "customers", Wrapper(), sink_name="s", exporter=double)


def test_a_sink_of_ones_own_says_what_belongs_to_the_binding(exports):
    def spec(**options: Any) -> SinkSpec:
        return SinkSpec(f"{__name__}:Shouting", options, name="own")

    MemorySink("shouting").clear()
    add(exports, "1")
    drain(exports, "customers", spec(prefix="a"))
    add(exports, "2")
    assert drain(exports, "customers", spec(timeout=9.0)).acknowledged == 1
    with pytest.raises(SinkBindingError, match="prefix='a', found a drain with prefix='b'"):
        drain(exports, "customers", spec(prefix="b"))
    with pytest.raises(SinkBindingError, match="prefix"):
        drain(exports, "customers", CompositeSink([("one", Shouting("a"))]), sink_name="own")
