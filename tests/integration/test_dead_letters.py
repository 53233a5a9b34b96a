"""Dead letters: looked at in pages, sent again, dropped by hand only."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.patience import AT_ONCE

from export_queue import (
    DeadLetterFilter,
    DrainReport,
    Entry,
    InvalidArgument,
    LockNotAvailable,
    MemorySink,
    Operations,
    Owner,
    Put,
    Store,
    UnknownQueue,
    drain,
)
from export_queue.core.drain import claims
from export_queue.core.locks import claim, release
from export_queue.core.maintenance import maintain
from export_queue.core.queue import drop_dead_letters
from export_queue.core.store import schema
from export_queue.core.transactions import take_snapshot


@pytest.fixture
def orders(store: Store) -> Store:
    """A store with a small queue ``orders``."""
    store.configure_queue("orders", buckets=20, buckets_per_range=5)
    return store


def add(store: Store, values: dict[str, Any], queue: str = "orders") -> int:
    """Commit entries in one transaction; returns its id."""
    with store.transaction() as tx:
        for key, value in values.items():
            tx.queue(queue).add(key, value)
        return tx.id


def refuse(entry: Any) -> list[Put]:
    """An exporter that takes nothing: text is a ValueError, a number a TypeError."""
    raise (ValueError if isinstance(entry.value, str) else TypeError)(f"not {entry.value!r}")


def dead_letter_all(store: Store, sink: MemorySink, **options: Any) -> DrainReport:
    return drain(store, "orders", sink, sink_name="s", exporter=refuse, **options)


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def keys(store: Store, **which: Any) -> list[str]:
    return [letter.position.key.decode() for letter in store.dead_letters.list("orders", DeadLetterFilter(**which))]


def test_a_drain_that_sets_entries_aside_ends_with_a_warning(orders: Store, caplog: pytest.LogCaptureFixture) -> None:
    add(orders, {"anna": "x"})
    add(orders, {"ben": 1})
    with caplog.at_level(logging.WARNING, "export_queue.drain"):
        report = dead_letter_all(orders, MemorySink(), drain_id="monday")
    (line,) = caplog.messages
    assert [line] == report.warnings()
    assert line.startswith("orders: dead letters: 2, the first: ValueError: not 'x'; see them: ")


# -- looking ---------------------------------------------------------------------------------------------------------


def test_letters_are_found_by_key_sequence_error_and_drain(orders: Store) -> None:
    sink = MemorySink()
    first = add(orders, {"anna": "x", "ben": 1})
    dead_letter_all(orders, sink, drain_id="monday")
    second = add(orders, {"anna": 2})
    dead_letter_all(orders, sink, drain_id="tuesday")
    assert keys(orders) == ["anna", "ben", "anna"]
    assert keys(orders, key="ben") == ["ben"]
    assert [letter.position.seq for letter in orders.dead_letters.list("orders", DeadLetterFilter(key="anna"))] == [
        first,
        second,
    ]
    assert keys(orders, key="anna", seq=second) == ["anna"]
    assert keys(orders, error_class="ValueError") == ["anna"]
    assert keys(orders, error_class="TypeError", drain_id="monday") == ["ben"]
    assert (
        orders.dead_letters.count("orders"),
        orders.dead_letters.count("orders", DeadLetterFilter(drain_id="monday")),
    ) == (3, 2)
    assert keys(orders, key="nobody") == []


def test_a_page_goes_on_where_the_one_before_ended(orders: Store) -> None:
    sink = MemorySink()
    for batch in range(3):
        add(orders, {f"k{batch}{i}": 1 for i in range(4)})
    dead_letter_all(orders, sink)
    seen: list[str] = []
    after = None
    while page := orders.dead_letters.list("orders", after=after, limit=5):
        assert len(page) <= 5
        seen += [letter.position.key.decode() for letter in page]
        after = page[-1].id
    assert seen == [f"k{batch}{i}" for batch in range(3) for i in range(4)]


def test_values_come_only_if_they_are_asked_for(orders: Store) -> None:
    add(orders, {"anna": "private", "ben": None})
    dead_letter_all(orders, MemorySink())
    hidden = orders.dead_letters.list("orders")
    assert [letter.value for letter in hidden] == [None, None]
    assert [letter.value_bytes for letter in hidden] == [len('"private"'), None]
    shown = orders.dead_letters.list("orders", values=True)
    assert [letter.value for letter in shown] == [b'"private"', None]
    assert "private" not in repr(shown[0].position) + shown[0].__repr__().replace(shown[0].reason, "")


def test_what_is_no_page_and_no_queue_is_refused(orders: Store) -> None:
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(InvalidArgument, match="limit"):
            orders.dead_letters.list("orders", limit=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="limit"):
            orders.dead_letters.drop("orders", limit=wrong)  # type: ignore[arg-type]
    with pytest.raises(UnknownQueue):
        orders.dead_letters.retry("odrers")


# -- trying again ----------------------------------------------------------------------------------------------------


def test_a_retried_letter_is_sent_by_the_next_drain(orders: Store) -> None:
    sink = MemorySink()
    add(orders, {"anna": "x", "ben": "y"})
    dead_letter_all(orders, sink)
    assert orders.dead_letters.retry("orders", DeadLetterFilter(key="anna"), who="eve") == 1
    assert (waiting(orders), keys(orders)) == (1, ["ben"])
    report = drain(orders, "orders", sink, sink_name="s")
    assert (report.read, report.acknowledged, report.written) == (1, 1, 1)
    assert sink.records() == {("orders", b"anna"): b'"x"'}
    assert orders.dead_letters.retry("orders", DeadLetterFilter(key="anna")) == 0, "it is no letter any more"
    (act,) = orders.dead_letters.audit("orders")
    assert (act.act, act.who, act.letters, json.loads(act.selection)) == ("retry", "eve", 1, {"key": "anna"})


def test_a_retried_letter_keeps_its_sequence_so_that_newer_data_stays(orders: Store) -> None:
    sink = MemorySink()
    old = add(orders, {"anna": "old", "ben": "old"})
    dead_letter_all(orders, sink)
    add(orders, {"anna": "new", "ben": None})
    drain(orders, "orders", sink, sink_name="s")
    assert orders.dead_letters.retry("orders") == 2
    report = drain(orders, "orders", sink, sink_name="s")
    assert (report.lowest_seq, report.highest_seq) == (old, old)
    assert (report.acknowledged, report.written, report.stale) == (2, 0, 2)
    assert sink.records() == {("orders", b"anna"): b'"new"'}


def test_what_is_refused_again_is_a_letter_again_with_the_newer_reason(orders: Store) -> None:
    sink = MemorySink()
    seq = add(orders, {"anna": "x"})
    dead_letter_all(orders, sink, drain_id="one")
    for drain_id in ("two", "three"):
        assert orders.dead_letters.retry("orders") == 1
        assert dead_letter_all(orders, sink, drain_id=drain_id).dead == 1
        (letter,) = orders.dead_letters.list("orders", values=True)
        assert (letter.position.seq, letter.value, letter.drain_id) == (seq, b'"x"', drain_id)


def test_only_so_many_are_retried_as_was_said_oldest_first(orders: Store) -> None:
    for n in range(5):
        add(orders, {f"k{n}": "x"})
    dead_letter_all(orders, MemorySink())
    assert orders.dead_letters.retry("orders", limit=2) == 2
    assert keys(orders) == ["k2", "k3", "k4"]
    assert orders.dead_letters.retry("orders") == 3
    assert (waiting(orders), orders.dead_letters.count("orders")) == (5, 0)


def test_a_letter_that_is_retried_beside_a_drain_is_not_removed_by_it_unsent(orders: Store) -> None:
    """The drain has read its chunk; what came back behind it would fall to the removal of that chunk."""
    add(orders, {f"k{n}": "x" for n in range(0, 40, 2)})
    retries: list[threading.Thread] = []
    is_armed = threading.Event()

    class Sink(MemorySink):
        def apply(self, operations: Operations) -> Any:
            if is_armed.is_set() and not retries:
                retries.append(threading.Thread(target=orders.dead_letters.retry, args=("orders",)))
                retries[0].start()
                retries[0].join(0.5)  # long enough to do harm, if it could
            return super().apply(operations)

    sink = Sink()
    dead_letter_all(orders, sink)
    is_armed.set()
    add(orders, {f"k{n}": "y" for n in range(1, 40, 2)})
    drain(orders, "orders", sink, sink_name="s")
    retries[0].join(60)
    assert orders.dead_letters.count("orders") == 0
    drain(orders, "orders", sink, sink_name="s")
    assert sorted(key for _, key in sink.records()) == sorted(f"k{n}".encode() for n in range(40))


def test_a_retry_waits_for_a_drain_only_so_long_and_says_who_it_is(orders: Store) -> None:
    add(orders, {f"k{n}": "x" for n in range(40)})
    dead_letter_all(orders, MemorySink())
    queue = orders.queue("orders")
    leases = claim(orders.database, queue, queue.units()[:1], owner=Owner("dag/run/task", "1"), lease_seconds=600)
    with pytest.raises(LockNotAvailable, match="held: .*by dag/run/task") as raised:
        orders.dead_letters.retry("orders", lock_timeout=0)
    assert raised.value.transient
    left = orders.dead_letters.count("orders")
    assert 0 < left < 40, "the other parts of the queue went back"
    assert waiting(orders) == 40 - left
    release(orders.database, leases)
    assert orders.dead_letters.retry("orders", lock_timeout=0) == left
    assert waiting(orders) == 40
    assert claim(orders.database, queue, queue.units(), owner=Owner("next", "1"), lease_seconds=1), "no lock is kept"


def test_a_retry_goes_on_though_its_leases_run_out(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Very many letters take longer than a lease lasts."""
    from export_queue.core.drain import dead_letters

    add(orders, {f"k{n}": "x" for n in range(40)})
    dead_letter_all(orders, MemorySink())
    real, calls = dead_letters.requeue, []

    def requeue_slowly(work: Any, *arguments: Any, **options: Any) -> int:
        moved = real(work, *arguments, **options)
        work.connection.execute(schema.lock.update().values(lease_ms=1))
        calls.append(moved)
        return moved

    monkeypatch.setattr(dead_letters, "requeue", requeue_slowly)
    assert orders.dead_letters.retry("orders") == 40
    assert waiting(orders) == sum(calls) == 40
    assert len(calls) == 4
    queue = orders.queue("orders")
    assert len(claim(orders.database, queue, queue.units(), owner=Owner("next", "1"), lease_seconds=1)) == 4


