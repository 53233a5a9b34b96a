"""Noticing notifications without consuming any, on both stores."""

from __future__ import annotations

import ast
import json
import math
import random
import sys
from base64 import b64decode
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from tests.support.waiting import wait_until

from export_queue import ColumnNotObserved, InvalidArgument, OptionsDiffer, Store
from export_queue.core import codecs
from export_queue.core.observers import ColumnSighting, look
from export_queue.core.observers.watching import MOST_READ
from export_queue.core.store import schema
from export_queue.core.tables import cell_types
from export_queue.core.transactions import take_snapshot


def write(store: Store, *rows: str | bytes, column: str = "n") -> None:
    with store.transaction() as tx:
        for row in rows:
            tx.table("t").set(row, column, b"x")


def seen(store: Store, since: ColumnSighting | None = None, *, limit: int = 100) -> ColumnSighting:
    snapshot = take_snapshot(store.database)
    with store.database.read() as work:
        return look(work, "t", "n", snapshot, limit=limit, since=since)


def set_waits(store: Store, next_ms: int) -> None:
    """Let all observers that failed be due at a time."""
    with store.database.begin() as work:
        work.connection.execute(schema.observer_failure.update().values(next_ms=next_ms))


def now(store: Store) -> int:
    with store.database.read() as work:
        return work.now()


def fail(tx: object, row: bytes, column: bytes) -> None:
    raise ValueError("no")


HALF_AN_HOUR_MS = 1_800_000


class Dates:
    """A codec of rows that are dates."""

    def encode(self, value: date) -> bytes:
        return value.isoformat().encode()

    def decode(self, raw: bytes) -> date:
        return date.fromisoformat(raw.decode())


class Parsed:
    """A codec of rows of any type that Python can parse."""

    def encode(self, value: object) -> bytes:
        return ascii(value).encode()

    def decode(self, raw: bytes) -> Any:
        return ast.literal_eval(raw.decode())


class Moody:
    """A codec that does not decode what it has encoded."""

    def encode(self, value: int) -> bytes:
        return str(value).encode()

    def decode(self, raw: bytes) -> int:
        if raw == b"13":
            raise ConnectionError
        return int(raw)


dates, parsed, moody = Dates(), Parsed(), Moody()


@pytest.fixture
def watched(store: Store) -> Store:
    """A store whose column ``t/n`` is declared, and observed by nobody."""
    store.watch("t", "n")
    return store


# -- declaring ---------------------------------------------------------------------------------------------------------


def test_writes_to_a_declared_column_wait_for_an_observer_of_another_process(watched: Store, store_url: str) -> None:
    write(watched, "anna")
    calls = []
    with Store.open(store_url) as other:
        other.observe("t", "n", lambda tx, row, column: calls.append(row))
        assert other.process_notifications().done == 1
    assert calls == [b"anna"]
    assert not watched.waiting_rows("t", "n")


def test_a_process_that_has_written_before_notifies_from_its_own_declaration_on(store: Store) -> None:
    write(store, "before")
    store.watch("t", "n")
    write(store, "anna")
    assert store.waiting_rows("t", "n").rows == (b"anna",)


def test_marks_on_a_column_that_is_declared_weak_wait(store: Store) -> None:
    store.watch("t", "n", kind="weak")
    write(store, "anna")
    with store.transaction() as tx:
        tx.table("t").notify("ben", "n")
    assert store.waiting_rows("t", "n").rows == (b"ben",)


def test_declaring_again_changes_nothing_and_another_kind_is_refused(watched: Store) -> None:
    write(watched, "anna")
    watched.watch("t", "n")
    assert watched.waiting_rows("t", "n").rows == (b"anna",)
    with pytest.raises(OptionsDiffer, match="expected weak, found strong"):
        watched.watch("t", "n", kind="weak")
    with pytest.raises(OptionsDiffer, match="expected weak, found strong"):
        watched.observe("t", "n", fail, kind="weak")
    with pytest.raises(InvalidArgument, match="kind"):
        watched.watch("t", "n", kind="soft")


