"""Rebuilds: another target is filled, follows and takes over, and readers of the sink notice nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.waiting import wait_until

from export_queue import (
    Entry,
    ExportQueueError,
    InvalidArgument,
    LeaseLost,
    LockNotAvailable,
    Owner,
    Put,
    QueueBusy,
    RebuildRefused,
    Retry,
    SinkBindingError,
    SinkConfigurationError,
    SinkSpec,
    SqlSink,
    Store,
    drain,
    verify,
)
from export_queue.core.locks import claim, release
from export_queue.core.queue import alter_queue
from export_queue.core.store import Database
from export_queue.core.verify import rebuild as rebuilding

pytestmark = pytest.mark.timeout(240)
KEYS = [f"k{n}" for n in range(40)]
KEPT = set(KEYS[:10])
"""Keys that are never deleted."""
Records = Mapping[str, int]
SECRET = "EXPORT_QUEUE_TEST_REBUILD"
"""The variable with the secret of the sink: its URL or password."""


@dataclass(frozen=True)
class Target:
    """A server with an old target and the options of a new one, and what a program reads through the pointer."""

    sink: SinkSpec
    new_options: Mapping[str, Any]
    read: Callable[[], Records]
    pointer: str
    queue: str = "orders"
    refresh: Callable[[], object] = lambda: None
    """Lets a search see everything that was acknowledged."""

    @property
    def main(self) -> str:
        return f"{self.queue}/main"


@contextlib.contextmanager
def on_sql(url: str, queue: str = "orders") -> Iterator[Target]:
    engine = sa.create_engine(url)

    def read() -> Records:
        with engine.connect() as connection:
            rows = connection.execute(sa.text(f"select * from {queue}_now")).mappings().all()
        return {row["id"]: row["n"] if "n" in row else json.loads(row["document"])["n"] for row in rows}

    os.environ[SECRET] = url
    sink = SinkSpec("sql", {}, {"url": f"env:{SECRET}"}, name="copies")
    new = {"table": "$collection-2", "columns": {"n": "integer", "city": "text"}}
    yield Target(sink, new, read, pointer="${collection}_now", queue=queue)
    engine.dispose()


OTHERS = [pytest.param(kind, marks=pytest.mark.full("another sink")) for kind in ("postgresql", "mariadb", "redis")]


@pytest.fixture(params=["sqlite", *OTHERS])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    kind = request.param
    if kind == "redis":
        yield on_redis(request.getfixturevalue("redis_server"), request.getfixturevalue("redis_client"))
    else:
        fixtures = {"postgresql": "postgres_url", "mariadb": "mariadb_url"}
        url = f"sqlite:///{tmp_path}/copies.db" if kind == "sqlite" else request.getfixturevalue(fixtures[kind])
        with on_sql(url) as found:
            yield found


def on_redis(server: Any, client: Any) -> Target:
    def read() -> Records:
        template = Template(client.get("orders-now").decode())
        values = client.mget([template.substitute(id=key) for key in KEYS])
        return {key: json.loads(value)["n"] for key, value in zip(KEYS, values, strict=True) if value is not None}

    options = {"host": server.host, "port": server.port}
    sink = SinkSpec("redis", options, {"password": f"env:{SECRET}"}, name="cache")
    os.environ[SECRET] = server.password
    return Target(sink, {"key": "v2:$collection:$id"}, read, pointer="$collection-now")


@pytest.fixture
def elasticsearch(elasticsearch_server: Any) -> Iterator[tuple[Any, str]]:
    """The server, and a name of a queue for one test, whose indices are deleted afterwards."""
    name = f"rebuilt{os.getpid()}x{next(_NUMBERS)}"
    yield elasticsearch_server, name
    for index in elasticsearch_server.request("GET", f"/{name}*?expand_wildcards=all")[1]:
        elasticsearch_server.request("DELETE", f"/{index}")


_NUMBERS = itertools.count()


def on_elasticsearch(server: Any, name: str) -> Target:
    def read() -> Records:
        status, found = server.request("POST", f"/{name}-now/_search", {"size": 1000})
        assert status == 200, found
        return {hit["_id"]: hit["_source"]["n"] for hit in found["hits"]["hits"]}

    options = {"hosts": server.url, "username": server.user}
    os.environ[SECRET] = server.password
    sink = SinkSpec(server.kind, options, {"password": f"env:{SECRET}"}, name="search")
    return Target(
        sink,
        {"index": "$collection-2"},
        read,
        pointer="$collection-now",
        queue=name,
        refresh=lambda: server.request("POST", f"/{name}-now/_refresh"),
    )


@dataclass
class Writer:
    """Changes keys one transaction at a time, and knows every version that each key has had."""

    store: Store
    versions: dict[str, list[int | None]]
    generator: random.Random
    queue: str = "orders"
    number: int = 0

    def write(self) -> None:
        self.number += 1
        with self.store.transaction() as tx:
            for key in self.generator.sample(KEYS, 3):
                value = None if key not in KEPT and self.generator.random() < 0.4 else self.number
                self.versions[key].append(value)  # before the commit: a reader may see it at once
                tx.queue(self.queue).add(key, None if value is None else {"n": value, "city": "Basel"})

    def latest(self) -> dict[str, int]:
        return {key: found[-1] for key, found in self.versions.items() if found[-1] is not None}


@dataclass
class Seen:
    """Checks that what a program reads through a pointer never goes back and has no gap."""

    target: Target
    versions: dict[str, list[int | None]]
    at: dict[str, int]
    rounds: int = 0

    def look(self) -> None:
        found = self.target.read()
        for key in KEYS:
            value, known = found.get(key), self.versions[key]
            later = next((n for n in range(self.at[key], len(known)) if known[n] == value), None)
            assert later is not None, f"{key}: {value} after version {self.at[key]} of {known}"
            self.at[key] = later
        self.rounds += 1


class Busy:
    """Repeats functions in threads until they are stopped."""

    def __init__(self) -> None:
        self._stop, self._threads = threading.Event(), list[threading.Thread]()
        self.errors: list[BaseException] = []

    def __enter__(self) -> Busy:
        return self

    def repeat(self, step: Callable[[], object], pause: float) -> None:
        def run() -> None:
            try:
                while not self._stop.wait(pause):
                    step()
            except BaseException as error:
                self.errors.append(error)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert self.errors == []


def set_up(store: Store, target: Target) -> Writer:
    store.configure_queue(target.queue, buckets=16, buckets_per_range=4, state=True, subscriptions=["main"])
    writer = Writer(store, {key: [None] for key in KEYS}, random.Random(7), target.queue)
    with store.transaction() as tx:
        for key in KEYS:
            writer.versions[key].append(0)
            tx.queue(target.queue).add(key, {"n": 0, "city": "Bern"})
    writer.write()
    drain(store, target.main, target.sink)
    return writer


def start(store: Store, target: Target, **options: Any) -> Any:
    given = {"pointer": target.pointer, "new_options": target.new_options, **options}
    return store.rebuilds.start(target.main, target.sink, **given)


@pytest.mark.one_store("what readers of a sink see does not depend on the store")
def test_readers_see_no_gap_and_nothing_older_through_all_steps(
    store: Store, open_store: Callable[[], Store], target: Target
) -> None:
    take_all_steps(store, open_store, target)


@pytest.mark.full("another sink")
@pytest.mark.one_store("what readers of a sink see does not depend on the store")
def test_searches_of_elasticsearch_see_no_gap_and_nothing_older(
    store: Store, open_store: Callable[[], Store], elasticsearch: tuple[Any, str]
) -> None:
    take_all_steps(store, open_store, on_elasticsearch(*elasticsearch))


def take_all_steps(store: Store, open_store: Callable[[], Store], target: Target) -> None:
    writer = set_up(store, target)
    assert start(store, target).phase == "following"
    target.refresh()
    seen = Seen(target, writer.versions, dict.fromkeys(KEYS, 1))
    stores = [open_store() for _ in range(3)]
    writer.store = stores[0]

    def deliver(own: Store, reader: str) -> None:
        with contextlib.suppress(ExportQueueError):
            drain(own, reader, target.sink, lock_timeout=60)

    def look_around() -> None:
        before = seen.rounds
        wait_until(lambda: seen.rounds >= before + 3 or busy.errors, "nobody reads")

    with Busy() as busy:
        busy.repeat(writer.write, 0.01)
        busy.repeat(lambda: deliver(stores[1], target.main), 0.02)
        busy.repeat(lambda: deliver(stores[2], f"{target.main}-2"), 0.05)
        busy.repeat(seen.look, 0.0)
        for step in ("switch", "back", "switch"):
            look_around()
            getattr(store.rebuilds, step)(target.main, target.sink)
        look_around()
        assert store.rebuilds.finish(target.main).phase == "finished"
        look_around()
    for one in stores:
        one.close()
    drain(store, f"{target.main}-2", target.sink)
    target.refresh()
    assert target.read() == writer.latest()
    assert [one.id for one in store.subscriptions(target.queue)] == [f"{target.main}-2"]
    assert verify(store, f"{target.main}-2", target.sink).differences == 0


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Target]:
    with on_sql(f"sqlite:///{tmp_path}/copies.db") as found:
        yield found


ONE_STORE = pytest.mark.one_store("the steps use the store by the same functions on each")


@ONE_STORE
def test_a_target_that_differs_is_refused_unless_forced(store: Store, copies: Target, tmp_path: Path) -> None:
    writer = set_up(store, copies)
    start(store, copies)
    drain(store, "orders/main-2", copies.sink)
    engine = sa.create_engine(f"sqlite:///{tmp_path}/copies.db")
    with engine.begin() as connection:
        connection.execute(sa.text("""delete from "orders-2" where id = 'k1'"""))
    with pytest.raises(RebuildRefused, match="1 missing"):
        store.rebuilds.switch("orders/main", copies.sink)
    assert store.rebuilds.status("orders/main").phase == "following"
    assert copies.read() == writer.latest()
    assert store.rebuilds.switch("orders/main", copies.sink, force=True).phase == "switched"
    assert copies.read().keys() == writer.latest().keys() - {"k1"}
    engine.dispose()


def picky(entry: Entry) -> Iterator[Put]:
    if entry.value["n"] > 1000:
        raise ValueError("too large")
    yield Put("orders", entry.key, entry.value)


@ONE_STORE
def test_dead_letters_of_the_new_reader_are_refused_unless_forced(store: Store, copies: Target) -> None:
    store.configure_queue("orders", state=True, subscriptions=["main"])
    store.run(lambda tx: tx.queue("orders").add("k1", {"n": 1}))
    drain(store, "orders/main", copies.sink)
    start(store, copies, exporter=f"{__name__}:picky")
    store.run(lambda tx: tx.queue("orders").add("k2", {"n": 2000}))
    with pytest.raises(RebuildRefused, match="1 entries of 'orders/main-2' became dead letters"):
        store.rebuilds.switch("orders/main", copies.sink)
    assert copies.read() == {"k1": 1}
    with pytest.raises(RebuildRefused, match="1 dead"):
        store.rebuilds.switch("orders/main", copies.sink)
    store.rebuilds.switch("orders/main", copies.sink, force=True)
    assert copies.read() == {"k1": 1}
    store.rebuilds.back("orders/main", copies.sink)
    assert copies.read() == {"k1": 1, "k2": 2000}


@ONE_STORE
def test_what_a_rebuild_cannot_do_is_refused_before_anything_is_made(store: Store, copies: Target) -> None:
    store.configure_queue("bare", state=True)
    with pytest.raises(InvalidArgument, match="a subscription, found queue 'bare'") as refused:
        store.rebuilds.start("bare", copies.sink, pointer="p", new_options={"table": "t"})
    assert "export-queue subscribe bare main" in refused.value.hint
    store.configure_queue("orders", subscriptions=["main"])
    with pytest.raises(InvalidArgument, match="has not been drained"):
        start(store, copies)
    store.run(lambda tx: tx.queue("orders").add("k1", {"n": 1}))
    drain(store, "orders/main", copies.sink)
    with pytest.raises(InvalidArgument, match="has no state"):
        start(store, copies)
    store.alter_queue("orders", state=True)
    with pytest.raises(ExportQueueError, match="lacks what was committed before"):
        start(store, copies)
    with store.first_load("orders/@state") as load:
        load.add("k1", {"n": 1})
    for message, options in {
        "is the old one, 'orders'": {"new_options": {"columns": {"n": "integer"}}},
        "cannot be a pointer: expected a view": {"pointer": "orders"},
        "expected one that leads to 'orders'": {"pointer": "elsewhere"},
        "2 collections would have 1 pointers": {"collections": ["orders", "others"], "pointer": "orders_all"},
        "not first xq_": {"pointer": "xq_now"},
    }.items():
        if "elsewhere" in options.values():
            engine = sa.create_engine(os.environ[SECRET])
            with engine.begin() as connection:
                connection.execute(sa.text("create view elsewhere as select * from xq_floor"))
            engine.dispose()
        with pytest.raises((SinkConfigurationError, InvalidArgument), match=message):
            start(store, copies, **options)
    with pytest.raises(SinkBindingError, match="drains into sink 'copies', found 'other'"):
        start(store, replaced(copies, name="other"))
    assert store.rebuilds.list() == []
    assert [one.id for one in store.subscriptions("orders")] == ["orders/main"]


def replaced(target: Target, *, name: str) -> Target:
    return dataclasses.replace(target, sink=SinkSpec("sql", {}, target.sink.secrets, name=name))


@ONE_STORE
def test_a_new_target_with_records_is_refused(store: Store, copies: Target) -> None:
    set_up(store, copies)
    start(store, copies)
    drain(store, "orders/main-2", copies.sink)
    assert store.rebuilds.cancel("orders/main").phase == "cancelled"
    with pytest.raises(SinkConfigurationError, match="has records already: orders-2"):
        start(store, copies)
    assert start(store, copies, new_options={"table": "orders-3"}).phase == "following"


@ONE_STORE
def test_a_switch_waits_for_each_drain_of_the_old_target(store: Store, copies: Target) -> None:
    writer = set_up(store, copies)
    start(store, copies)
    queue = store.queue("orders/main")
    leases = claim(store.database, queue, queue.units()[-1:], owner=Owner.unique(), lease_seconds=60)
    with pytest.raises(LockNotAvailable):
        store.rebuilds.switch("orders/main", copies.sink, lock_timeout=0.5)
    assert store.rebuilds.status("orders/main").phase == "following"
    release(store.database, leases)
    assert store.rebuilds.switch("orders/main", copies.sink).phase == "switched"
    assert copies.read() == writer.latest()


@ONE_STORE
def test_a_queue_without_subscriptions_gets_one_as_the_hint_says(store: Store, copies: Target) -> None:
    store.configure_queue("orders", state=True)
    store.run(lambda tx: tx.queue("orders").add("k1", {"n": 1}))
    drain(store, "orders", copies.sink)
    store.subscribe("orders", "main")
    store.waive_first_load("orders/main")
    store.run(lambda tx: tx.queue("orders").add("k2", {"n": 2}))
    drain(store, "orders/main", copies.sink)
    start(store, copies)
    store.rebuilds.switch("orders/main", copies.sink)
    assert copies.read() == {"k1": 1, "k2": 2}


@ONE_STORE
def test_steps_out_of_order_are_refused_and_repeated_ones_change_nothing(store: Store, copies: Target) -> None:
    set_up(store, copies)
    with pytest.raises(InvalidArgument, match="has no rebuild"):
        store.rebuilds.switch("orders/main", copies.sink)
    first = start(store, copies)
    assert start(store, copies).begun == first.begun
    with pytest.raises(InvalidArgument, match="has been started with other arguments"):
        start(store, copies, name="another")
    with pytest.raises(InvalidArgument, match="found the phase following"):
        store.rebuilds.finish("orders/main")
    switched = store.rebuilds.switch("orders/main", copies.sink)
    assert store.rebuilds.switch("orders/main", copies.sink) == switched
    with pytest.raises(InvalidArgument, match="found the phase switched"):
        store.rebuilds.cancel("orders/main")
    for other in ({}, {"name": "third", "new_options": {"table": "orders-3"}}):
        with pytest.raises(InvalidArgument, match="switched|rebuild finish"):  # before anything is said of the pointer
            start(store, copies, **other)
    store.rebuilds.back("orders/main", copies.sink)
    assert store.rebuilds.back("orders/main", copies.sink).phase == "following"
    store.rebuilds.switch("orders/main", copies.sink)
    finished = store.rebuilds.finish("orders/main")
    assert store.rebuilds.finish("orders/main") == finished
    assert store.rebuilds.list() == [finished]


@ONE_STORE
def test_a_drain_without_options_writes_into_the_new_target_from_the_start(store: Store, copies: Target) -> None:
    writer = set_up(store, copies)
    start(store, copies)
    with pytest.raises(SinkBindingError, match="table"):
        drain(store, "orders/main-2", copies.sink.bound_to({"table": "orders"}))
    drain(store, "orders/main-2", copies.sink)
    assert copies.read() == writer.latest()
    assert verify(store, "orders/main", copies.sink).differences == 0


@ONE_STORE
def test_drains_as_soon_as_the_new_reader_exists_leave_it_bound_to_the_new_target(
    store: Store, copies: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = set_up(store, copies)
    left, is_draining = 3, False

    def drained_before(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Database, **named: Any) -> Any:
            nonlocal left, is_draining
            if left and not is_draining:
                is_draining = True
                if "orders/main-2" in [one.id for one in store.subscriptions("orders")]:
                    left -= 1
                    writer.write()
                    drain(store, "orders/main-2", copies.sink)
                is_draining = False
            return original(self, **named)

        return run

    with monkeypatch.context() as patch:
        for step in ("begin", "read"):
            patch.setattr(Database, step, drained_before(getattr(Database, step)))
        start(store, copies)
    drain(store, "orders/main-2", copies.sink)
    assert verify(store, "orders/main-2", copies.sink).differences == 0
    store.rebuilds.switch("orders/main", copies.sink)
    writer.write()
    drain(store, "orders/main-2", copies.sink)
    assert copies.read() == writer.latest()
    with contextlib.closing(copies.sink.bound_to({}).open()) as sink:
        assert sink.pointed_at("orders_now") == "orders-2"


@ONE_STORE
def test_a_start_refuses_a_new_reader_that_somebody_else_has_added(
    store: Store, copies: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(store, copies)
    record = rebuilding._record

    def subscribed_meanwhile(*arguments: Any) -> None:
        record(*arguments)
        store.subscribe("orders", "main-2")

    monkeypatch.setattr(rebuilding, "_record", subscribed_meanwhile)
    with pytest.raises(SinkBindingError, match="'orders/main-2': expected the binding of the rebuild") as refused:
        start(store, copies)
    assert "unsubscribe orders/main-2" in refused.value.hint
    store.unsubscribe("orders", "main-2", discard=True)
    assert start(store, copies).phase == "following"


@ONE_STORE
def test_readers_that_a_rebuild_needs_are_not_unsubscribed_by_hand(store: Store, copies: Target) -> None:
    writer = set_up(store, copies)
    start(store, copies)
    store.subscribe("orders", "other")
    for step in (None, "switch"):
        if step:
            store.rebuilds.switch(copies.main, copies.sink)
        for name in ("main", "main-2"):
            with pytest.raises(InvalidArgument, match=r"found one of 'orders/main' in the phase (following|switched)"):
                store.unsubscribe("orders", name, discard=True)
    writer.write()
    drain(store, "orders/main-2", copies.sink)
    assert copies.read() == writer.latest()
    store.unsubscribe("orders", "other", discard=True)
    assert store.rebuilds.finish(copies.main).phase == "finished"


@ONE_STORE
def test_two_rebuilds_do_not_fill_the_same_target(store: Store, copies: Target) -> None:
    set_up(store, copies)
    store.subscribe("orders", "other")
    elsewhere = dataclasses.replace(copies.sink, options={"table": "others"})
    drain(store, "orders/other", elsewhere)
    start(store, copies)  # nothing is in its target yet
    with pytest.raises(SinkConfigurationError, match="the new target of 'orders/other' belongs to orders/main-2"):
        store.rebuilds.start("orders/other", elsewhere, pointer="others_now", new_options=copies.new_options)


@ONE_STORE
def test_after_a_rebuild_is_over_its_readers_are_like_others(store: Store, copies: Target) -> None:
    set_up(store, copies)
    start(store, copies)
    store.rebuilds.cancel(copies.main)
    store.subscribe("orders", "main-2")
    store.unsubscribe("orders", "main-2", discard=True)


@pytest.mark.parametrize("step", ["begun_first_load", "load_from"])
def test_a_start_whose_first_load_another_start_makes_succeeds(
    store: Store, copies: Target, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    set_up(store, copies)
    original = getattr(rebuilding, step)

    def overtaken(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(rebuilding, step, original)
        start(store, copies)
        return original(*arguments, **named)

    monkeypatch.setattr(rebuilding, step, overtaken)
    assert start(store, copies).phase == "following"
    drain(store, "orders/main-2", copies.sink)
    store.rebuilds.switch("orders/main", copies.sink)


@ONE_STORE
def test_a_cancel_that_another_one_overtakes_leaves_the_next_rebuild_alone(
    store: Store, copies: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(store, copies)
    start(store, copies)
    unsubscribe = rebuilding.unsubscribe

    def overtaken(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(rebuilding, "unsubscribe", unsubscribe)
        store.rebuilds.cancel(copies.main)
        assert start(store, copies, new_options={"table": "$collection-3"}).new_reader == "orders/main-2"
        return unsubscribe(*arguments, **named)

    monkeypatch.setattr(rebuilding, "unsubscribe", overtaken)
    with pytest.raises(LeaseLost):
        store.rebuilds.cancel(copies.main)
    drain(store, "orders/main-2", copies.sink)
    assert store.rebuilds.switch(copies.main, copies.sink).phase == "switched"


@ONE_STORE
def test_the_next_rebuild_starts_where_the_last_one_has_ended(store: Store, copies: Target) -> None:
    writer = set_up(store, copies)
    start(store, copies)
    store.rebuilds.switch("orders/main", copies.sink)
    store.rebuilds.finish("orders/main")
    options = {"pointer": copies.pointer, "new_options": {"table": "orders-3"}}
    assert store.rebuilds.start("orders/main-2", copies.sink, **options).new_reader == "orders/main-3"
    writer.write()
    store.rebuilds.switch("orders/main-2", copies.sink)
    assert copies.read() == writer.latest()


def test_rights_on_a_view_survive_the_switch(store: Store, postgres_url: str) -> None:
    with on_sql(postgres_url) as target:
        set_up(store, target)
        start(store, target)
        engine = sa.create_engine(postgres_url)
        with engine.begin() as connection:
            connection.execute(sa.text("grant select on orders_now to public"))
        store.rebuilds.switch("orders/main", target.sink)
        with engine.begin() as connection:
            rights = connection.execute(
                sa.text("select relacl::text from pg_class where relname = 'orders_now'")
            ).scalar()
            assert "{=r/" in rights or ",=r/" in rights
        engine.dispose()


fork = multiprocessing.get_context("fork")
BEFORE = {
    "start": (),
    "switch": ("start",),
    "back": ("start", "switch"),
    "finish": ("start", "switch"),
    "cancel": ("start",),
}
"""The steps before each one."""
AFTER = {"start": "following", "switch": "switched", "back": "following", "finish": "finished", "cancel": "cancelled"}
"""The phase after each step."""


def take(store: Store, target: Target, step: str) -> Any:
    """Take a step, which never waits for leases: nobody else has any, and those of a killed step are taken over."""
    if step == "start":
        return start(store, target)
    if step in ("switch", "back"):
        return getattr(store.rebuilds, step)(target.main, target.sink, lock_timeout=0.0)
    return getattr(store.rebuilds, step)(target.main)


def take_and_die(open_store: Callable[[], Store], target: Target, step: str, at: int) -> None:
    """Take a step; die before a SQL transaction of the store, or before or after pointers are changed."""
    left = at

    def count() -> None:
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    begin, point = Database.begin, SqlSink.point

    def counted_begin(self: Database, **named: Any) -> Any:
        count()
        return begin(self, **named)

    def counted_point(self: SqlSink, pointers: Mapping[str, str]) -> None:
        count()
        point(self, pointers)
        count()

    Database.begin, SqlSink.point = counted_begin, counted_point  # type: ignore[method-assign]
    with open_store() as store:
        take(store, target, step)


def kill_and_repeat(store: Store, open_store: Callable[[], Store], url: str, step: str, at: int) -> bool:
    """Kill a step at its nth place, and repeat it; return whether it has so many places."""
    with on_sql(url, f"q{at}") as target:
        store.configure_queue(target.queue, buckets=1, state=True, subscriptions=["main"])
        for entries in ([("k1", {"n": 1}), ("k2", {"n": 1})], [("k2", None), ("k3", {"n": 2})]):
            store.run(lambda tx, entries=entries: tx.queue(target.queue).add_many(entries))
            drain(store, target.main, target.sink)
        for earlier in BEFORE[step]:
            take(store, target, earlier)
        store.run(lambda tx: tx.queue(target.queue).add("k1", {"n": 3}))
        process = fork.Process(target=take_and_die, args=(open_store, target, step, at))
        process.start()
        process.join(60)
        assert process.exitcode in (0, -signal.SIGKILL)
        store.run(lambda tx: tx.queue(target.queue).add("k4", {"n": 4}))
        if step == "start":  # the leases of other steps would be waited for
            for reader in store.subscriptions(target.queue):
                drain(store, reader.id, target.sink)
        assert take(store, target, step).phase == AFTER[step]
        new = step in ("switch", "finish")
        for reader in store.subscriptions(target.queue):
            drain(store, reader.id, target.sink)
            assert verify(store, reader.id, target.sink).differences == 0
        assert {one.name for one in store.subscriptions(target.queue)} == READERS.get(step, {"main", "main-2"})
        assert target.read() == {"k1": 3, "k3": 2, "k4": 4}
        with contextlib.closing(target.sink.bound_to({}).open()) as sink:
            assert sink.pointed_at(f"{target.queue}_now") == target.queue + ("-2" if new else "")
        tables = {one.name: json.loads(one.binding or "")["table"] for one in store.subscriptions(target.queue)}
        assert tables.get("main-2", "$collection-2") == "$collection-2"
        return process.exitcode != 0


READERS = {"finish": {"main-2"}, "cancel": {"main"}}


@pytest.mark.brief
@pytest.mark.parametrize("step", BEFORE)
def test_a_step_that_is_killed_somewhere_is_repeated(
    store: Store, open_store: Callable[[], Store], tmp_path: Path, step: str
) -> None:
    seed = int(os.environ.get("EXPORT_QUEUE_SEED") or random.randrange(1 << 32))
    print(f"EXPORT_QUEUE_SEED={seed}")
    kill_and_repeat(store, open_store, f"sqlite:///{tmp_path}/copies.db", step, random.Random(seed).randrange(16))


STRIDE = int(os.environ.get("EXPORT_QUEUE_REBUILD_STRIDE", "3"))
"""A long run kills at each so many-th place of a step, from one that is drawn anew each time; 1 are all."""


@pytest.mark.full("a process for each place of each step")
@pytest.mark.parametrize("step", BEFORE)
def test_a_step_that_is_killed_anywhere_is_repeated(
    store: Store, open_store: Callable[[], Store], tmp_path: Path, step: str
) -> None:
    seed = int(os.environ.get("EXPORT_QUEUE_SEED") or random.randrange(1 << 32))
    print(f"EXPORT_QUEUE_SEED={seed}")
    at = random.Random(seed).randrange(STRIDE)
    while kill_and_repeat(store, open_store, f"sqlite:///{tmp_path}/copies.db", step, at):
        at += STRIDE
    assert at >= {"start": 6, "finish": 3, "cancel": 3}.get(step, 8)


@ONE_STORE
def test_buckets_altered_during_a_switch_let_no_reader_go_back(
    store: Store, open_store: Callable[[], Store], copies: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = set_up(store, copies)
    start(store, copies)
    other, shown = open_store(), rebuilding._show

    def alter(sink: Any) -> None:  # drains of the old target are kept out in the former buckets only
        monkeypatch.setattr(rebuilding, "_show", shown)
        other.alter_queue("orders", buckets=5, buckets_per_range=5, guard="seq")
        writer.write()
        drain(other, "orders/main", copies.sink)
        assert copies.read() == writer.latest()
        shown(sink)

    monkeypatch.setattr(rebuilding, "_show", alter)
    with pytest.raises(QueueBusy, match=r"(?s)buckets of 'orders/main' have been altered.*repeat the step"):
        store.rebuilds.switch("orders/main", copies.sink)
    assert copies.read() == writer.latest()
    assert store.rebuilds.status("orders/main").phase == "following"
    assert store.rebuilds.switch("orders/main", copies.sink).phase == "switched"
    assert copies.read() == writer.latest()


@ONE_STORE
def test_buckets_stay_while_pointers_change(store: Store, copies: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(store, copies)
    start(store, copies)
    moved = rebuilding._move

    def killed(*given: Any, **named: Any) -> Any:
        found = moved(*given, **named)
        if found.phase == "switching":
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(rebuilding, "_move", killed)
    with pytest.raises(KeyboardInterrupt):
        store.rebuilds.switch("orders/main", copies.sink)
    monkeypatch.setattr(rebuilding, "_move", moved)
    at_once = Retry(attempts=1)
    alter = functools.partial(alter_queue, store.database, "orders", buckets=5, guard="seq", retry=at_once)
    with pytest.raises(QueueBusy, match=r"(?s)rebuild of 'orders/main' is changing.*rebuild status orders/main"):
        alter()
    store.rebuilds.switch("orders/main", copies.sink)
    assert alter(buckets_per_range=5).buckets == 5


@ONE_STORE
@pytest.mark.parametrize("wrong", [{"colums": {"n": "integer"}}, {"timeout": 5}])
def test_new_options_that_drains_would_not_use_are_refused(store: Store, copies: Target, wrong: dict[str, Any]) -> None:
    set_up(store, copies)
    with pytest.raises(InvalidArgument, match=rf"columns, .*table; found '{next(iter(wrong))}'"):
        start(store, copies, new_options={"table": "$collection-2", **wrong})
    with pytest.raises(InvalidArgument, match="expected names and values, found str"):
        start(store, copies, new_options="table")
    assert start(store, copies).phase == "following"
