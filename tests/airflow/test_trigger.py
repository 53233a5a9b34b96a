"""The trigger announces every commit, outlives an outage, and shares the looks at its store."""

from __future__ import annotations

import asyncio
import json
import re
import select
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import Asset, AssetWatcher
from tests.support.servers import PostgresServer
from tests.support.triggers import Looks, Watch, pollers, run, store_held
from tests.support.waiting import PATIENCE

from export_queue import (
    HasSubscriptions,
    InvalidArgument,
    MemorySink,
    Store,
    StoreUnavailable,
    UnknownQueue,
    drain,
    polling,
    triggers,
)
from export_queue.core.queue import Range, Sighting
from export_queue.core.store.hints import HintTraffic
from export_queue.polling import polled_store
from export_queue.questions import QueueQuestion
from export_queue.triggers import ExportQueueDrainedTrigger, ExportQueueNotificationTrigger, ExportQueueTrigger


def add(store: Any, *customers: str) -> None:
    with store.transaction() as tx:
        for customer in customers:
            tx.queue("orders").add(customer, {})


def empty(store: Any, **options: Any) -> None:
    drain(store, "orders", MemorySink(name=store.id), **options)


def watch_orders(**arguments: Any) -> Watch:
    return Watch(ExportQueueTrigger(**{"queue_id": "orders", "poll_interval": 3600, **arguments}))


def test_it_fires_each_time_the_queue_ceases_to_be_empty(airflow_store: Any, looks: Looks) -> None:
    async def watch() -> None:
        add(airflow_store, "anna")
        watched = watch_orders(poll_interval=0.02, min_interval=3600)
        await looks.another()
        (first,) = watched.events
        (unit,) = airflow_store.backlog("orders")
        assert first == {"queue": "orders", "waiting": [[unit.range.first, unit.range.end]]}
        add(airflow_store, "anna")
        await looks.another(2)
        assert len(watched.events) == 1, "the least interval has not passed"
        empty(airflow_store)
        await looks.another(2)
        add(airflow_store, "anna")
        await looks.another(2)
        assert len(watched.events) == 2
        await watched.stop()

    run(watch())