def test_a_column_that_nobody_declared_is_an_error_that_names_the_others(watched: Store) -> None:
    for table, column in (("t", "m"), ("u", "n")):
        with pytest.raises(ColumnNotObserved, match=f"column {table}/{column} is not observed; the store has: t/n"):
            watched.waiting_rows(table, column)


# -- listing -----------------------------------------------------------------------------------------------------------


def test_rows_are_listed_once_those_that_wait_longest_first(watched: Store) -> None:
    for row in ("carla", "anna", "carla", "ben"):
        write(watched, row)
    found = watched.waiting_rows("t", "n")
    assert (found.rows, found.more, found.is_all) == ((b"carla", b"anna", b"ben"), 0, True)


def test_rows_behind_the_limit_are_counted(watched: Store) -> None:
    for i in range(7):
        write(watched, f"row {i}")
    found = watched.waiting_rows("t", "n", limit=3)
    assert (found.rows, found.more, found.is_all) == ((b"row 0", b"row 1", b"row 2"), 4, True)


def test_rows_behind_the_oldest_notifications_are_not_counted_and_that_is_said(watched: Store) -> None:
    write(watched, *(f"row {i:04}" for i in range(MOST_READ - 1)))
    assert watched.waiting_rows("t", "n", limit=1).is_all
    write(watched, "late")
    write(watched, "later")
    found = watched.waiting_rows("t", "n", limit=MOST_READ)
    assert (len(found.rows), found.more, found.is_all) == (MOST_READ, 0, False)
    assert b"later" not in found.rows


def test_other_columns_and_tables_are_not_listed(watched: Store) -> None:
    watched.watch("t", "m")
    watched.watch("u", "n")
    write(watched, "anna", column="m")
    with watched.transaction() as tx:
        tx.table("u").set("anna", "n", b"x")
    assert not watched.waiting_rows("t", "n")


def test_nothing_of_transactions_in_progress_or_aborted_is_seen(watched: Store) -> None:
    aborted, committed = watched.begin(), watched.begin()
    for long in (aborted, committed):
        with watched.resume(long) as tx:
            tx.table("t").set(f"row {long['id']}", "n", b"x")
    with watched.transaction() as tx:
        tx.table("t").set("short", "n", b"x")
        assert not watched.waiting_rows("t", "n")
        assert not seen(watched).has_news
        tx.table("t").delete("short", "n")
        with pytest.raises(ZeroDivisionError), watched.transaction() as other:
            other.table("t").set("other", "n", b"x")
            _ = 1 / 0
    watched.abort(aborted)
    before = seen(watched)
    watched.commit(committed)
    assert f"row {committed['id']}".encode() in watched.waiting_rows("t", "n").rows
    assert f"row {aborted['id']}".encode() not in watched.waiting_rows("t", "n").rows
    assert b"other" not in watched.waiting_rows("t", "n").rows
    assert seen(watched, before).has_news


def test_looking_consumes_nothing(watched: Store) -> None:
    write(watched, "anna", "ben")
    for _ in range(3):
        assert watched.waiting_rows("t", "n").rows == (b"anna", b"ben")
        assert seen(watched).has_news
    calls = []
    watched.observe("t", "n", lambda tx, row, column: calls.append(row))
    assert watched.process_notifications().done == 2
    assert sorted(calls) == [b"anna", b"ben"]
    assert not watched.waiting_rows("t", "n")


def test_any_row_comes_out_as_json_and_back(watched: Store) -> None:
    rows = [b"anna", "zo\u00eb".encode(), b"\xff\x00\xfe", b"nul \x00 inside", b'{"base64": 1}']
    for row in rows:
        write(watched, row)
    listed = watched.waiting_rows("t", "n").to_json()["rows"]
    assert [row if isinstance(row, str) else list(row) for row in listed] == [
        "anna",
        "zo\u00eb",
        ["base64"],
        ["base64"],
        '{"base64": 1}',
    ]
    assert [row.encode() if isinstance(row, str) else b64decode(row["base64"]) for row in listed] == rows


