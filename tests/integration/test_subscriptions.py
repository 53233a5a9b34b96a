"""Several readers of one queue: each gets exactly what commits after its start (I3, I6, I7)."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import orjson
import psycopg
import pytest
import sqlalchemy as sa
from tests.support.patience import AT_ONCE
from tests.support.waiting import PATIENCE, wait_until

from export_queue import (
    EntriesWait,
    EntryError,
    ExportQueueError,
    HasSubscriptions,
    InvalidArgument,
    MemorySink,
    OptionsDiffer,
    Owner,
    QueueBusy,
    Range,
    RegistrationLost,
    Retry,
    SinkBindingError,
    Store,
    TransactionsInProgress,
    UnknownQueue,
    bucket,
    drain,
)
from export_queue.core.locks import claim
from export_queue.core.maintenance import maintain
from export_queue.core.queue import QueueWriter, read_entries, subscribe, unsubscribe, waiting_ranges
from export_queue.core.queue.stored_queues import add_reader
from export_queue.core.store import queries
from export_queue.core.store.registration import QUEUE_BIT
from export_queue.core.transactions import OpenTransaction, settled_snapshot, take_snapshot

fork = multiprocessing.get_context("fork")
ONCE = Retry(attempts=1)
SOON = Retry(attempts=None, seconds=PATIENCE, first_pause=0.01)


@pytest.fixture
def airports(store: Store) -> Store:
    """A store with a queue that two read."""
    store.configure_queue("airports", buckets=16, buckets_per_range=4, subscriptions=["search", "cache"])
    return store


def add(store: Store, *keys: str, long: bool = False, **options: Any) -> None:
    with store.transaction(long=long) as tx:
        for key in keys:
            tx.queue("airports").add(key, {"key": key}, **options)
            if long:
                tx.flush()


def keys(store: Store, queue_id: str) -> list[str]:
    """The keys that wait; each stands in the bucket of its queue's own layout."""
    queue = store.queue(queue_id)
    with store.database.read() as work:
        found = read_entries(
            work, queue, take_snapshot(store.database), Range(0, queue.buckets), rows=1000, size=1 << 30
        )
    assert found.buckets == [bucket(key, queue.buckets) for key in found.keys]
    return sorted(key.decode() for key in found.keys)


def documents(sink: MemorySink) -> dict[str, Any]:
    """The records of the queue's collection."""
    assert {collection for collection, _ in sink.records()} <= {"airports"}
    return {key.decode(): orjson.loads(document) for (_, key), document in sink.records().items()}


def rows(store: Store, queue_id: str = "airports") -> int:
    """All entries under a queue's own number, of transactions in progress too."""
    with store.database.read() as work:
        return queries.readers.count_rows(work, store.queue(queue_id).number, locked_at=0)[0]


@contextmanager
def bound(store: Store, store_url: str) -> Iterator[Any]:
    """A connection of the user's with a SQL transaction open, which is committed at the end."""
    if store_url.startswith("sqlite"):
        connection: Any = sqlite3.connect(store_url.removeprefix("sqlite:///"), isolation_level=None, timeout=PATIENCE)
        connection.execute("begin immediate")
    else:
        connection = psycopg.connect(store_url.replace("+psycopg", ""))
        connection.execute("select 1")
    try:
        yield connection
        connection.commit()
    finally:
        connection.close()


# -- each reader has its own ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("long", [False, True])
def test_each_subscription_gets_every_entry(airports: Store, long: bool) -> None:
    add(airports, "a", "b", long=long)
    assert keys(airports, "airports/search") == keys(airports, "airports/cache") == ["a", "b"]
    assert rows(airports) == 0


def test_a_bound_transaction_reaches_every_subscription(airports: Store, store_url: str) -> None:
    with bound(airports, store_url) as connection, airports.transaction(connection=connection) as tx:
        tx.queue("airports").add("a", 1)
    assert keys(airports, "airports/search") == keys(airports, "airports/cache") == ["a"]


def test_each_subscription_has_the_buckets_of_its_own_layout(airports: Store) -> None:
    with airports.database.begin() as work:
        layout = queries.queues.q.update().where(queries.queues.q.c.id == "airports/cache")
        work.connection.execute(layout.values(buckets=5, buckets_per_range=5, layout=7))
    names = [f"key {number}" for number in range(40)]
    add(airports, *names)
    add(airports, "ä" * 17, long=True)
    for reader in ("airports/search", "airports/cache"):
        assert keys(airports, reader) == sorted([*names, "ä" * 17])


def test_a_broken_reader_holds_back_no_other_one(airports: Store) -> None:
    def refuse(entry: Any) -> list[Any]:
        raise ValueError("broken")

    add(airports, "a", "b")
    sink = MemorySink()
    assert drain(airports, "airports/search", MemorySink(), sink_name="search", exporter=refuse).dead == 2
    assert drain(airports, "airports/cache", sink, sink_name="cache").acknowledged == 2
    assert keys(airports, "airports/cache") == keys(airports, "airports/search") == []
    assert airports.dead_letters.count("airports/search") == 2
    assert airports.dead_letters.count("airports/cache") == 0
    assert airports.dead_letters.retry("airports/search") == 2
    assert keys(airports, "airports/search") == ["a", "b"]


def test_two_subscriptions_may_feed_one_collection(airports: Store) -> None:
    sink = MemorySink()
    add(airports, "a")
    assert drain(airports, "airports/search", sink, sink_name="one").written == 1
    assert drain(airports, "airports/cache", sink, sink_name="one").stale == 1


