"""What somebody on call reads when there is trouble: each number and statement is true, and says what it counts."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.support.command_line import run_cli
from tests.support.waiting import wait_until

from export_queue import (
    DeadLetterFilter,
    DrainTimedOut,
    InvalidArgument,
    LockNotAvailable,
    MemorySink,
    Owner,
    SinkRefused,
    SinkUnavailable,
    Store,
    drain,
)
from export_queue.core.drain import DRAIN_RETRY, progress, transient
from export_queue.core.locks import claim

pytestmark = pytest.mark.one_store("what commands print is the same on each store")

ENTRIES = 340
REASON = "the mapping takes text in the field city, and found a number " * 4


@pytest.fixture
def orders(store: Store) -> Store:
    store.configure_queue("orders", buckets=16, buckets_per_range=4, value="str")
    with store.transaction() as tx:
        tx.queue("orders").add_many((f"customer {n}", "v") for n in range(ENTRIES))
    return store


@pytest.fixture
def airports(store: Store) -> Store:
    store.configure_queue("airports", value="str", subscriptions=["cache", "search"])
    with store.transaction() as tx:
        tx.queue("airports").add_many([("OSL", "Oslo"), ("CPH", None)])
    return store


class Refusing(MemorySink):
    """Takes some batches, then none."""

    def __init__(self, takes: int) -> None:
        super().__init__()
        self._takes = takes

    def apply(self, operations: Any) -> Any:
        self._takes -= 1
        if self._takes < 0:
            raise SinkRefused("redis://cache takes no writes: READONLY", hint="promote the replica")
        return super().apply(operations)


def refused(store: Store, *, takes: int, **options: Any) -> tuple[dict[str, Any], str]:
    """Return the stored report of a drain that a sink refuses, and the line that comes with its error."""
    with pytest.raises(SinkRefused) as caught:
        drain(store, "orders", Refusing(takes), sink_name="cache", chunk_rows=31, **options)
    return store.reports()[0], caught.value.__notes__[-1]


@pytest.mark.parametrize("takes", [0, 1, 3])
def test_a_refused_drain_reports_what_waits_in_the_store(orders: Store, takes: int) -> None:
    report, line = refused(orders, takes=takes)
    left = ENTRIES - 31 * takes
    assert sum(unit.entries for unit in orders.backlog("orders")) == left
    assert (report["waiting"], report["acknowledged"]) == (left, 31 * takes)
    assert report["read"] == report["acknowledged"] + report["dead"] + report["left"]
    assert f"; {left} left in the queue, the oldest " in line
    assert f"{report['left']} not removed" in line
    assert not re.search(rf"\b(?!{left}\b)\d+ left", line), "nothing else is called left"


def test_a_drain_that_is_refused_before_it_reads_reports_what_waits(orders: Store) -> None:
    class Closed(MemorySink):
        def admit(self, **_: object) -> None:
            raise SinkRefused("closed")

    with pytest.raises(SinkRefused) as caught:
        drain(orders, "orders", Closed(), sink_name="cache")
    assert orders.reports()[0]["waiting"] == ENTRIES
    assert (
        f"0 read = 0 acknowledged + 0 dead + 0 not removed; {ENTRIES} left in the queue" in caught.value.__notes__[-1]
    )


def test_a_drain_of_some_ranges_counts_what_waits_in_them(orders: Store) -> None:
    (unit, *_) = orders.queue("orders").units()
    (of_unit,) = [one.entries for one in orders.backlog("orders", [unit])]
    assert refused(orders, takes=0, ranges=[unit])[0]["waiting"] == of_unit


def test_entries_that_come_during_a_drain_are_not_said_to_be_none(orders: Store) -> None:
    class Late(MemorySink):
        is_late = False

        def apply(self, operations: Any) -> Any:
            if not self.is_late:
                self.is_late = True
                with orders.transaction() as tx:
                    tx.queue("orders").add("late", "v")
            return super().apply(operations)

    report = drain(orders, "orders", Late(), sink_name="cache")
    assert (report.left, report.waiting) == (0, 1)
    assert "+ 0 not removed; 1 left in the queue" in report.line()
    orders.rebind("orders", "other")
    assert "+ 0 left; " in drain(orders, "orders", MemorySink(), sink_name="other").line()


def test_why_tells_the_message_and_the_hint_of_a_refused_drain(orders: Store, store_url: str) -> None:
    refused(orders, takes=0)
    told = run_cli("why", "orders", "customer 3", url=store_url)
    assert "SinkRefused: redis://cache takes no writes: READONLY" in told
    assert "hint: promote the replica" in told
    last = json.loads(run_cli("why", "orders", "customer 3", "--json", url=store_url))["last_drain"]
    assert (last["stopped_by"], last["message"], last["hint"]) == (
        "SinkRefused",
        "redis://cache takes no writes: READONLY",
        "promote the replica",
    )


def test_status_and_reports_tell_how_the_last_drain_ended(orders: Store, store_url: str) -> None:
    drain_id = refused(orders, takes=0)[0]["drain_id"]
    for command, heading in (("status", f"orders: drain {drain_id} stopped:"), ("reports", f"{drain_id}:")):
        table, _, below = run_cli(command, url=store_url).partition(heading)
        assert "SinkRefused" in table
        lines = below.strip("\n").splitlines()[:2]
        assert lines == ["  SinkRefused: redis://cache takes no writes: READONLY", "  hint: promote the replica"]
    (reader,) = json.loads(run_cli("status", "--json", url=store_url))
    assert {name: reader["last_drain"][name] for name in ("drain_id", "stopped_by", "message", "hint")} == {
        "drain_id": drain_id,
        "stopped_by": "SinkRefused",
        "message": "redis://cache takes no writes: READONLY",
        "hint": "promote the replica",
    }
    (report,) = json.loads(run_cli("reports", "--json", url=store_url))
    assert {name: report["problem"][name] for name in ("error_class", "message", "hint")} == {
        "error_class": "SinkRefused",
        "message": "redis://cache takes no writes: READONLY",
        "hint": "promote the replica",
    }
    orders.rebind("orders", "other")
    drain(orders, "orders", MemorySink(), sink_name="other")
    (reader,) = json.loads(run_cli("status", "--json", url=store_url))
    assert (reader["last_drain"]["stopped_by"], reader["last_drain"]["acknowledged"]) == (None, ENTRIES)
    assert "hint" not in run_cli("status", url=store_url)


def test_why_does_not_say_that_a_key_without_a_trace_was_delivered(orders: Store, store_url: str) -> None:
    told = run_cli("why", "orders", "never", url=store_url)
    assert "probably never committed" in told
    assert "deliver" not in told.replace("no drain on record has delivered anything", "")
    refused(orders, takes=0)
    assert "probably never committed" in run_cli("why", "orders", "never", url=store_url)
    orders.rebind("orders", "other")
    drain(orders, "orders", MemorySink(), sink_name="other")
    told = run_cli("why", "orders", "never", url=store_url)
    assert "the key was never committed, or its entries were delivered or dropped" in told
    assert "perhaps not this key" in told


def test_why_of_an_entry_of_a_bound_transaction_has_no_invented_time(postgres_url: str) -> None:
    with (
        Store.open(postgres_url) as store,
        psycopg.connect(postgres_url.replace("postgresql+psycopg", "postgresql")) as user,
    ):
        store.create()
        store.configure_queue("orders", value="str")
        with store.transaction(connection=user) as tx:
            tx.queue("orders").add("anna", "v")
        user.commit()
        drain(store, "orders", MemorySink(), sink_name="cache")
    told = run_cli("why", "orders", "anna", url=postgres_url)
    assert "1970" not in told
    assert "seq 0" not in told
    assert "by a bound transaction" in told
    story = json.loads(run_cli("why", "orders", "anna", "--json", url=postgres_url))
    assert story["last_commit"] == {"seq": None, "time": None, "known_by": "conflict key"}
    assert story["possible_delivery"] is not None
    assert "by a bound transaction" not in run_cli("why", "orders", "never", url=postgres_url)


def test_the_key_of_work_that_was_closed_has_committed(store: Store, store_url: str) -> None:
    def shown() -> dict[str, Any]:
        (found,) = json.loads(run_cli("idempotency", "dag/run/it's", "--json", url=store_url))
        return {name: found[name] for name in ("committed", "closed", "generation", "result")}

    assert shown() == {"committed": False, "closed": False, "generation": 1, "result": None}
    assert "No commit" in run_cli("idempotency", "dag/run/it's", url=store_url)
    store.run(lambda tx: 7, idempotency_key="dag/run/it's")
    assert shown() == {"committed": True, "closed": False, "generation": 1, "result": 7}
    assert "idempotency 'dag/run/it'\"'\"'s' --close" in run_cli("idempotency", "dag/run/it's", url=store_url)
    run_cli("idempotency", "dag/run/it's", "--close", url=store_url)
    assert shown() == {"committed": True, "closed": True, "generation": 1, "result": 7}
    assert "the next run is new work" in run_cli("idempotency", "dag/run/it's", url=store_url)
    assert "already closed" in run_cli("idempotency", "dag/run/it's", "--close", url=store_url, status=1)
    store.run(lambda tx: 8, idempotency_key="dag/run/it's")
    assert shown() == {"committed": True, "closed": False, "generation": 2, "result": 8}


def test_locks_show_half_open_ranges(orders: Store, store_url: str) -> None:
    queue = orders.queue("orders")
    claim(orders.database, queue, queue.units()[1:2], owner=Owner("nightly", "1"), lease_seconds=60)
    told = run_cli("locks", url=store_url)
    assert "[4, 8)" in told
    assert "[4, 8]" not in told


@pytest.fixture
def dead_airports(airports: Store) -> Store:
    def reject(entry: Any) -> Any:
        raise ValueError(REASON)

    for reader in ("cache", "search"):
        drain(airports, f"airports/{reader}", MemorySink(), sink_name=reader, exporter=reject)
    return airports


def test_each_reader_of_a_queue_is_asked_about_a_key(dead_airports: Store, store_url: str) -> None:
    stories = json.loads(run_cli("why", "airports", "OSL", "--json", url=store_url))
    assert [(story["queue"], len(story["dead"])) for story in stories] == [
        ("airports/cache", 1),
        ("airports/search", 1),
    ]
    told = run_cli("why", "airports", "OSL", url=store_url)
    assert "queue airports/cache, sink cache" in told
    assert "queue airports/search, sink search" in told
    assert json.loads(run_cli("why", "airports/cache", "OSL", "--json", url=store_url))["queue"] == "airports/cache"


def test_each_reader_of_a_queue_is_asked_for_dead_letters(dead_airports: Store, store_url: str) -> None:
    found = json.loads(run_cli("dead", "list", "airports", "--json", url=store_url))
    everything = [(one["queue"], one["key"]) for one in found]
    assert sorted(everything) == [(f"airports/{r}", k) for r in ("cache", "search") for k in ("CPH", "OSL")]
    one = json.loads(run_cli("dead", "show", "airports", "--key", "OSL", "--json", url=store_url))
    assert [row["queue"] for row in one] == ["airports/cache", "airports/search"]
    paged: list[tuple[str, str]] = []
    after: list[str] = []
    while page := json.loads(run_cli("dead", "list", "airports", "--limit", "1", *after, "--json", url=store_url)):
        paged += [(row["queue"], row["key"]) for row in page]
        after = ["--after", f"{page[-1]['seq']}:{page[-1]['key_hex']}"]
    assert paged == everything, "pages leave out nothing"


def test_a_list_of_dead_letters_has_short_lines_and_each_reason_once(dead_airports: Store, store_url: str) -> None:
    told = run_cli("dead", "list", "airports", url=store_url)
    assert max(map(len, told.splitlines())) <= 120
    assert " ".join(told.split()).count("the mapping takes text in the field city, and found a number") == 2 * 4
    assert told.count("2 letters of drain") == 2
    assert "airports/cache" in told


def test_a_delete_is_no_empty_cell(airports: Store, store_url: str) -> None:
    told = run_cli("peek", "airports/cache", "--values", url=store_url)
    (row,) = [line for line in told.splitlines() if "CPH" in line]
    assert row.count("(delete)") == 2
    assert run_cli("peek", "airports/cache", url=store_url).count("(delete)") == 1
    found = json.loads(run_cli("peek", "airports", "--values", "--json", url=store_url))
    assert {(one["queue"], one["key"], one["value"]) for one in found} == {
        (f"airports/{reader}", key, value)
        for reader in ("cache", "search")
        for key, value in (("OSL", "Oslo"), ("CPH", None))
    }


def test_the_log_says_who_does_not_answer_since_when_and_until_when(
    orders: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A sink that hangs, then fails for a while."""
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.03)
    monkeypatch.setattr(transient, "QUIET_SECONDS", 0.0)
    calls: list[str] = []

    def is_said(part: str) -> bool:
        return any(part in message for message in caplog.messages)

    class Away(MemorySink):
        def apply(self, operations: Any) -> Any:
            calls.append("")
            if len(calls) == 1:
                wait_until(lambda: is_said("the sink has not answered since "), "the line does not come")
            if len(calls) < 5:
                raise SinkUnavailable("redis://cache does not answer")
            return super().apply(operations)

    with caplog.at_level(logging.INFO, "export_queue.drain"):
        drain(orders, "orders", Away(), sink_name="cache", retry=replace(DRAIN_RETRY, first_pause=0.01))
    clock = r"\d\d:\d\d:\d\d UTC"
    failing = [message for message in caplog.messages if "the sink has failed since" in message]
    assert failing
    assert re.search(
        rf"the sink has failed since {clock} \(\d+ s\): SinkUnavailable: redis://cache does not answer; "
        rf"attempt \d of 9, none begins after {clock}",
        failing[0],
    )
    assert is_said("the sink answered after")