def test_a_deferred_task_does_not_resume_before_the_scheduler_knows_that_it_is_deferred(
    airflow_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow 3.3.2 would fail it; the trigger of an asset has no task that could resume too early."""
    add(airflow_store, "anna")
    made = ExportQueueTrigger(queue_id="orders", poll_interval=0.02, min_interval=0)
    made.task_instance = SimpleNamespace(task_id="it")  # type: ignore[assignment]

    async def events() -> list[float]:
        begun = time.monotonic()
        return [time.monotonic() - begun async for _ in made.run()]

    async def of_an_asset() -> None:
        await anext(ExportQueueTrigger(queue_id="orders", poll_interval=0.02).run())

    monkeypatch.setattr(triggers, "RESUME_SECONDS", 0.3)
    (waited,) = asyncio.run(asyncio.wait_for(events(), 60))  # with its event it ends, before Airflow cancels it
    assert waited >= 0.3
    monkeypatch.setattr(triggers, "RESUME_SECONDS", 3600.0)
    run(of_an_asset())


def test_the_common_trigger_of_message_queues_is_this_one(airflow_store: Any, looks: Looks) -> None:
    common = MessageQueueTrigger(scheme="export-queue", queue_id="orders", poll_interval=3600)
    Asset("orders-waiting", watchers=[AssetWatcher(name="orders", trigger=common)])
    assert common.serialize() == ExportQueueTrigger(queue_id="orders", poll_interval=3600).serialize()

    async def watch() -> None:
        add(airflow_store, "anna")
        watched = Watch(common)
        await looks.another()
        assert [event["queue"] for event in watched.events] == ["orders"]
        await watched.stop()

    run(watch())


def test_a_commit_between_a_drain_and_the_next_look_is_announced(airflow_store: Any, looks: Looks) -> None:
    async def watch() -> None:
        add(airflow_store, "anna")
        watched = watch_orders(poll_interval=0.02)
        await looks.another()
        assert len(watched.events) == 1
        await looks.another(2)
        assert len(watched.events) == 1, "what was announced is no news"
        with store_held(looks):
            empty(airflow_store)
            add(airflow_store, "ben")
        await looks.another(2)
        assert len(watched.events) == 2
        await looks.another(2)
        assert len(watched.events) == 2
        await watched.stop()

    run(watch())


def test_a_restarted_triggerer_starts_one_more_run_at_most_which_delivers_nothing_twice(
    airflow_store: Any, looks: Looks
) -> None:
    sink = MemorySink()

    async def watch() -> None:
        add(airflow_store, "anna")
        first = watch_orders(poll_interval=0.02, min_interval=0)
        await looks.another(2)
        await first.stop()
        add(airflow_store, "ben")
        second = watch_orders(poll_interval=0.02, min_interval=0)
        await looks.another(3)
        assert (len(first.events), len(second.events)) == (1, 1), "no commit is missed, and each is announced once more"
        runs = [drain(airflow_store, "orders", sink) for _ in (*first.events, *second.events)]
        assert [run.acknowledged for run in runs] == [2, 0]
        await second.stop()
        third = watch_orders(poll_interval=0.02, min_interval=0)
        await looks.another(2)
        assert third.events == []
        await third.stop()

    run(watch())
    assert len(sink.records()) == 2


def test_a_transaction_that_began_before_the_event_and_committed_later_is_announced(
    airflow_store: Any, looks: Looks
) -> None:
    async def watch() -> None:
        older = airflow_store.begin()
        with airflow_store.resume(older) as tx:
            tx.queue("orders").add("older", {})
        add(airflow_store, "younger")
        watched = watch_orders(poll_interval=0.02)
        await looks.another()
        assert len(watched.events) == 1
        airflow_store.commit(older)
        await looks.another(2)
        assert len(watched.events) == 2
        await watched.stop()

    run(watch())


def test_a_retried_dead_letter_is_announced_although_its_sequence_is_old(airflow_store: Any, looks: Looks) -> None:
    async def watch() -> None:
        add(airflow_store, "bad", "good")
        watched = watch_orders(poll_interval=0.02)
        await looks.another()
        with store_held(looks):
            empty(airflow_store, exporter=only_good)
            assert airflow_store.dead_letters.count("orders") == 1
            airflow_store.dead_letters.retry("orders", who="test")
        await looks.another(2)
        assert len(watched.events) == 2
        await watched.stop()

    run(watch())


def only_good(entry: Any) -> Any:
    if entry.key == "bad":
        raise ValueError("no")
    return ()


def test_an_unknown_queue_fails_its_own_trigger_alone(airflow_store: Any, looks: Looks) -> None:
    async def watch() -> None:
        other = watch_orders(poll_interval=0.02)
        stream = ExportQueueTrigger(queue_id="order", poll_interval=0.02).run()
        with pytest.raises(UnknownQueue, match="it has: orders"):
            await anext(stream)
        add(airflow_store, "anna")
        await looks.another(2)
        assert len(other.events) == 1
        await other.stop()
        assert pollers() == []

    run(watch())


def test_it_watches_a_subscription_and_no_queue_that_has_some(airflow_store: Any, looks: Looks) -> None:
    airflow_store.configure_queue("airports", subscriptions=["search"])
    with airflow_store.transaction() as tx:
        tx.queue("airports").add("BRS", {})

    async def watch() -> None:
        reader = ExportQueueTrigger(queue_id="airports/search", poll_interval=0.02).run()
        assert (await anext(reader)).payload["queue"] == "airports/search"
        await reader.aclose()
        with pytest.raises(HasSubscriptions, match="airports/search"):
            await anext(ExportQueueTrigger(queue_id="airports", poll_interval=0.02).run())

    run(watch())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"poll_interval": "soon"}, "poll_interval: expected seconds above 0, found 'soon'"),
        ({"poll_interval": 0}, "poll_interval: expected seconds above 0, found 0"),
        ({"poll_interval": float("nan")}, "poll_interval: expected seconds above 0, found nan"),
        ({"poll_interval": None}, "poll_interval: expected seconds above 0, found None"),
        ({"min_interval": -1}, "min_interval: expected seconds from 0, found -1"),
        ({"min_interval": float("inf")}, "min_interval: expected seconds from 0, found inf"),
        ({"ranges": [[0, [5]]]}, "ranges: expected pairs of whole numbers"),
        ({"ranges": 5}, "ranges: expected pairs of whole numbers"),
        ({"queue_id": ["orders"]}, "queue_id: expected text, found list"),
        ({"export_queue_conn_id": 5}, "export_queue_conn_id: expected text, found int"),
    ],
)
def test_a_bad_argument_is_an_error_that_the_triggerer_outlives(arguments: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(told)) as refusal:
        ExportQueueTrigger(**{"queue_id": "orders", **arguments})
    assert isinstance(refusal.value, TypeError), "Airflow's triggerer ends with any other error of a constructor"


def test_numbers_and_ranges_that_were_rendered_to_text_are_read() -> None:
    trigger = ExportQueueTrigger(queue_id="orders", ranges="[[0, 101]]", poll_interval="5", min_interval="0")  # type: ignore[arg-type]
    _, arguments = trigger.serialize()
    assert (arguments["ranges"], arguments["poll_interval"], arguments["min_interval"]) == ([[0, 101]], 5, 0)


class Wrong:
    """A question that cannot be answered, for a reason that is no error of this library."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def answer(self, work: Any, snapshot: Any) -> Any:
        raise self.error


class Unhashable(Wrong):
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("question", "interval", "error"),
    [
        (Wrong(KeyError("x")), 0.02, KeyError),
        (Wrong(StopIteration()), 0.02, RuntimeError),
        (Unhashable(KeyError("x")), 0.02, TypeError),
        (Wrong(KeyError("x")), "soon", InvalidArgument),
        (Wrong(KeyError("x")), float("nan"), InvalidArgument),
    ],
    ids=["error", "StopIteration", "unhashable", "text", "nan"],
)
def test_a_wrong_question_fails_its_own_trigger_alone(
    airflow_store: Any, looks: Looks, question: Any, interval: Any, error: type[Exception]
) -> None:
    async def watch() -> None:
        other = watch_orders(poll_interval=0.02)
        async with polled_store("export_queue_default") as poller:
            good = QueueQuestion("orders", None)
            asked = [poller.look(good, 0.02), poller.look(question, interval), poller.look(good, 0.02)]
            first, found, last = await asyncio.gather(*asked, return_exceptions=True)
            assert isinstance(found, error)
            assert isinstance(first, Sighting)
            assert isinstance(last, Sighting)
        add(airflow_store, "anna")
        await looks.another(2)
        assert len(other.events) == 1
        await other.stop()

    run(watch())