def test_each_subscription_is_bound_to_a_sink_of_its_own(airports: Store) -> None:
    drain(airports, "airports/search", MemorySink(), sink_name="one")
    drain(airports, "airports/cache", MemorySink(), sink_name="two")
    with pytest.raises(SinkBindingError):
        drain(airports, "airports/search", MemorySink(), sink_name="two")
    airports.rebind("airports/search", "two")
    assert {reader.id: reader.sink for reader in airports.subscriptions("airports")} == {
        "airports/search": "two",
        "airports/cache": "two",
    }


def test_a_repeated_commit_adds_nothing(airports: Store) -> None:
    begun = airports.begin()
    with airports.resume(begun) as tx:
        tx.queue("airports").add("a", 1)
    assert airports.commit(begun) == airports.commit(begun)
    assert keys(airports, "airports/search") == ["a"]


# -- exactly what commits after a reader's start ----------------------------------------------------------------------


def test_a_new_subscription_starts_empty(airports: Store) -> None:
    add(airports, "before")
    reader = airports.subscribe("airports", "reports")
    assert (reader.id, reader.parent, reader.first_load) == ("airports/reports", "airports", "missing")
    add(airports, "after")
    assert keys(airports, "airports/reports") == ["after"]
    assert keys(airports, "airports/search") == ["after", "before"]


def test_a_client_that_knew_the_queue_before_reaches_a_new_subscription(
    airports: Store, open_store: Callable[[], Store]
) -> None:
    with open_store() as other:
        add(other, "before")
        airports.subscribe("airports", "reports")
        airports.unsubscribe("airports", "cache", discard=True)
        add(other, "after")
        add(other, "long", long=True)
    assert keys(airports, "airports/reports") == ["after", "long"]


def test_what_was_staged_reaches_the_subscriptions_that_are_there_at_the_commit(airports: Store) -> None:
    with airports.transaction(long=True) as tx:
        tx.queue("airports").add("a", 1)
        tx.flush()
        airports.subscribe("airports", "reports")
        airports.unsubscribe("airports", "cache")
        airports.unsubscribe("airports", "search")
        assert keys(airports, "airports/reports") == []
    assert keys(airports, "airports/reports") == ["a"]
    assert rows(airports) == 0


@pytest.mark.parametrize("reader", ["airports/search", "countries"], ids=["subscriptions", "a state alone"])
def test_a_commit_reads_each_staged_entry_once(airports: Store, store_url: str, reader: str) -> None:
    """The planner knows nothing of what has just been staged: tables are analysed while they are empty."""
    if store_url.startswith("sqlite"):
        pytest.skip("counts of PostgreSQL")
    airports.configure_queue("countries", state=True)
    queue = reader.partition("/")[0]
    number, staged = airports.queue(queue).number, 1000
    with (
        airports.transaction(long=True) as tx,
        psycopg.connect(store_url.replace("+psycopg", ""), options="-c search_path=export_queue") as looking,
    ):
        looking.execute("analyze xq_entry, xq_staged_entry, xq_queue")
        looking.commit()
        tx.queue(queue).add_many((f"key {count}", count) for count in range(staged))
        tx.flush()
        looking.execute("select xq_publish_staged_v1(%s, array[%s]::bigint[])", (tx.id, number))
        counted = looking.execute(
            "select sum(pg_stat_get_xact_tuples_returned(c.oid)) from pg_class c "
            "where c.oid = 'xq_entry'::regclass or c.oid in "
            "(select indexrelid from pg_index where indrelid = 'xq_entry'::regclass)"
        ).fetchone()
        looking.rollback()
    assert counted
    assert 0 < counted[0] < 10 * staged
    assert rows(airports, reader) == staged


def test_a_subscription_waits_for_a_bound_transaction_and_misses_it(airports: Store, store_url: str) -> None:
    if store_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    with ThreadPoolExecutor() as threads:
        with bound(airports, store_url) as connection:
            with airports.transaction(connection=connection) as tx:
                tx.queue("airports").add("a", 1)
            with pytest.raises(QueueBusy, match="airports"):
                subscribe(airports.database, "airports", "reports", retry=ONCE)
            with pytest.raises(QueueBusy):
                unsubscribe(airports.database, "airports", "cache", discard=True, who="eve", retry=ONCE)
            tried, sleeping = threading.Event(), threading.Event()
            patient = Retry(attempts=None, seconds=PATIENCE, sleep=lambda _: (tried.set(), sleeping.wait(0.01)))
            waiting = threads.submit(subscribe, airports.database, "airports", "reports", retry=patient)
            assert tried.wait(PATIENCE)
            add(airports, "meanwhile")  # is not held up by whoever waits
        waiting.result(PATIENCE)
    add(airports, "after")
    assert keys(airports, "airports/reports") == ["after"]
    assert keys(airports, "airports/search") == ["a", "after", "meanwhile"]


def test_a_commit_that_waited_for_a_subscription_reaches_it(
    airports: Store, store_url: str, open_store: Callable[[], Store]
) -> None:
    if store_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    with ThreadPoolExecutor() as threads, open_store() as other:
        parent = airports.queue("airports")
        with airports.database.begin() as work:
            assert queries.readers.try_to_shut_out_commits(work, parent.number)
            add_reader(work, parent, "reports", first_load="missing")
            added = threads.submit(add, other, "a")
            wait_until(lambda: is_awaited(store_url), "no commit waits")
        added.result(PATIENCE)
    assert keys(airports, "airports/reports") == ["a"]


def test_commits_that_overlap_without_end_let_a_subscription_in(
    airports: Store, store_url: str, store_kind: str
) -> None:
    if store_kind != "postgresql":
        pytest.skip("advisory locks have a queue")
    with ThreadPoolExecutor() as threads:
        with bound(airports, store_url) as connection:
            with airports.transaction(connection=connection) as tx:
                tx.queue("airports").add("a", 1)
            waiting = threads.submit(subscribe, airports.database, "airports", "reports", retry=SOON)
            wait_until(lambda: is_awaited(store_url), "it does not stand in the queue", seconds=10, pause=0.001)
        waiting.result(PATIENCE)