def test_a_drain_whose_time_is_over_names_the_sink_that_did_not_answer(orders: Store) -> None:
    class Away(MemorySink):
        def apply(self, operations: Any) -> Any:
            raise SinkUnavailable("redis://cache does not answer")

    with pytest.raises(DrainTimedOut) as caught:
        drain(orders, "orders", Away(), sink_name="cache", time_limit=0.5)
    assert re.search(
        rf"about {ENTRIES} left; the sink has failed since .* UTC \(\d+ s\): SinkUnavailable: redis://cache does not",
        str(caught.value),
    )
    assert orders.reports()[0]["problem"]["message"] == caught.value.message


def test_why_does_not_doubt_a_commit_from_before_the_subscription(orders: Store, store_url: str) -> None:
    drain(orders, "orders", MemorySink(), sink_name="cache")
    orders.subscribe("orders", "search")
    told = run_cli("why", "orders", "customer 3", url=store_url)
    assert "the key was probably never committed, or before it was created" in told
    assert "first load: missing" in told


def test_why_does_not_say_that_a_dropped_key_was_delivered(dead_airports: Store, store_url: str) -> None:
    with dead_airports.transaction() as tx:
        tx.queue("airports").add("AMS", "Amsterdam")
    drain(dead_airports, "airports/cache", MemorySink(), sink_name="cache")
    dead_airports.dead_letters.drop("airports/cache", DeadLetterFilter(key="OSL"))
    told = run_cli("why", "airports/cache", "OSL", url=store_url)
    assert "or its entries were delivered or dropped" in told