@pytest.mark.parametrize("limit", [0, -1, MOST_READ + 1, 2.5, math.inf, math.nan, "many", None])
def test_a_limit_that_no_look_can_keep_is_refused(watched: Store, limit: Any) -> None:
    with pytest.raises(InvalidArgument, match="limit: expected"):
        watched.waiting_rows("t", "n", limit=limit)
    if limit != MOST_READ + 1:
        with pytest.raises(InvalidArgument, match="limit: expected"):
            watched.observer_failures(limit=limit)


def set_rows(store: Store, *rows: Any) -> None:
    """Write to rows of a typed table, in turn."""
    for row in rows:
        with store.transaction() as tx:
            tx.table("typed").set(row, "n", b"x")


@pytest.mark.parametrize(
    ("codec", "rows", "in_json"),
    [
        ("int", [7, -7, int.from_bytes(b"AAAAAAAA", "big") - (1 << 63), (1 << 63) - 1], None),
        ("str", ["anna", "zo\u00eb", '{"base64": 1}', "7"], None),
        ("str", ["a\0", "b"], [{"base64": "YQA="}, "b"]),
        ("bytes", [b"anna", b"\xff\x00"], ["anna", {"base64": "/wA="}]),
        (f"{__name__}:dates", [date(2026, 1, 2)], [{"base64": "MjAyNi0wMS0wMg=="}]),
        (f"{__name__}:parsed", ["text", 5, 1 << 80, True], ["text", 5, *[{"base64": ANY}] * 2]),
        (f"{__name__}:parsed", ["\ud800", b"anna"], [{"base64": ANY}] * 2),
    ],
)
def test_rows_are_of_the_tables_type(store: Store, codec: str, rows: list[Any], in_json: list[Any] | None) -> None:
    store.configure_table("typed", row=codec)
    store.watch("typed", "n")
    set_rows(store, *rows)
    found = store.waiting_rows("typed", "n")
    assert list(found.rows) == rows
    assert [type(row) for row in found.rows] == [type(row) for row in rows]
    assert json.loads(json.dumps(found.to_json()))["rows"] == (rows if in_json is None else in_json)
    with store.transaction() as tx:
        assert [tx.table("typed").get(row, "n") for row in found.rows] == [b"x"] * len(rows)


def test_a_row_that_its_codec_does_not_decode_is_listed_as_bytes_beside_the_others(store: Store) -> None:
    store.configure_table("typed", row=f"{__name__}:moody")
    store.watch("typed", "n")
    set_rows(store, 1, 13, 2)
    found = store.waiting_rows("typed", "n")
    assert found.rows == (1, b"13", 2)
    assert found.to_json()["rows"] == [1, {"base64": "MTM="}, 2]


def test_rows_whose_codec_is_missing_are_listed_as_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "short_lived", moody, raising=False)
    store.configure_table("typed", row=f"{__name__}:short_lived")
    store.watch("typed", "n")
    set_rows(store, 1)
    monkeypatch.undo()
    cell_types.cache_clear()
    codecs._imported.cache_clear()
    assert store.waiting_rows("typed", "n").to_json()["rows"] == [{"base64": "MQ=="}]


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_a_column_that_its_table_cannot_have_is_refused(store: Store, kind: str) -> None:
    store.configure_table("typed", row="str")
    for column in (b"\xff", "", "x" * 1025, 5):
        with pytest.raises(InvalidArgument, match="column: expected"):
            store.watch("typed", column, kind)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="column: expected"):
            store.observe("typed", column, fail, kind)  # type: ignore[arg-type]
    store.watch("typed", "zo\u00eb".encode(), kind)
    store.watch("plain", b"\xff", kind)