def test_whoever_changes_readers_holds_up_nobody_while_a_drain_stands_still(airports: Store, store_url: str) -> None:
    if store_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    reader = airports.queue("airports/search")
    claim(airports.database, reader, reader.units(), owner=Owner.unique(), lease_seconds=60)
    tried, sleeping = threading.Event(), threading.Event()
    patient = Retry(attempts=None, seconds=PATIENCE, sleep=lambda _: (tried.set(), sleeping.wait(0.01)))
    with ThreadPoolExecutor() as threads:
        with psycopg.connect(store_url.replace("+psycopg", "")) as drain_at_work:
            drain_at_work.execute("select 1 from export_queue.xq_lock for share")
            waiting = threads.submit(unsubscribe, airports.database, "airports", "search", retry=patient)
            wait_until(lambda: tried.is_set() or is_awaited(store_url), "it neither waits nor gives up")
            threads.submit(add, airports, "meanwhile").result(10)
            assert not waiting.done()
            with pytest.raises(QueueBusy, match="in use"):
                unsubscribe(airports.database, "airports", "search", discard=True, who="eve", retry=ONCE)
            airports.database.forget_connections()
        with pytest.raises(EntriesWait):
            waiting.result(PATIENCE)


def test_an_unsubscription_asks_for_its_rows_in_the_order_of_a_claim(airports: Store, store_url: str) -> None:
    if store_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    reader = airports.queue("airports/search")
    claim(airports.database, reader, reader.units(), owner=Owner.unique(), lease_seconds=60)
    with ThreadPoolExecutor() as threads:
        with airports.database.begin() as work:
            queries.locks.serialise_requests(work, reader.number)
            waiting = threads.submit(unsubscribe, airports.database, "airports", "search", retry=SOON)
            wait_until(lambda: waiting.done() or is_awaited(store_url), "it does not wait")
            work.connection.exec_driver_sql("select 1 from export_queue.xq_lock for update nowait")
        waiting.result(PATIENCE)


def test_nobody_subscribes_while_the_queue_is_altered(airports: Store, store_url: str) -> None:
    if store_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    parent = airports.queue("airports")
    with airports.database.begin() as work:
        queries.locks.serialise_requests(work, parent.number)
        with pytest.raises(QueueBusy):
            subscribe(airports.database, "airports", "reports", retry=ONCE)


def test_what_changes_nothing_waits_for_nobody(airports: Store, store_url: str) -> None:
    with bound(airports, store_url) as connection:
        with airports.transaction(connection=connection) as tx:
            tx.queue("airports").add("a", 1)
        assert subscribe(airports.database, "airports", "search", retry=ONCE).name == "search"
        with pytest.raises(UnknownQueue, match="cache, search"):
            unsubscribe(airports.database, "airports", "other", retry=ONCE)


def is_awaited(url: str) -> bool:
    with psycopg.connect(url.replace("+psycopg", "")) as looking:
        found = looking.execute(
            "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%%xq_%%' "
            "and datname = current_database()"
        )
        return found.fetchone() is not None


def test_an_unsubscription_that_is_killed_has_taken_effect_or_not(
    airports: Store, open_store: Callable[[], Store]
) -> None:
    """At each statement of an unsubscription its process is killed: the reader is there as it was, or has gone."""
    statements = itertools.count(1)
    for number in statements:
        airports.subscribe("airports", "reports")
        add(airports, f"key {number}")
        child = fork.Process(target=unsubscribe_and_die, args=(open_store, number), daemon=True)
        child.start()
        child.join(PATIENCE)
        assert child.exitcode in (0, -signal.SIGKILL)
        names = [reader.name for reader in airports.subscriptions("airports")]
        if child.exitcode == 0:
            assert names == ["cache", "search"]
            break
        assert names == ["cache", "reports", "search"]
        assert f"key {number}" in keys(airports, "airports/reports")
    assert number > 5
    assert maintain(airports.database, patience=AT_ONCE).removed == number
    assert len(keys(airports, "airports/search")) == number


def unsubscribe_and_die(open_store: Callable[[], Store], last: int) -> None:
    """Unsubscribe, and be killed in the place of a statement."""
    with open_store() as store:
        seen = itertools.count(1)

        def die(*_: Any) -> None:
            if next(seen) == last:
                os.kill(os.getpid(), signal.SIGKILL)

        _ = store.identity
        sa.event.listen(store.database.engine, "before_cursor_execute", die)
        store.unsubscribe("airports", "reports", discard=True)


def test_the_lock_of_a_queues_readers_is_no_id_and_its_neighbours_are_anybodys(
    airports: Store, store_url: str, store_kind: str
) -> None:
    if store_kind != "postgresql":
        pytest.skip("advisory locks")
    with psycopg.connect(store_url.replace("+psycopg", "")) as application:
        key = application.execute(
            "select (q.number | %s) # s.mask from export_queue.xq_queue q, export_queue.xq_store s "
            "where q.id = 'airports'",
            (QUEUE_BIT,),
        ).fetchone()
        assert key is not None
        application.execute(
            "select pg_advisory_lock(%s::bigint - 1), pg_advisory_lock(%s::bigint + 1)", (key[0], key[0])
        )
        airports.subscribe("airports", "reports")
        with bound(airports, store_url) as connection:
            with airports.transaction(connection=connection) as tx:
                tx.queue("airports").add("a", 1)
            held = (
                "select 1 from pg_locks where locktype = 'advisory' and mode = 'ShareLock' and objid = %s & 4294967295"
            )
            assert application.execute(held, key).fetchone() is not None
            assert len(take_snapshot(airports.database).excluded) == 1  # the transaction itself
    assert keys(airports, "airports/reports") == ["a"]
    assert take_snapshot(airports.database).excluded == ()


