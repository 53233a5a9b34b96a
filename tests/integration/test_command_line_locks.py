"""Locks from the command line: who holds what, who waits for whom, and what became of holders that are gone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.command_line import run_cli

from export_queue import Owner, Store
from export_queue.core.locks import ROWS, Area, Held, Lease, acquire, claim, held, release, revoke
from export_queue.core.locks.waiting import Asking
from export_queue.core.queue import Queue
from export_queue.core.store import schema

ROWS_AND_MORE = Area(0, 2, frozenset({ROWS, "7.1", "7.2", "7.10", "8.1"}))


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.configure_queue("orders", buckets=8, buckets_per_range=2)


def take(store: Store, queue: Queue, area: Area, task: str, *, priority: int = 75) -> list[Lease]:
    owner = Owner(task, f"attempt of {task}")
    return acquire(store.database, queue, [area], owner=owner, priority=priority, lease_seconds=600)


@contextmanager
def waiter(store: Store, queue: Queue, task: str, *areas: Area, priority: int = 75) -> Iterator[None]:
    asking = Asking(store.database, queue, areas, owner=Owner(task, "1"), priority=priority, lease_seconds=60)
    with asking:
        assert asking.ask(revokes=False, stays=True) is None
        yield


def set_back(store: Store, column: sa.Column[Any], of: sa.ColumnElement[bool]) -> None:
    """Let a lease or a request end five minutes ago."""
    with store.database.begin() as work:
        table = column.table
        assert isinstance(table, sa.Table)
        changed = work.connection.execute(table.update().where(of).values({column.name: work.now() - 300_000}))
        assert changed.rowcount == 1


def shown(url: str, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run_cli("locks", *arguments, "--json", url=url))
    return found


def test_a_lock_says_who_holds_what_since_when_and_until_when(store: Store, store_url: str, queue: Queue) -> None:
    (lease,) = take(store, queue, ROWS_AND_MORE, "drain")
    (row,) = shown(store_url)
    since, until = (datetime.fromisoformat(row.pop(name)) for name in ("since", "until"))
    assert "its lease ends in 10 min unless" in row.pop("explanation")
    assert row == {
        "queue": "orders",
        "range": [0, 2],
        "covers": ["7.1", "7.10", "7.2", "8.1", "rows"],
        "state": "held",
        "mode": "exclusive",
        "priority": 75,
        "task": "drain",
        "attempt": "attempt of drain",
        "fence": str(lease.fence),
        "waits_for": [],
    }
    assert abs(until - since - timedelta(minutes=10)) <= timedelta(seconds=2)
    assert abs(datetime.now(UTC) - since) < timedelta(minutes=5)
    table = run_cli("locks", url=store_url)
    assert "rows 7.1 7.10 and 2 more" in table
    release(store.database, [lease])
    assert shown(store_url) == []
    assert "nothing to show" in run_cli("locks", url=store_url)


def test_a_lock_on_a_whole_range_covers_all(store: Store, store_url: str, queue: Queue) -> None:
    claim(store.database, queue, queue.units()[:1], owner=Owner("drain", "1"), lease_seconds=60)
    assert shown(store_url)[0]["covers"] is None
    assert "│ all " in run_cli("locks", url=store_url)


def test_a_holder_of_many_units_is_explained_once_below_the_table(store: Store, store_url: str, queue: Queue) -> None:
    claim(store.database, queue, queue.units(), owner=Owner("drain", "1"), lease_seconds=6000)
    table, _, told = run_cli("locks", url=store_url).partition("┘\n")
    assert table.count("drain") == 4
    assert "lease ends" not in table
    assert told.startswith("drain (held): its lease ends in 100 min unless its holder renews it")
    assert told.count("\n") == 1


def test_a_holder_that_is_gone_is_explained(store: Store, store_url: str, queue: Queue) -> None:
    for first, task in enumerate(("holds", "killed", "stopped")):
        take(store, queue, Area(2 * first, 2 * first + 2), task)
    set_back(store, schema.lock.c.lease_ms, schema.lock.c.task == "killed")
    revoke(store.database, "stopped")
    rows = {row["task"]: row for row in shown(store_url)}
    assert {task: row["state"] for task, row in rows.items()} == {
        "holds": "held",
        "killed": "expired",
        "stopped": "revoked",
    }
    assert "its lease ended 5 min ago: the holder died or cannot reach the store" in rows["killed"]["explanation"]
    assert "start the task again" in rows["killed"]["explanation"]
    assert "can change nothing any more" in rows["stopped"]["explanation"]


def test_held_locks_are_counted_and_the_tasks_with_most_are_named(store: Store, queue: Queue) -> None:
    units = queue.units()
    for task, mine in (("killed", units[:1]), ("bert", units[1:2]), ("anna", units[2:])):
        claim(store.database, queue, mine, owner=Owner(task, "1"), lease_seconds=60)
    set_back(store, schema.lock.c.lease_ms, schema.lock.c.task == "killed")
    with store.database.read() as work:
        assert held(work, queue) == Held(3, 2, ("anna", "bert"))
        assert held(work, queue, named=1) == Held(3, 2, ("anna",))


def test_a_request_says_whom_it_waits_for(store: Store, store_url: str, queue: Queue) -> None:
    one, two = Area(0, 2), Area(2, 4, frozenset({"7.1"}))
    take(store, queue, one, "holder")
    with waiter(store, queue, "first", one, two), waiter(store, queue, "second", two, priority=50):
        first, part, second = shown(store_url)[1:]
        assert [row["range"] for row in (first, part, second)] == [[0, 2], [2, 4], [2, 4]]
        assert (first["covers"], part["covers"], first["fence"]) == (None, ["7.1"], None)
        assert {row["state"] for row in (first, part, second)} == {"waits"}
        assert first["waits_for"] == part["waits_for"] == ["holder"]
        assert re.search(r"it has waited for \d+ (s|min): \[0, 2\) is held by holder", first["explanation"])
        assert second["waits_for"] == ["first"]
        assert "first comes first" in second["explanation"]
        set_back(store, schema.lock_request.c.until_ms, schema.lock_request.c.task == "first")
        gone, _, second = shown(store_url)[1:]
        assert (gone["state"], gone["waits_for"], second["waits_for"]) == ("gone", [], [])
        assert "its waiter has not asked again, and it counts no more since 5 min" in gone["explanation"]
        assert "free by now" in second["explanation"]


def test_the_locks_of_one_queue_are_those_of_its_subscriptions(store: Store, store_url: str, queue: Queue) -> None:
    store.configure_queue("airports", buckets=8, buckets_per_range=2, subscriptions=["cache", "search"])
    take(store, queue, Area(0, 2), "other")
    take(store, store.queue("airports/cache"), Area(0, 2), "caching")
    take(store, store.queue("airports/search"), Area(0, 2), "searching")
    assert [row["queue"] for row in shown(store_url)] == ["airports/cache", "airports/search", "orders"]
    assert [row["task"] for row in shown(store_url, "airports")] == ["caching", "searching"]
    assert [row["task"] for row in shown(store_url, "airports/search")] == ["searching"]
    assert [row["task"] for row in shown(store_url, "orders")] == ["other"]
    assert "UnknownQueue" in run_cli("locks", "nowhere", url=store_url, status=1)


def test_names_of_tasks_do_nothing_to_a_terminal(store: Store, store_url: str, queue: Queue) -> None:
    take(store, queue, Area(0, 2), "dag\x1b[2J\nrun")
    with waiter(store, queue, "wait\x9b31m", Area(0, 2)):
        table, text = run_cli("locks", url=store_url), run_cli("locks", "--json", url=store_url)
    assert "dag\\x1b[2J\\nrun" in table
    assert table.count("wait\\x9b31m") == 2, "in the table and below it"
    assert not set("\x1b\x9b") & set(table + text)