# -- news --------------------------------------------------------------------------------------------------------------


def test_what_was_seen_is_no_news_and_a_newer_write_is(watched: Store) -> None:
    write(watched, "anna")
    first = seen(watched)
    assert first.has_news
    assert not seen(watched, first).has_news
    write(watched, "anna")
    assert seen(watched, first).has_news


def test_a_transaction_that_began_before_a_look_and_committed_after_it_is_news(watched: Store) -> None:
    older = watched.begin()
    with watched.resume(older) as tx:
        tx.table("t").set("older", "n", b"x")
    write(watched, "younger")
    first = seen(watched)
    watched.commit(older)
    second = seen(watched, first)
    assert second.has_news
    assert set(second.waiting.rows) == {b"older", b"younger"}


def test_news_behind_the_limit_are_news(watched: Store) -> None:
    write(watched, "anna", "ben")
    first = seen(watched, limit=1)
    write(watched, "carla")
    second = seen(watched, first, limit=1)
    assert second.has_news
    assert (second.waiting.rows, second.waiting.more) == ((b"anna",), 2)


def test_a_row_whose_observer_failed_waits_and_is_news_when_it_is_due_again(watched: Store) -> None:
    watched.observe("t", "n", fail)
    write(watched, "anna")
    announced = seen(watched)
    assert watched.process_notifications().failed == 1
    set_waits(watched, now(watched) + HALF_AN_HOUR_MS)
    assert not seen(watched, announced).waiting
    write(watched, "ben")
    assert seen(watched, announced).waiting.rows == (b"ben",)
    announced = seen(watched, announced)
    assert not seen(watched, announced).has_news
    set_waits(watched, announced.at_ms + 1)
    wait_until(lambda: now(watched) > announced.at_ms, "the store's clock stands still")
    again = seen(watched, announced)
    assert again.has_news
    assert again.waiting.rows == (b"anna", b"ben")
    assert not seen(watched, again).has_news


def test_a_write_to_a_row_that_backs_off_is_no_news_until_the_row_is_due(watched: Store) -> None:
    watched.observe("t", "n", fail)
    write(watched, "anna")
    assert watched.process_notifications().failed == 1
    set_waits(watched, now(watched) + HALF_AN_HOUR_MS)
    write(watched, "ben")
    announced = seen(watched)
    write(watched, "anna")
    assert not seen(watched, announced).has_news


def test_a_failure_whose_row_has_only_an_uncommitted_write_is_no_news(watched: Store) -> None:
    failing = True

    def observer(tx: object, row: bytes, column: bytes) -> None:
        if failing:
            raise ValueError("no")

    watched.observe("t", "n", observer)
    write(watched, "anna")
    assert watched.process_notifications().failed == 1
    set_waits(watched, 0)
    failing = False
    assert watched.process_notifications().done == 1
    with watched.database.begin() as work:  # as another process leaves it that has worked the row off
        values = {"table_number": 0, "row_key": b"anna", "column_key": b"n", "attempts": 1, "next_ms": 0, "error": ""}
        number = watched.configure_table("t").number
        work.connection.execute(schema.observer_failure.insert().values({**values, "table_number": number}))
    write(watched, "ben")
    announced = seen(watched)
    long = watched.begin()
    with watched.resume(long) as tx:
        tx.table("t").set("anna", "n", b"x")
    set_waits(watched, announced.at_ms + 1)
    wait_until(lambda: now(watched) > announced.at_ms, "the store's clock stands still")
    assert not seen(watched, announced).has_news
    watched.commit(long)
    assert seen(watched, announced).has_news


# -- a random history against a plain oracle ---------------------------------------------------------------------------