def test_patience_for_transactions_in_progress_has_a_limit(airports: Store, store_url: str) -> None:
    if store_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    seconds = itertools.count()
    limited = Retry(attempts=None, seconds=10, sleep=lambda _: None, clock=lambda: float(next(seconds)))
    with bound(airports, store_url) as connection:
        with airports.transaction(connection=connection) as tx:
            tx.queue("airports").add("a", 1)
        with pytest.raises(QueueBusy) as caught:
            subscribe(airports.database, "airports", "reports", retry=limited)
    assert caught.value.transient
    assert "bound" in caught.value.hint
    assert 5 <= next(seconds) <= 15


def test_a_request_for_locks_does_not_wait_for_a_bound_transaction(airports: Store, store_url: str) -> None:
    if store_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    airports.configure_queue("plain", buckets=4, buckets_per_range=4)
    with ThreadPoolExecutor() as threads, bound(airports, store_url) as connection:
        with airports.transaction(connection=connection) as tx:
            tx.queue("plain").add("a", 1)
        plain = airports.queue("plain")
        claimed = threads.submit(claim, airports.database, plain, plain.units(), owner=Owner.unique(), lease_seconds=60)
        assert len(claimed.result(PATIENCE)) == 1


# -- the first subscription and the last one --------------------------------------------------------------------------


def test_the_first_subscription_is_refused_while_entries_wait(store: Store) -> None:
    store.configure_queue("airports", buckets=4, buckets_per_range=4)
    add(store, "a")
    with pytest.raises(EntriesWait, match=r"found 1 entries, 0 dead letters and 0 locks(.|\n)*drain the queue"):
        store.subscribe("airports", "search")
    sink = MemorySink()
    drain(store, "airports", sink, sink_name="memory")
    assert store.subscribe("airports", "search").first_load == "missing"
    assert store.queue("airports").fans_out
    assert store.queue("airports").sink is None


def test_the_first_subscription_is_refused_while_entries_are_staged_or_dead_or_drained(store: Store) -> None:
    store.configure_queue("airports", buckets=4, buckets_per_range=4)
    with store.transaction(long=True) as tx:
        tx.queue("airports").add("a", 1)
        tx.flush()
        with pytest.raises(EntriesWait, match="found 1 entries"):
            store.subscribe("airports", "search")
    drain(store, "airports", MemorySink(), sink_name="memory", exporter=lambda entry: 1 / 0)
    with pytest.raises(EntriesWait, match="1 dead letters"):
        store.subscribe("airports", "search")
    store.dead_letters.drop("airports")
    queue = store.queue("airports")
    claim(store.database, queue, queue.units(), owner=Owner.unique(), lease_seconds=60)
    with pytest.raises(EntriesWait, match="1 locks"):
        store.subscribe("airports", "search")


def test_the_last_subscription_stays(store: Store) -> None:
    store.configure_queue("airports", subscriptions=["search"])
    with pytest.raises(InvalidArgument, match=r"last one(.|\n)*subscribe another"):
        store.unsubscribe("airports", "search", discard=True)


def test_a_subscription_with_entries_or_dead_letters_is_removed_only_if_they_are_given_up(airports: Store) -> None:
    add(airports, "a", "b")
    drain(airports, "airports/search", MemorySink(), sink_name="s", exporter=lambda entry: 1 / 0)
    add(airports, "c")
    with pytest.raises(EntriesWait, match=r"found 1 entries, 2 dead letters(.|\n)*discard=True"):
        airports.unsubscribe("airports", "search")
    airports.unsubscribe("airports", "search", discard=True)
    with pytest.raises(UnknownQueue):
        airports.queue("airports/search")
    assert [reader.id for reader in airports.subscriptions("airports")] == ["airports/cache"]
    assert keys(airports, "airports/cache") == ["a", "b", "c"]


def test_a_subscription_that_is_given_up_leaves_a_record_of_what_waited(airports: Store) -> None:
    add(airports, "a", "b")
    drain(airports, "airports/search", MemorySink(), sink_name="s", exporter=lambda entry: 1 / 0)
    add(airports, "c")
    airports.unsubscribe("airports", "search", discard=True, who="anna")
    (act,) = airports.dead_letters.audit("airports")
    assert (act.act, act.who, act.letters) == ("unsubscribe", "anna", 2)
    assert orjson.loads(act.selection) == {"subscription": "search", "entries": 1}
    prefix = "" if airports.url_safe.startswith("sqlite") else "export_queue."
    with airports.database.read() as work:
        rows = work.connection.exec_driver_sql(f"select queue, act, letters from {prefix}dead_letter_audit").all()
    assert [tuple(row) for row in rows] == [("airports", "unsubscribe", 2)]


def test_a_subscription_that_goes_without_loss_leaves_no_record(airports: Store) -> None:
    airports.unsubscribe("airports", "search", discard=True)
    assert airports.dead_letters.audit("airports") == []


def test_a_discard_names_its_actor(airports: Store) -> None:
    add(airports, "a")
    airports.unsubscribe("airports", "search", discard=True)
    assert "@" in airports.dead_letters.audit("airports")[0].who
    airports.subscribe("airports", "search")
    with pytest.raises(InvalidArgument, match="who: expected a name"):
        unsubscribe(airports.database, "airports", "search", discard=True)