def test_an_error_of_the_poller_itself_ends_triggers_that_wait_and_no_later_one(
    airflow_store: Any, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    async def watch() -> None:
        add(airflow_store, "anna")
        with monkeypatch.context() as patch:
            patch.setattr(polling.Poller, "_meet", broken)
            patch.setattr(polling.Poller, "_answer", broken)
            streams = [ExportQueueTrigger(queue_id="orders", poll_interval=3600).run() for _ in range(3)]
            async with polling.polled_store("export_queue_default"):  # keeps the poller while triggers come and go
                found = await asyncio.gather(*(anext(stream) for stream in streams[:2]), return_exceptions=True)
                assert [type(one) for one in found] == [ZeroDivisionError] * 2
                with pytest.raises(ZeroDivisionError):  # a poll that failed is shared with nobody
                    await anext(streams[2])
        later = watch_orders(poll_interval=0.02)
        await looks.another(2)
        assert len(later.events) == 1
        await later.stop()

    run(watch())


def test_it_survives_being_stored() -> None:
    from airflow.sdk._shared.module_loading import import_string

    trigger = ExportQueueTrigger(
        queue_id="orders", ranges=[[0, 101]], poll_interval=7, min_interval=9, export_queue_conn_id="other"
    )
    path, arguments = trigger.serialize()
    assert import_string(path)(**arguments).serialize() == (path, json.loads(json.dumps(arguments)))


# -- on PostgreSQL -----------------------------------------------------------------------------------------------------


@pytest.fixture
def postgres_store(postgres_url: str, connect: Callable[..., None]) -> Any:
    connect("export_queue_default", conn_type="export_queue", host=postgres_url)
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders", buckets=100, buckets_per_range=1)
        yield store


def test_a_hundred_sensors_take_one_look_an_interval_and_two_connections(postgres_store: Any, looks: Looks) -> None:
    database = sa.make_url(postgres_store.database.engine.url).database

    def sessions() -> int:
        with postgres_store.database.read() as work:
            statement = sa.text(
                "select count(*) from pg_stat_activity where datname = :name and pid <> pg_backend_pid()"
            )
            return int(work.connection.execute(statement, {"name": database}).scalar_one())

    async def watch() -> None:
        watched = [watch_orders(poll_interval=0.5, ranges=[[i, i + 1]] if i % 2 else None) for i in range(100)]
        begun = asyncio.get_running_loop().time()
        await looks.until(3)
        assert len(pollers()) == 1
        assert sessions() <= 2
        assert len(pollers()[0]._asks) == 100
        add(postgres_store, *(f"k{i}" for i in range(1000)))
        while not all(one.events for one in watched):
            await asyncio.sleep(0.01)
        passed = asyncio.get_running_loop().time() - begun
        assert looks.count <= passed / 0.5 + passed / polling._HINTED_SECONDS + 3
        for one in watched:
            await one.stop()
        assert pollers() == []

    run(watch())


@pytest.fixture
def pg_store(postgres_url: str, connect: Callable[..., None]) -> Iterator[Store]:
    connect("export_queue_default", conn_type="export_queue", host=postgres_url)
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders")
        store.configure_queue("airports", subscriptions=["search"])
        yield store


async def heard(watched: Watch, events: int = 1) -> None:
    while len(watched.events) < events:
        await asyncio.sleep(0.01)


def test_a_commit_and_an_acknowledgement_wake_triggers_that_poll_seldom(pg_store: Store, looks: Looks) -> None:
    async def watch() -> None:
        orders = watch_orders(min_interval=0)
        airports = Watch(ExportQueueTrigger(queue_id="airports/search", poll_interval=3600))
        await looks.another()
        with pg_store.transaction() as tx:
            tx.queue("airports").add("OSL", {})
        await heard(airports)
        exported = Watch(ExportQueueDrainedTrigger(queue_id="airports/search", token=tx.token, poll_interval=3600))
        await looks.another()
        assert exported.events == []
        await asyncio.to_thread(drain, pg_store, "airports/search", MemorySink())
        await heard(exported)
        for n in (1, 2):  # also after the listener has begun to listen to more
            await asyncio.to_thread(add, pg_store, f"customer {n}")
            await heard(orders, n)
        for one in (orders, airports, exported):
            await one.stop()

    run(watch())
    assert pollers() == []


def test_a_commit_within_the_least_interval_is_announced_at_its_end(pg_store: Store, looks: Looks) -> None:
    """Its hint causes a poll, after which nothing but time has to pass."""

    async def watch() -> None:
        watched = watch_orders(min_interval=3)
        await looks.another()
        begun = time.monotonic()
        await asyncio.to_thread(add, pg_store, "anna")
        await heard(watched)
        await asyncio.to_thread(add, pg_store, "ben")
        await heard(watched, 2)
        assert time.monotonic() - begun >= 3
        await asyncio.to_thread(empty, pg_store)
        await watched.stop()

    run(watch())


def test_a_queue_that_is_emptied_and_filled_all_the_time_causes_no_more_events_than_polls_at_intervals(
    airflow_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hints cause polls at any time; here each poll finds another state."""
    polls: list[bool] = []

    async def look(poller: Any, question: Any, interval: float) -> Any:
        await asyncio.sleep(0.001)
        polls.append(not polls or not polls[-1])
        return SimpleNamespace(waiting=[Range(0, 1)] * polls[-1], has_news=polls[-1])

    monkeypatch.setattr(polling.Poller, "look", look)

    async def watch() -> None:
        watched = watch_orders()
        while len(polls) < 50:
            await asyncio.sleep(0.001)
        assert len(watched.events) == 1
        await watched.stop()

    run(watch())


@pytest.fixture
def commit_in_next_poll(pg_store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after which the next poll takes the hint of a commit to ``orders``; it waits for that poll."""
    wanted, done = threading.Event(), threading.Event()
    inner = polling.Poller._listen

    def listen(poller: polling.Poller, store: Any, questions: Any) -> None:
        if wanted.is_set() and not done.is_set():
            add(pg_store, "anna")
            assert select.select([poller._listener], [], [], PATIENCE)[0], "no hint has come"
            done.set()
        inner(poller, store, questions)

    def commit() -> None:
        wanted.set()
        assert done.wait(PATIENCE)

    monkeypatch.setattr(polling.Poller, "_listen", listen)
    pg_store.configure_table("goods", row="str", value="int")
    pg_store.watch("goods", "stock")
    return commit


def watch_goods() -> Watch:
    """Watch a column, of which no hint tells: it asks all the time, and its polls take what hints have come."""
    return Watch(ExportQueueNotificationTrigger(table="goods", column="stock", poll_interval=0.05))


def test_a_hint_that_comes_during_a_poll_for_others_is_not_lost(
    looks: Looks, commit_in_next_poll: Callable[[], None]
) -> None:
    async def watch() -> None:
        orders = watch_orders()
        await looks.another()
        goods = watch_goods()
        await asyncio.to_thread(commit_in_next_poll)
        await heard(orders)
        for one in (orders, goods):
            await one.stop()

    run(watch())


def test_a_hint_that_was_taken_while_a_trigger_did_not_ask_is_not_lost(
    pg_store: Store, looks: Looks, commit_in_next_poll: Callable[[], None]
) -> None:
    """Airflow takes its time with an event, and meanwhile the trigger waits for nothing."""

    async def watch() -> None:
        async with polled_store("export_queue_default") as poller:
            found = await poller.look(QueueQuestion("orders", None), 3600)
            goods = watch_goods()
            await asyncio.to_thread(commit_in_next_poll)
            await looks.another()
            await goods.stop()  # whose next poll would serve all
            found = await poller.look(QueueQuestion("orders", None, since=found), 3600)
            assert found.has_news

    run(watch())


def test_hints_come_again_after_the_session_that_gets_them_was_ended(pg_store: Store, looks: Looks) -> None:
    ended = """select pg_terminate_backend(pid) from pg_locks join pg_stat_activity using (pid)
        where locktype = 'advisory' and query ilike '%advisory%' and datname = current_database()"""

    async def watch() -> None:
        watched = watch_orders(min_interval=0)
        await looks.another()
        with pg_store.database.engine.connect() as connection:
            assert connection.execute(sa.text(ended)).all()
        await looks.another()  # the end of the session wakes the poller, which listens once more
        await asyncio.to_thread(add, pg_store, "anna")
        await heard(watched)
        await watched.stop()

    run(watch())


def test_after_an_outage_a_trigger_that_polls_seldom_need_not_wait_for_its_interval(
    pg_store: Store, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During it no hint comes."""
    outages, opened = [StoreUnavailable("the store is away")] * 3, polling.open_store

    def away(described: Any) -> Any:
        if outages:
            raise outages.pop()
        return opened(described)

    monkeypatch.setattr(polling, "open_store", away)
    monkeypatch.setattr(polling, "_LISTEN_AGAIN_SECONDS", 0.05)

    async def watch() -> None:
        watched = watch_orders()
        await looks.another(4)
        await asyncio.to_thread(add, pg_store, "anna")
        await heard(watched)
        await watched.stop()

    run(watch())


def test_without_hints_triggers_poll(pg_store: Store, looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> None:
        raise StoreUnavailable("no more connections")

    monkeypatch.setattr(HintTraffic, "listen", refused)

    async def watch() -> None:
        watched = watch_orders(poll_interval=0.02)
        await looks.another()
        await asyncio.to_thread(add, pg_store, "anna")
        await heard(watched)
        await watched.stop()

    run(watch())


@pytest.fixture
def lonely_server() -> Any:
    with PostgresServer() as server:
        yield server


@pytest.mark.full("a server of PostgreSQL of its own, which is stopped")
def test_it_outlives_a_restart_of_the_database(
    lonely_server: PostgresServer, connect: Callable[..., None], looks: Looks
) -> None:
    url = lonely_server.url(lonely_server.create_database())
    connect("export_queue_default", conn_type="export_queue", host=url)
    with Store.open(url) as store:
        store.create()
        store.configure_queue("orders")

    async def watch() -> None:
        watched = watch_orders(poll_interval=0.02)
        await looks.another()
        lonely_server.stop()
        await looks.another(5)
        late = watch_orders(poll_interval=0.02)  # a trigger that begins during the outage waits, too
        await looks.another(5)
        lonely_server.start()
        with Store.open(url) as store:
            add(store, "anna")
        while not (watched.events and late.events):
            await asyncio.sleep(0.01)
        await watched.stop()
        await late.stop()

    run(watch())