def test_a_subscription_that_a_queue_lacks_can_be_added(airports: Store, store_url: str) -> None:
    for command, known in (
        (["peek", "airports/nope"], "airports/cache, airports/search"),
        (["unsubscribe", "airports", "nope"], "cache, search"),
    ):
        told = run_cli(*command, url=store_url, status=1)
        assert f"queue 'airports' has no subscription 'nope'; it has: {known}\n" in told
        assert "export-queue subscribe airports NAME" in told
    told = run_cli("peek", "airlines/cache", url=store_url, status=1)
    assert "the store has no queue 'airlines/cache'; it has: airports" in told


def test_a_subscription_in_use_names_the_command_that_discards(airports: Store, store_url: str) -> None:
    told = run_cli("unsubscribe", "airports", "cache", url=store_url, status=1)
    (command,) = re.findall(r"export-queue (unsubscribe [^,]+),", told)
    run_cli(*command.split(), url=store_url)
    assert [reader.id for reader in airports.subscriptions("airports")] == ["airports/search"]


def test_a_name_that_is_a_number_is_said_to_be_one(store: Store) -> None:
    """As native rendering makes it of digits; "expected a-z 0-9" or "no queue 123" would deny the facts."""
    store.configure_queue("123")
    for use in (
        lambda: store.configure_queue(123),  # type: ignore[arg-type]
        lambda: store.configure_table(123),  # type: ignore[arg-type]
        lambda: store.queue(123),  # type: ignore[arg-type]
        lambda: store.subscribe(123, "cache"),  # type: ignore[arg-type]
        lambda: store.rebind("123", 123),  # type: ignore[arg-type]
        lambda: store.run(lambda tx: tx.queue(123).add("k", 1)),  # type: ignore[arg-type]
        lambda: store.run(lambda tx: tx.table(123).get("r", "c")),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument, match="expected text.*, found int 123") as caught:
            use()
        assert "{{ … | tojson }}" in str(caught.value.hint)