def test_clean_up_deletes_what_a_removed_subscription_had(airports: Store) -> None:
    add(airports, *(f"key {number}" for number in range(20)))
    drain(airports, "airports/search", MemorySink(), sink_name="s", exporter=lambda entry: 1 / 0, ranges=[[0, 8]])
    number = airports.queue("airports/search").number
    airports.unsubscribe("airports", "search", discard=True)
    assert maintain(airports.database, limit=7, patience=AT_ONCE).removed == 7
    assert maintain(airports.database, patience=AT_ONCE).removed == 13
    with airports.database.read() as work:
        assert queries.readers.count_rows(work, number, locked_at=0) == (0, 0, 0)
    assert maintain(airports.database, patience=AT_ONCE).removed == 0
    assert len(keys(airports, "airports/cache")) == 20


def test_a_drain_of_a_removed_subscription_removes_nothing_any_more(airports: Store) -> None:
    add(airports, "a")
    reader = airports.queue("airports/search")

    def remove(entry: Any) -> list[Any]:
        if airports.subscriptions("airports")[-1].name == "search":
            airports.unsubscribe("airports", "search", discard=True)
        return []

    with pytest.raises(Exception, match=r"lease|removed|no queue"):
        drain(airports, "airports/search", MemorySink(), sink_name="s", exporter=remove)
    with airports.database.read() as work:
        assert queries.readers.count_rows(work, reader.number, locked_at=0)[0] == 1
    with pytest.raises(UnknownQueue):
        claim(airports.database, reader, reader.units(), owner=Owner.unique(), lease_seconds=60)


def test_the_sink_of_a_removed_namesake_is_told_of_until_something_was_drained(
    airports: Store, caplog: pytest.LogCaptureFixture
) -> None:
    sink = MemorySink()

    def warned(sink_name: str) -> bool:
        caplog.clear()
        drain(airports, "airports/search", sink, sink_name=sink_name)
        return "a subscription of this name" in caplog.text

    add(airports, "a")
    assert not warned("index")
    airports.unsubscribe("airports", "search")
    airports.subscribe("airports", "search")
    assert warned("index")
    assert warned("index"), "nothing was drained so far"
    add(airports, "b")
    assert warned("index")
    assert not warned("index")
    airports.unsubscribe("airports", "search")
    airports.subscribe("airports", "search")
    assert not warned("other")


def test_reports_of_a_removed_namesake_are_not_those_of_the_new_one(airports: Store) -> None:
    add(airports, "a", exclusive=True)
    drain(airports, "airports/search", MemorySink(), sink_name="index")
    assert airports.why("airports/search", "a").possible_delivery is not None
    airports.unsubscribe("airports", "search")
    assert len(airports.reports(queue_id="airports/search")) == 1
    airports.subscribe("airports", "search")
    assert airports.reports(queue_id="airports/search") == []
    story = airports.why("airports/search", "a")
    assert story.possible_delivery is None
    assert story.last_drain is None
    drain(airports, "airports/search", MemorySink(), sink_name="other")
    assert len(airports.reports(queue_id="airports/search")) == 1


def test_a_drain_of_a_removed_subscription_leaves_no_fence_to_its_namesake(airports: Store) -> None:
    class Removing(MemorySink):
        batches = 0

        def apply(self, operations: Any) -> Any:
            self.batches += 1
            if self.batches == 2:  # by then something was acknowledged
                airports.unsubscribe("airports", "search", discard=True)
            return super().apply(operations)

    add(airports, *(f"k{i}" for i in range(200)))
    with pytest.raises(ExportQueueError):
        drain(airports, "airports/search", Removing(), sink_name="index", chunk_rows=10)
    airports.subscribe("airports", "search")
    add(airports, "new")
    again = drain(airports, "airports/search", MemorySink(), sink_name="index")
    assert again.acknowledged == 1


def test_a_refused_unsubscription_leaves_a_drain_at_work_alone(airports: Store) -> None:
    add(airports, "a")

    def export(entry: Any) -> list[Any]:
        with pytest.raises(EntriesWait, match="1 entries"):
            airports.unsubscribe("airports", "search")
        return []

    assert drain(airports, "airports/search", MemorySink(), sink_name="s", exporter=export).acknowledged == 1


def test_a_subscription_that_comes_again_is_a_new_one(airports: Store) -> None:
    add(airports, "a")
    sink = MemorySink()
    drain(airports, "airports/search", sink, sink_name="s")
    add(airports, "b")
    airports.unsubscribe("airports", "search", discard=True)
    airports.subscribe("airports", "search")
    assert keys(airports, "airports/search") == []
    add(airports, "c")
    drain(airports, "airports/search", MemorySink(), sink_name="another")  # not taken for one that has lost data
    airports.unsubscribe("airports", "search")
    airports.subscribe("airports", "search")
    drain(airports, "airports/search", sink, sink_name="s")


def test_to_subscribe_again_changes_nothing(airports: Store) -> None:
    before = airports.subscribe("airports", "search")
    assert before.first_load is None
    add(airports, "a")
    assert airports.subscribe("airports", "search") == before
    assert keys(airports, "airports/search") == ["a"]


# -- names and options ------------------------------------------------------------------------------------------------


def test_the_same_subscriptions_again_change_nothing_and_others_are_refused(airports: Store) -> None:
    options: dict[str, Any] = {"buckets": 16, "buckets_per_range": 4}
    for same in (["cache", "search"], ("search", "cache"), None):
        assert airports.configure_queue("airports", **options, subscriptions=same).fans_out
    for other in (["search"], ["search", "cache", "reports"], []):
        with pytest.raises(OptionsDiffer, match=r"\['cache', 'search'\](.|\n)*subscribe"):
            airports.configure_queue("airports", **options, subscriptions=other)