def test_a_letter_that_somebody_drops_meanwhile_is_not_put_back(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    add(orders, {"anna": "x", "ben": "y"})
    dead_letter_all(orders, MemorySink())
    real = claims.claim

    def claim_late(*arguments: Any, **options: Any) -> Any:
        orders.dead_letters.drop("orders", DeadLetterFilter(key="anna"))
        return real(*arguments, **options)

    monkeypatch.setattr(claims, "claim", claim_late)
    assert orders.dead_letters.retry("orders") == 1
    assert waiting(orders) == 1


# -- dropping --------------------------------------------------------------------------------------------------------


def test_a_drop_is_recorded_with_who_and_how_many(orders: Store, caplog: pytest.LogCaptureFixture) -> None:
    add(orders, {"anna": "x", "ben": "y", "carl": 1})
    dead_letter_all(orders, MemorySink())
    with caplog.at_level(logging.WARNING, logger="export_queue.dead_letters"):
        assert orders.dead_letters.drop("orders", DeadLetterFilter(error_class="ValueError"), who="eve") == 2
    assert keys(orders) == ["carl"]
    assert "eve dropped 2 dead letters of orders" in caplog.text
    acts = orders.dead_letters.audit("orders")
    assert len(acts) == 1
    act = acts[0]
    assert (act.act, act.who, act.letters) == ("drop", "eve", 2)
    assert json.loads(act.selection) == {"error_class": "ValueError"}
    assert orders.dead_letters.drop("orders", DeadLetterFilter(key="anna")) == 0
    assert len(orders.dead_letters.audit("orders")) == 1, "nothing was done"
    assert orders.dead_letters.drop("orders") == 1
    assert "@" in orders.dead_letters.audit("orders")[0].who
    with orders.database.read() as work:
        prefix = "export_queue." if work.database.dialect.name == "postgresql" else ""
        rows = work.connection.exec_driver_sql(f"select act, letters from {prefix}dead_letter_audit order by id").all()
    assert [tuple(row) for row in rows] == [("drop", 2), ("drop", 1)]


def test_only_so_many_are_dropped_as_was_said_oldest_first(orders: Store) -> None:
    for n in range(5):
        add(orders, {f"k{n}": "x"})
    dead_letter_all(orders, MemorySink())
    assert orders.dead_letters.drop("orders", limit=2) == 2
    assert keys(orders) == ["k2", "k3", "k4"]


@pytest.mark.parametrize("act", ["drop", "retry"])
def test_a_decision_that_others_have_overtaken_changes_nothing(orders: Store, act: str) -> None:
    add(orders, {"a": "1", "b": "2", "c": "3"})
    dead_letter_all(orders, MemorySink())
    change: Callable[..., int] = getattr(orders.dead_letters, act)
    seen = orders.dead_letters.count_acts("orders")
    assert change("orders", limit=1, seen=seen) == 1
    with pytest.raises(InvalidArgument, match="it changes nothing"):
        change("orders", limit=1, seen=seen)
    assert orders.dead_letters.count("orders") == 2
    assert change("orders", limit=1, seen=orders.dead_letters.count_acts("orders")) == 1


@pytest.mark.postgres
def test_an_act_that_commits_late_is_noticed_although_a_newer_one_was_seen(postgres_url: str) -> None:
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders", value="str")
        add(store, {"a": "1", "b": "2", "c": "3"})
        dead_letter_all(store, MemorySink())
        with store.database.begin() as work:  # its id is the lower one
            drop_dead_letters(work, store.queue("orders"), DeadLetterFilter(key="a"), who="anna", limit=1)
            assert store.dead_letters.drop("orders", DeadLetterFilter(key="b")) == 1
            seen = store.dead_letters.count_acts("orders")
        with pytest.raises(InvalidArgument, match="it changes nothing"):
            store.dead_letters.drop("orders", seen=seen)
        assert store.dead_letters.count("orders") == 1


def test_letters_are_selected_by_when_they_were_set_aside(orders: Store) -> None:
    add(orders, {"a": "1", "b": "2"})
    dead_letter_all(orders, MemorySink())
    (first, second) = orders.dead_letters.list("orders")
    d = schema.dead_letter
    with orders.database.begin() as work:
        late = d.update().where(d.c.seq == second.position.seq, d.c.key == second.position.key)
        work.connection.execute(late.values(dead_since_ms=second.dead_since_ms + 5000))
    before = DeadLetterFilter(until_ms=second.dead_since_ms)
    assert [letter.id for letter in orders.dead_letters.list("orders", before)] == [first.id]
    assert (orders.dead_letters.count("orders", before), orders.dead_letters.drop("orders", before)) == (1, 1)
    assert [letter.id for letter in orders.dead_letters.list("orders")] == [second.id]


def test_letters_of_another_queue_are_left_alone(orders: Store) -> None:
    orders.configure_queue("others", buckets=20, buckets_per_range=5)
    for queue in ("orders", "others"):
        add(orders, {"anna": "x"}, queue)
        drain(orders, queue, MemorySink(), exporter=refuse)
    assert orders.dead_letters.retry("others") == 1
    assert orders.dead_letters.count("orders") == 1
    assert orders.dead_letters.drop("others") == 0
    assert orders.dead_letters.drop("orders") == 1
    assert orders.dead_letters.audit("orders")[0].act == "drop"
    assert [act.act for act in orders.dead_letters.audit("others")] == ["retry"]


def test_nothing_but_a_drop_makes_a_letter_go(orders: Store) -> None:
    sink = MemorySink()
    add(orders, {f"k{n}": "x" for n in range(30)})
    dead_letter_all(orders, sink, max_dead=30)
    everything = keys(orders)
    add(orders, {f"k{n}": "y" for n in range(30)})
    drain(orders, "orders", sink, sink_name="s")  # newer entries of the same keys
    maintain(orders.database, patience=AT_ONCE, keep_outcomes=0.001, keep_idempotency_keys=0.001)
    orders.create()
    take_snapshot(orders.database)
    assert keys(orders) == everything


class Mute(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (lambda: ValueError("bad \x00 byte"), "bad \\x00 byte"),
        (lambda: ValueError("bad \ud800"), "bad \\ud800"),
        (Mute, "(the text of this Mute cannot be had: its __str__ raised RuntimeError)"),
        (lambda: ValueError("x" * 1_000_000), "x" * 10_000 + "… (1000000 characters)"),
    ],
    ids=["NUL", "surrogate", "no text", "long"],
)
def test_a_reason_that_no_database_takes_as_it_is_blocks_nothing(
    store: Store, error: Callable[[], Exception], reason: str
) -> None:
    def exporter(entry: Entry) -> list[Put]:
        if entry.key == "poison":
            raise error()
        return [Put("c", entry.key, entry.value)]

    store.configure_queue("q", buckets=1)
    with store.transaction() as tx:
        tx.queue("q").add_many([("good", 1), ("poison", 2)])
    report = drain(store, "q", MemorySink(), sink_name="memory", exporter=exporter)
    assert (report.acknowledged, report.dead, report.left) == (1, 1, 0)
    assert [letter.reason for letter in store.dead_letters.list("q")] == [reason]