class Clock:
    """Milliseconds that the test sets, and that may pass with each reading."""

    def __init__(self) -> None:
        self.ms = 1_760_000_000_000
        self.passing = 0

    def __call__(self) -> int:
        self.ms += self.passing
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def clocked(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'clocked.db'}", clock=clock) as store:
        store.create()
        store.watch("t", "n")
        yield store


def test_a_wait_that_ends_during_a_look_is_announced_by_it_or_by_the_next_one(clocked: Store, clock: Clock) -> None:
    clocked.observe("t", "n", fail)
    write(clocked, "anna")
    assert clocked.process_notifications().failed == 1
    write(clocked, "ben")
    clock.passing = 1000
    for after in range(500, 8000, 500):
        set_waits(clocked, clock.ms + after)
        announced = seen(clocked)
        clock.ms += 10_000
        assert b"anna" in announced.waiting.rows or seen(clocked, announced).has_news, after


def test_after_the_clock_was_set_back_what_waits_is_announced_once(clocked: Store, clock: Clock) -> None:
    clocked.observe("t", "n", fail)
    write(clocked, "ben")
    write(clocked, "anna")
    clock.ms += 3_600_000
    announced = seen(clocked)
    clock.ms -= 3_600_000
    assert clocked.process_notifications(limit=1).failed == 1
    clock.ms += 2_000
    again = seen(clocked, announced)
    assert again.has_news
    assert not seen(clocked, again).has_news


@pytest.mark.parametrize(
    "seed", [seed if seed < 3 else pytest.param(seed, marks=pytest.mark.full("more histories")) for seed in range(12)]
)
def test_a_watcher_announces_whatever_is_due_once_and_nothing_twice(clocked: Store, clock: Clock, seed: int) -> None:
    """The oracle notes which notifications were in an event since they were last due."""
    rng = random.Random(seed)
    fails = False

    def observer(tx: object, row: bytes, column: bytes) -> None:
        if fails and rng.random() < 0.5:
            raise ValueError("no")

    clocked.observe("t", "n", observer)
    covered: set[tuple[bytes, int, int]] = set()
    announced: ColumnSighting | None = None
    open_ones: list[dict[str, object]] = []
    events = 0
    for step in range(120):
        clock.ms += rng.choice((1, 50, 700, 4000))
        act = rng.choice(("write", "write", "begin", "end", "work", "look", "look", "look"))
        if act == "write":
            write(clocked, f"row {rng.randrange(6)}")
        elif act == "begin" and len(open_ones) < 3:
            open_ones.append(clocked.begin())
            with clocked.resume(open_ones[-1]) as tx:
                tx.table("t").set(f"long {step}", "n", b"x")
        elif act == "end" and open_ones:
            rng.choice((clocked.commit, clocked.abort))(open_ones.pop(rng.randrange(len(open_ones))))
        elif act == "work":
            fails = rng.random() < 0.5
            clocked.process_notifications(limit=rng.randrange(1, 4))
        elif act == "look":
            due = due_now(clocked, clock.ms)
            expected = not due <= covered
            found = seen(clocked, announced, limit=3)
            assert (len(found.waiting.rows) + found.waiting.more) == len({row for row, _, _ in due}), (seed, step)
            fires = bool(found.waiting) and (announced is None or found.has_news)
            assert fires == expected, (seed, step)
            if not found.waiting:
                announced = None
            elif fires:
                announced, covered, events = found, due, events + 1
    assert events > 5


def due_now(store: Store, now_ms: int) -> set[tuple[bytes, int, int]]:
    """Read row, version and due time of all notifications that are committed and due, straight from the tables."""
    snapshot = take_snapshot(store.database)
    with store.database.read() as work:
        waits = {row.row_key: row.next_ms for row in work.connection.execute(schema.observer_failure.select())}
        found = [(row.row_key, row.version) for row in work.connection.execute(schema.notification.select())]
    return {
        (row, version, waits.get(row, 0))
        for row, version in found
        if snapshot.is_visible(version) and waits.get(row, 0) <= now_ms
    }