def test_a_queue_without_subscriptions_says_so_when_others_are_expected(store: Store) -> None:
    store.configure_queue("plain")
    store.configure_queue("plain", subscriptions=[])
    with pytest.raises(OptionsDiffer, match=r"store\.subscribe"):
        store.configure_queue("plain", subscriptions=["search"])
    assert store.subscriptions("plain") == []


@pytest.mark.parametrize("names", ["search", ["a/b"], ["A"], ["a", "a"], [""]])
def test_bad_names_of_subscriptions_are_refused(store: Store, names: Any) -> None:
    with pytest.raises(InvalidArgument, match="subscription"):
        store.configure_queue("airports", subscriptions=names)


def test_a_subscription_has_no_subscriptions(airports: Store) -> None:
    with pytest.raises(InvalidArgument, match="found that of a subscription"):
        airports.subscribe("airports/search", "more")
    with pytest.raises(InvalidArgument, match="1-64"):
        airports.configure_queue("airports/search")
    with pytest.raises(UnknownQueue, match="airports/cache"):
        airports.queue("airports/other")
    with pytest.raises(UnknownQueue, match="cache, search"):
        airports.unsubscribe("airports", "other")


def test_a_queue_with_subscriptions_is_not_read_itself(airports: Store) -> None:
    for ask in (
        lambda: airports.backlog("airports"),
        lambda: airports.waiting_ranges("airports"),
        lambda: airports.rebind("airports", "sink"),
        lambda: airports.dead_letters.count("airports"),
        lambda: drain(airports, "airports", MemorySink(), sink_name="s"),
    ):
        with pytest.raises(HasSubscriptions, match="airports/cache, airports/search"):
            ask()


def test_a_subscription_is_not_added_to_by_itself(airports: Store) -> None:
    with (
        pytest.raises(InvalidArgument, match=r"'airports/search'(.|\n)*add to 'airports'"),
        airports.transaction() as tx,
    ):
        tx.queue("airports/search").add("a", 1)


def test_the_store_itself_refuses_what_is_added_to_a_subscription(airports: Store) -> None:
    for kind in ("short", "long"):
        opened = OpenTransaction(airports.database, kind=kind)  # type: ignore[arg-type]
        QueueWriter(opened, airports.queue("airports/search")).add("a", 1)
        with pytest.raises(InvalidArgument, match="found subscription 'airports/search'"):
            opened.commit()
    assert rows(airports, "airports/search") == 0


# -- first loads ------------------------------------------------------------------------------------------------------


def test_a_first_load_brings_what_was_committed_before(airports: Store) -> None:
    for key in ("a", "b"):
        with airports.transaction() as tx:
            tx.table("names").set(key, "n", key.encode())
            tx.queue("airports").add(key, key)
    airports.subscribe("airports", "reports")
    with airports.transaction() as tx:
        tx.table("names").set("b", "n", b"new")
        tx.queue("airports").add("b", "new")
    with airports.first_load("airports/reports") as load:
        load.add_many((row.decode(), value.decode()) for row, _, value in load.table("names").scan())
        load.flush()
        with airports.transaction() as tx:  # newer than the load
            tx.queue("airports").add("a", "newest")
    assert airports.queue("airports/reports").first_load == "made"
    sink = MemorySink()
    report = drain(airports, "airports/reports", sink, sink_name="reports")
    assert report.first_load == "made"
    assert report.warnings() == []
    assert documents(sink) == {"a": "newest", "b": "new"}
    assert keys(airports, "airports/search") == ["a", "a", "b", "b"]
    with pytest.raises(InvalidArgument, match="was made"), airports.first_load("airports/reports"):
        pass


def test_a_first_load_that_fails_is_still_missing(airports: Store) -> None:
    airports.subscribe("airports", "reports")
    with pytest.raises(ZeroDivisionError), airports.first_load("airports/reports") as load:
        load.add("a", 1)
        load.flush()
        _ = 1 / 0
    assert airports.queue("airports/reports").first_load == "missing"
    assert rows(airports, "airports/reports") == 0


def test_a_first_load_waits_for_older_transactions(airports: Store) -> None:
    airports.subscribe("airports", "reports")
    older = airports.begin()
    with (
        pytest.raises(TransactionsInProgress, match=r"waits for 1 older ones: \d+ \(long, since .* UTC, of ") as caught,
        airports.first_load("airports/reports", settle_timeout=0.05),
    ):
        pass
    assert caught.value.transient
    with airports.resume(older) as tx:
        tx.table("names").set("a", "n", b"old")
    with ThreadPoolExecutor() as threads:

        def load() -> list[Any]:
            with airports.first_load("airports/reports") as loading:
                return list(loading.table("names").scan())

        loaded = threads.submit(load)
        wait_until(lambda: active(airports) == 2, "no load waits")
        airports.commit(older)
        assert [value for _, _, value in loaded.result(PATIENCE)] == [b"old"]


def test_a_first_load_sees_what_an_older_transaction_wrote_behind_a_checkpoint(airports: Store) -> None:
    """Its write pointer is greater than the load's id, and its entries have a smaller sequence."""
    airports.subscribe("airports", "reports")
    with ThreadPoolExecutor() as threads:

        def load() -> None:
            with airports.first_load("airports/reports") as loading:
                for row, _, value in loading.table("names").scan():
                    loading.add(row.decode(), value.decode())

        with airports.transaction(long=True) as older:
            older.queue("airports").add("a", "new")
            older.flush()
            loaded = threads.submit(load)
            wait_until(lambda: active(airports) == 2, "no load waits")
            older.checkpoint()
            older.table("names").set("a", "n", b"new")
        loaded.result(PATIENCE)
    sink = MemorySink()
    drain(airports, "airports/reports", sink, sink_name="reports")
    assert documents(sink) == {"a": "new"}