def test_an_exporter_without_an_end_sets_its_entry_aside(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export_queue.core.sinks.operations.MAX_OPERATIONS", 1000)

    def exporter(entry: Entry) -> Iterator[Put]:
        yield Put("c", entry.key, entry.value)
        while entry.key == "endless":
            yield Put("c", entry.key, entry.value)

    store.configure_queue("q", buckets=1)
    with store.transaction() as tx:
        tx.queue("q").add_many([("good", 1), ("endless", 2)])
    report = drain(store, "q", MemorySink(), sink_name="memory", exporter=exporter)
    assert (report.acknowledged, report.dead) == (1, 1)
    assert "at most 1000 operations" in store.dead_letters.list("q")[0].reason


def test_a_document_that_is_no_json_sets_its_entry_aside_with_the_field(store: Store) -> None:
    store.configure_queue("q", buckets=1)
    with store.transaction() as tx:
        tx.queue("q").add_many([("good", 1), ("poison", 0)])

    def exporter(entry: Entry) -> list[Put]:
        return [Put("c", entry.key, {"rates": [1.0, 1.0 if entry.value else float("inf")]})]

    assert drain(store, "q", MemorySink(), sink_name="memory", exporter=exporter).dead == 1
    (letter,) = store.dead_letters.list("q")
    assert "field rates[1] is inf" in letter.reason