def test_letters_that_the_options_do_not_name_are_not_said_to_be_none(dead_airports: Store, store_url: str) -> None:
    told = run_cli("dead", "retry", "airports/cache", "--key", "nope", url=store_url)
    assert "has 2 more dead letters that the options do not select" in told
    told = run_cli("dead", "drop", "airports/cache", "--key", "OSL", "--who", "eve", url=store_url)
    assert "has 1 more dead letter that the options do not select" in told
    assert "more dead" not in run_cli("dead", "retry", "airports/cache", url=store_url)


def test_a_drain_that_has_waited_for_a_lock_is_not_told_to_wait(orders: Store) -> None:
    queue = orders.queue("orders")
    claim(orders.database, queue, queue.units(), owner=Owner("nightly", "1"), lease_seconds=60)
    with pytest.raises(LockNotAvailable) as caught:
        drain(orders, "orders", MemorySink(), sink_name="cache", lock_timeout=0.1)
    assert "waited for 0.1 s: wait longer (lock_timeout)" in str(caught.value.hint)
    with pytest.raises(LockNotAvailable) as caught:
        drain(orders, "orders", MemorySink(), sink_name="cache", if_locked="fail")
    assert "if_locked='wait'" in str(caught.value.hint)


def test_the_url_of_an_unknown_sink_names_those_that_there_are(orders: Store, store_url: str) -> None:
    told = run_cli("drain", "orders", "--sink", "elasticsearch://host:9200", url=store_url, status=1)
    assert "https://host:9200" in told