def active(store: Store) -> int:
    with store.database.read() as work:
        statement = "select count(*) from {}active_transactions where kind = 'long'"
        place = "" if work.connection.dialect.name == "sqlite" else "export_queue."
        return int(work.connection.exec_driver_sql(statement.format(place)).scalar_one())


def test_a_first_load_writes_nothing_else(airports: Store) -> None:
    airports.subscribe("airports", "reports")
    with pytest.raises(InvalidArgument, match="writes nothing else"), airports.first_load("airports/reports") as load:
        load.table("names").set("a", "n", b"1")
    for wrong, found in (("airports", "found queue"), ("airports/search", "from the beginning")):
        with pytest.raises(InvalidArgument, match=found), airports.first_load(wrong):
            pass


def test_a_waived_first_load_is_not_missing(airports: Store) -> None:
    airports.subscribe("airports", "reports")
    report = drain(airports, "airports/reports", MemorySink(), sink_name="reports")
    assert "first load is missing" in report.warnings()[0]
    airports.waive_first_load("airports/reports")
    assert airports.queue("airports/reports").first_load == "waived"
    assert drain(airports, "airports/reports", MemorySink(), sink_name="reports").warnings() == []
    with pytest.raises(InvalidArgument, match="found queue"):
        airports.waive_first_load("airports")


def test_a_first_load_of_a_removed_subscription_leaves_nothing(airports: Store) -> None:
    airports.subscribe("airports", "reports")
    number = airports.queue("airports/reports").number
    with (
        pytest.raises(UnknownQueue, match="subscription of this first load was removed"),
        airports.first_load("airports/reports") as load,
    ):
        load.add("a", 1)
        load.flush()
        with pytest.raises(EntriesWait):
            airports.unsubscribe("airports", "reports")
        airports.unsubscribe("airports", "reports", discard=True)
    maintain(airports.database, patience=AT_ONCE)
    with airports.database.read() as work:
        assert queries.readers.count_rows(work, number, locked_at=0) == (0, 0, 0)


def test_a_first_load_keeps_nothing_of_what_it_has_flushed(airports: Store) -> None:
    airports.subscribe("airports", "reports")
    with airports.first_load("airports/reports") as load:
        load.add("a", 1)
        with pytest.raises(EntryError, match="added"):
            load.add("a", 2)
        load.flush()
        load.add("a", 3)
        assert load._writer._added == {b"a"}
        load.flush()
        assert load._writer._added == set()
    sink = MemorySink()
    drain(airports, "airports/reports", sink, sink_name="reports")
    assert documents(sink) == {"a": 3}


@pytest.mark.parametrize("flushed", [False, True])
def test_a_first_load_says_that_its_subscription_was_removed(airports: Store, flushed: bool) -> None:
    airports.subscribe("airports", "reports")
    with (
        pytest.raises(UnknownQueue, match="subscription of this first load was removed"),
        airports.first_load("airports/reports") as load,
    ):
        load.add("a", 1)
        airports.unsubscribe("airports", "reports")
        airports.subscribe("airports", "reports")  # its namesake is another one
        if flushed:
            load.flush()
    assert active(airports) == 0


def test_claims_and_drains_say_that_their_subscription_was_removed(airports: Store) -> None:
    class Removing(MemorySink):
        def apply(self, operations: Any) -> Any:
            airports.unsubscribe("airports", "search", discard=True)
            return super().apply(operations)

    add(airports, "a")
    search = airports.queue("airports/search")
    with pytest.raises(UnknownQueue, match="'airports/search' was removed"):
        drain(airports, "airports/search", Removing(), sink_name="index")
    with pytest.raises(UnknownQueue, match="'airports/search' was removed"):
        claim(airports.database, search, search.units(), owner=Owner.unique(), lease_seconds=9)


@pytest.mark.parametrize("bound", [None, "index", "other"])
def test_a_drain_whose_subscription_is_replaced_before_it_is_bound_binds_no_namesake(
    airports: Store, bound: str | None
) -> None:
    class Replacing(MemorySink):
        def admit(self, *plain: Any, **named: Any) -> Any:
            airports.unsubscribe("airports", "search", discard=True)
            airports.subscribe("airports", "search")
            if bound is not None:
                airports.rebind("airports/search", bound)
            return super().admit(*plain, **named)

    add(airports, "a")
    with pytest.raises(UnknownQueue, match="'airports/search' was removed"):
        drain(airports, "airports/search", Replacing(), sink_name="index")
    assert airports.queue("airports/search").sink == bound


def test_an_unsubscription_that_another_one_overtakes_leaves_the_next_subscription_alone(
    airports: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("export_queue.core.queue.subscriptions")
    change = module._change

    def overtaken(*arguments: Any) -> bool:
        monkeypatch.setattr(module, "_change", change)
        airports.unsubscribe("airports", "reports")
        airports.subscribe("airports", "reports")
        return bool(change(*arguments))

    airports.subscribe("airports", "reports")
    monkeypatch.setattr(module, "_change", overtaken)
    with pytest.raises(UnknownQueue, match="'airports/reports' was removed meanwhile"):
        airports.unsubscribe("airports", "reports")
    assert "airports/reports" in [one.id for one in airports.subscriptions("airports")]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_new_first_load_replaces_an_older_one(airports: Store, flushed: bool) -> None:
    airports.subscribe("airports", "reports")
    with pytest.raises(RegistrationLost), airports.first_load("airports/reports") as load:
        load.add("a", 1)
        if flushed:
            load.flush()
        with airports.first_load("airports/reports", settle_timeout=0.05) as newer:
            assert newer.id > load.id
            newer.add("b", 1)
        assert airports.queue("airports/reports").first_load == "made"
    assert keys(airports, "airports/reports") == ["b"]
    assert active(airports) == 0


def test_a_first_load_that_was_replaced_stages_nothing_more(airports: Store) -> None:
    airports.subscribe("airports", "reports")
    with (
        pytest.raises(RegistrationLost),
        airports.first_load("airports/reports") as load,
        airports.first_load("airports/reports", settle_timeout=0.05),
    ):
        load.add("a", 1)
        load.flush()
    assert keys(airports, "airports/reports") == []
    assert airports.queue("airports/reports").first_load == "missing"


def test_a_first_load_that_is_killed_at_any_step_is_made_again_at_once(
    airports: Store, open_store: Callable[[], Store]
) -> None:
    airports.subscribe("airports", "reports")
    for number in itertools.count(1):
        child = fork.Process(target=load_and_die, args=(open_store, number), daemon=True)
        child.start()
        child.join(PATIENCE)
        assert child.exitcode in (0, -signal.SIGKILL)
        if airports.queue("airports/reports").first_load == "made":
            break
        with pytest.raises(ZeroDivisionError), airports.first_load("airports/reports", settle_timeout=0.05):
            _ = 1 / 0
        assert active(airports) == 0
    assert keys(airports, "airports/reports") == ["a", "b"]
    assert number > 10


def load_and_die(open_store: Callable[[], Store], last: int) -> None:
    """Make a first load, and be killed before or after one of its steps."""
    with open_store() as store:
        seen = itertools.count(1)

        def die(*_: Any) -> None:
            if next(seen) == last:
                os.kill(os.getpid(), signal.SIGKILL)

        _ = store.identity
        sa.event.listen(store.database.engine, "before_cursor_execute", die)
        for name in ("start", "take_snapshot", "stage", "commit"):
            setattr(store.database.dialect.steps, name, between(die, getattr(store.database.dialect.steps, name)))
        with store.first_load("airports/reports") as load:
            load.add("a", 1)
            load.flush()
            load.add("b", 1)


def between(die: Callable[[], None], step: Callable[..., Any]) -> Callable[..., Any]:
    def step_or_death(*plain: Any, **named: Any) -> Any:
        die()
        answer = step(*plain, **named)
        die()
        return answer

    return step_or_death


def test_a_first_load_that_committed_meanwhile_counts(airports: Store) -> None:
    airports.subscribe("airports", "reports")
    older = airports.begin()
    with ThreadPoolExecutor() as threads:

        def other() -> None:
            with airports.first_load("airports/reports"):
                raise AssertionError("it began")

        waiting = threads.submit(other)
        wait_until(lambda: active(airports) == 2, "no load waits")
        with airports.database.begin() as work:
            made = sa.text(
                "update {}xq_queue set first_load = 'made' where id = 'airports/reports'".format(
                    "" if work.connection.dialect.name == "sqlite" else "export_queue."
                )
            )
            work.connection.execute(made)
        airports.abort(older)
        with pytest.raises(InvalidArgument, match="was made"):
            waiting.result(PATIENCE)


def test_a_first_load_holds_back_what_is_settled_for_its_own_subscription_alone(airports: Store) -> None:
    """So drains into fenced sinks, which take settled entries only, go on everywhere else."""
    airports.configure_queue("orders", subscriptions=["mail"])
    airports.subscribe("airports", "reports")

    def settled(queue_id: str) -> bool:
        queue = airports.queue(queue_id)
        with airports.database.read() as work:
            return bool(waiting_ranges(work, queue, settled_snapshot(airports.database, queue.number), queue.units()))

    with airports.first_load("airports/reports") as load:
        load.add("a", 1)
        load.flush()
        add(airports, "b")
        with airports.transaction() as tx:
            tx.queue("orders").add("c", 1)
        assert settled("airports/search")
        assert settled("orders/mail")
        assert not settled("airports/reports")
    assert settled("airports/reports")


def test_first_loads_of_different_subscriptions_do_not_wait_for_each_other(airports: Store) -> None:
    """They write no cells, and each adds to its own subscription alone."""
    add(airports, "before")
    airports.subscribe("airports", "reports")
    airports.subscribe("airports", "mail")
    with airports.first_load("airports/reports") as one:
        one.add("a", 1)
        one.flush()
        with airports.first_load("airports/mail", settle_timeout=0.05) as two:
            assert two.id > one.id
            two.add("b", 1)
    assert keys(airports, "airports/reports") == ["a"]
    assert keys(airports, "airports/mail") == ["b"]


# -- monitoring -------------------------------------------------------------------------------------------------------


def test_views_and_metrics_name_subscriptions(airports: Store) -> None:
    airports.subscribe("airports", "reports")
    add(airports, "a")
    with airports.database.read() as work:
        place = "" if work.connection.dialect.name == "sqlite" else "export_queue."
        lag = work.connection.exec_driver_sql(f"select queue, entries from {place}queue_lag order by queue").all()
        of = work.connection.exec_driver_sql(f"select subscription, queue, first_load from {place}subscriptions").all()
    assert lag == [("airports/cache", 1), ("airports/reports", 1), ("airports/search", 1)]
    assert sorted(of) == [
        ("airports/cache", "airports", None),
        ("airports/reports", "airports", "missing"),
        ("airports/search", "airports", None),
    ]
    told = airports.metrics()
    assert 'export_queue_queue_entries{queue="airports/search"} 1' in told
    assert 'export_queue_first_load_missing{queue="airports/reports"} 1' in told
    assert 'queue="airports"}' not in told
