"""Queues on both stores: options, adding, reading and removing exactly what was read (I3, I7)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.support.contexts import context_of, opened_by
from tests.support.waiting import wait_until

from export_queue import (
    ConflictError,
    DeadLetter,
    EntryError,
    InvalidArgument,
    OptionsDiffer,
    Range,
    SinkBindingError,
    Store,
    UnknownQueue,
)
from export_queue.core.queue import Entries, Position, bind_sink, dead_letter, read_entries, remove_entries, remove_span
from export_queue.core.transactions import OpenTransaction, Snapshot, take_snapshot


def add(store: Store, *keys: str, queue: str = "q") -> int:
    with store.transaction() as tx:
        for key in keys:
            tx.queue(queue).add(key, {"key": key})
        return tx.id


def entries(store: Store, snapshot: Snapshot | None = None, queue_id: str = "q") -> Entries:
    queue = store.queue(queue_id)
    with store.database.read() as work:
        return read_entries(
            work, queue, snapshot or take_snapshot(store.database), Range(0, queue.buckets), rows=10_000, size=1 << 30
        )


def keys(store: Store) -> list[str]:
    return sorted(key.decode() for key in entries(store).keys)


def test_the_same_options_again_change_nothing(store: Store) -> None:
    assert store.configure_queue("q", buckets=16, buckets_per_range=4) == store.configure_queue(
        "q", buckets=16, buckets_per_range=4
    )


def test_other_options_are_refused_and_listed(store: Store) -> None:
    store.configure_queue("q", buckets=16, buckets_per_range=4)
    add(store, "kept")
    with pytest.raises(OptionsDiffer, match=r"buckets: expected 32, found 16; .*value: expected 'str', found 'json'"):
        store.configure_queue("q", buckets=32, buckets_per_range=4, value="str")
    assert keys(store) == ["kept"]


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "a-", "a..b", "a/b", "ü", "x" * 65, "a\n", None])
def test_a_bad_queue_id_is_refused_with_the_rule(store: Store, name: str) -> None:
    with pytest.raises(InvalidArgument, match="1-64 characters"):
        store.configure_queue(name)


@pytest.mark.parametrize("name", ["a", "0", "a.b-c_d", "x" * 64])
def test_a_good_queue_id_is_taken(store: Store, name: str) -> None:
    assert store.configure_queue(name).id == name


def test_an_unknown_queue_names_those_that_exist(store: Store) -> None:
    store.configure_queue("orders")
    with pytest.raises(UnknownQueue, match="no queue 'order'; it has: orders"), store.transaction() as tx:
        tx.table("t").set("a", "n", b"1")
        tx.queue("order")
    with store.transaction() as tx:
        assert tx.table("t").get("a", "n") is None


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("value", "xml", "'bytes', 'int', 'json', 'str'] or an import path 'module:name', found 'xml'"),
        ("key", "json", "'bytes', 'int', 'str'] or an import path .*\n.*equal values may differ as JSON"),
        ("buckets", 0, "1 to 1000000"),
        ("buckets", True, "1 to 1000000"),
        ("buckets_per_range", 2000, "1 to 1009"),
    ],
)
def test_a_bad_option_names_what_is_allowed(store: Store, option: str, value: object, expected: str) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        store.configure_queue("q", **{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("", 1, "1 to 1024 bytes, found 0"),
        ("x" * 1025, 1, "1 to 1024 bytes, found 1025"),
        ("ü" * 513, 1, "found 1026"),
        (7, 1, "expected str, found int"),
        ("k", object(), "value of key 'k': expected a JSON value"),
        ("\ud800", 1, r"half a character \(a lone surrogate\) at position 0"),
        ("k", {"lines": [{"price": 1.5}, {"price": math.nan}]}, r"field lines\[1\].price is nan, .*\n.*send None"),
        ("k", math.inf, "the value is inf"),
        ("k", {"a": {"b": "x\ud800"}}, r"field a.b is text with a lone surrogate at position 1\n.*repair the text"),
        ("k", {"a": {1: 2}}, r"field a has a key of type int\n.*str\(key\)"),
        ("k", {"a": 10**309}, r"field a is a number beyond 1.8E\+308, .*\n.*str\("),
        ("k", {"a": b"x"}, r"field a is of type bytes\n.*decode\(\)"),
        ("k", "x" * 200, "value of key 'k': expected at most 100 bytes, found 202"),
    ],
)
def test_a_bad_entry_is_refused_and_the_transaction_leaves_nothing(
    store: Store, key: object, value: object, expected: str
) -> None:
    store.configure_queue("q", max_value_bytes=100)
    with pytest.raises(EntryError, match=expected), store.transaction() as tx:
        tx.queue("q").add("good", 1)
        tx.queue("q").add(key, value)
    assert keys(store) == []


def test_null_is_a_json_value_and_text_of_half_a_character_is_no_text(store: Store) -> None:
    store.configure_queue("q")
    store.configure_queue("text", value="str")
    with store.transaction() as tx:
        tx.queue("q").add("k", {"a": None, "b": "null"})
    with pytest.raises(EntryError, match="value of key 'k': expected text, found half a character"):  # noqa: SIM117
        with store.transaction() as tx:
            tx.queue("text").add("k", "\ud800")
    with pytest.raises(InvalidArgument, match="half a character"), store.transaction() as tx:
        tx.table("t").set("a\ud800", "c", b"1")


@pytest.mark.parametrize(("buckets", "per_range"), [(1, 1), (7, 1), (64, 7), (1009, 101)])
def test_a_queue_of_any_number_of_buckets_has_about_ten_units(store: Store, buckets: int, per_range: int) -> None:
    queue = store.configure_queue("q", buckets=buckets)
    assert queue.buckets_per_range == per_range
    assert len(queue.units()) == min(10, buckets)
    assert store.configure_queue("q", buckets=buckets) == queue


def test_the_same_key_twice_in_one_transaction_is_an_error_unless_it_replaces(store: Store) -> None:
    store.configure_queue("q")
    with pytest.raises(EntryError, match="replace=True"), store.transaction() as tx:
        tx.queue("q").add("k", 1)
        tx.queue("q").add("k", 2)
    with store.transaction() as tx:
        tx.queue("q").add("k", 1)
        tx.queue("q").add("k", 2, replace=True)
    assert list(entries(store).values) == [b"2"]


def test_adding_the_same_key_in_two_transactions_makes_two_entries(store: Store) -> None:
    store.configure_queue("q")
    older = context_of(store, OpenTransaction(store.database))
    seqs = [older.id, add(store, "k")]
    older.queue("q").add("k", 1)
    opened_by(older).commit()
    assert list(entries(store).seqs) == seqs


def test_an_exclusive_key_conflicts(store: Store) -> None:
    store.configure_queue("q")
    store.configure_queue("guarded", exclusive=True)
    for queue, options in (("q", {"exclusive": True}), ("guarded", {})):
        with pytest.raises(ConflictError, match="queue (q|guarded): k"), store.transaction() as tx:
            assert tx.id
            with store.transaction() as other:
                other.queue(queue).add("k", 1, **options)
            tx.queue(queue).add("k", 2, **options)


def test_entries_come_in_the_order_of_bucket_key_and_sequence(store: Store) -> None:
    store.configure_queue("q", buckets=4, buckets_per_range=1)
    for _ in range(3):
        add(store, *"abcdefgh")
    found = entries(store)
    order = list(zip(found.buckets, found.keys, found.seqs, strict=True))
    assert order == sorted(order)
    assert len(order) == 24


@pytest.mark.parametrize(("rows", "size"), [(1, 1 << 30), (5, 1 << 30), (1000, 1), (1000, 40)])
def test_reading_in_chunks_gives_all_entries_once(store: Store, rows: int, size: int) -> None:
    queue = store.configure_queue("q", buckets=4, buckets_per_range=2)
    for _ in range(4):
        add(store, *"abcdefgh")
    snapshot = take_snapshot(store.database)
    whole = entries(store, snapshot)
    found: list[Position] = []
    with store.database.read() as work:
        for unit in queue.units():
            after = None
            while chunk := read_entries(work, queue, snapshot, unit, after=after, rows=rows, size=size):
                assert len(chunk) <= rows
                found += [chunk.position(i) for i in range(len(chunk))]
                after = found[-1]
                if chunk.is_last:
                    assert not read_entries(work, queue, snapshot, unit, after=after, rows=rows, size=size)
                    break
    assert found == [whole.position(i) for i in range(len(whole))]


def measured_pages(store: Store, monkeypatch: pytest.MonkeyPatch, *, rows: int, size: int) -> list[list[int]]:
    """Read a queue in chunks; returns, chunk by chunk, the bytes of each page that was fetched."""
    queue = store.queue("q")
    steps = store.database.dialect.steps
    select, chunks, found = steps.select_entries, list[list[int]](), list[bytes]()

    def measured(*arguments: Any, **options: Any) -> Any:
        page = select(*arguments, **options)
        chunks[-1].append(sum(len(key) + len(value or b"") for _, key, _, value in page))
        return page

    monkeypatch.setattr(steps, "select_entries", measured)
    snapshot, after = take_snapshot(store.database), None
    with store.database.read() as work:
        while True:
            chunks.append([])
            chunk = read_entries(work, queue, snapshot, Range(0, 1), after=after, rows=rows, size=size)
            found += chunk.keys
            if not chunk or chunk.is_last:
                break
            assert chunk.size <= size
            after = chunk.position(len(chunk) - 1)
    assert found == sorted(set(found))
    assert len(found) == sum(unit.entries for unit in store.backlog("q"))
    return chunks


def test_large_entries_are_fetched_a_chunk_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.configure_queue("q", buckets=1, buckets_per_range=1, value="bytes")
    with store.transaction() as tx:
        for n in range(3_000):
            tx.queue("q").add(f"{n:08d}", b"x" * 1000)
    chunks = measured_pages(store, monkeypatch, rows=10_000, size=160_000)
    assert max(map(sum, chunks)) < 2 * 160_000
    assert sum(map(sum, chunks)) < 1.5 * 3_000 * 1008, "hardly anything is fetched twice"
    assert max(map(len, chunks)) <= 4


def test_small_entries_take_few_statements(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.configure_queue("q", buckets=1, buckets_per_range=1, value="bytes")
    with store.transaction() as tx:
        for n in range(3_000):
            tx.queue("q").add(f"{n:08d}", b"x")
    assert [len(pages) for pages in measured_pages(store, monkeypatch, rows=10_000, size=16 << 20)] == [3]


@pytest.mark.parametrize("whole_keys", [False, True])
def test_a_chunk_that_was_not_full_knows_that_it_is_the_last(store: Store, whole_keys: bool) -> None:
    queue = store.configure_queue("q", buckets=1, buckets_per_range=1)
    for _ in range(2):
        add(store, *"abc")
    snapshot = take_snapshot(store.database)

    def read(rows: int, size: int) -> Entries:
        with store.database.read() as work:
            return read_entries(work, queue, snapshot, Range(0, 1), rows=rows, size=size, whole_keys=whole_keys)

    assert [read(rows, size).is_last for rows, size in ((7, 1 << 20), (6, 1 << 20), (7, 30))] == [True, False, False]


def test_removing_a_span_leaves_what_an_older_transaction_committed_into_it_meanwhile(store: Store) -> None:
    queue = store.configure_queue("q", buckets=1, buckets_per_range=1)
    older = context_of(store, OpenTransaction(store.database))
    assert older.id
    add(store, "a", "z")
    snapshot = take_snapshot(store.database)
    seen = entries(store, snapshot)
    older.queue("q").add("m", {"late": True})
    opened_by(older).commit()
    with store.database.begin() as work:
        assert remove_span(work, queue, snapshot, seen.position(0), seen.position(1)) == 2
    assert keys(store) == ["m"]


def test_removing_a_span_leaves_staged_entries(store: Store) -> None:
    queue = store.configure_queue("q", buckets=1, buckets_per_range=1)
    long = context_of(store, OpenTransaction(store.database, kind="long"))
    long.queue("q").add("m", 1)
    long.flush()
    add(store, "a", "z")
    snapshot = take_snapshot(store.database)
    seen = entries(store, snapshot)
    assert [key.decode() for key in seen.keys] == ["a", "z"]
    with store.database.begin() as work:
        remove_span(work, queue, snapshot, seen.position(0), seen.position(1))
    opened_by(long).commit()
    assert keys(store) == ["m"]


def test_removing_a_span_stays_within_its_edges(store: Store) -> None:
    queue = store.configure_queue("q", buckets=3, buckets_per_range=1)
    for _ in range(3):
        add(store, *"abcdefgh")
    snapshot = take_snapshot(store.database)
    all_entries = entries(store, snapshot)
    with store.database.begin() as work:
        assert remove_span(work, queue, snapshot, all_entries.position(5), all_entries.position(16)) == 12
    left = entries(store)
    assert [left.position(i) for i in range(len(left))] == [
        all_entries.position(i) for i in range(24) if not 5 <= i <= 16
    ]


def test_removing_single_entries(store: Store) -> None:
    queue = store.configure_queue("q")
    add(store, *[f"k{i}" for i in range(700)])
    found = entries(store)
    gone = [found.position(i) for i in range(0, 700, 2)]
    with store.database.begin() as work:
        assert remove_entries(work, queue, gone) == 350
    assert len(entries(store)) == 350


def test_backlog_and_waiting_ranges_name_the_units_with_work(store: Store) -> None:
    queue = store.configure_queue("q", buckets=64, buckets_per_range=5)
    assert store.waiting_ranges("q") == []
    for i in range(9):
        add(store, f"k{i}")
    found = entries(store)
    expected = sorted({next(u for u in queue.units() if u.first <= b < u.end) for b in found.buckets})
    assert store.waiting_ranges("q") == expected
    assert [unit.range for unit in store.backlog("q")] == expected
    assert sum(unit.entries for unit in store.backlog("q")) == 9
    assert store.waiting_ranges("q", [expected[0]]) == expected[:1]
    assert store.backlog("q", [expected[1].to_json()])[0].range == expected[1]


def test_what_is_uncommitted_is_no_work(store: Store) -> None:
    store.configure_queue("q")
    with store.transaction(long=True) as tx:
        tx.queue("q").add("k", 1)
        tx.flush()
        assert store.waiting_ranges("q") == []
        assert store.backlog("q") == []
    assert len(store.waiting_ranges("q")) == 1


def test_a_queue_is_bound_to_its_first_sink(store: Store) -> None:
    queue = store.configure_queue("q")
    with store.database.begin() as work:
        bind_sink(work, queue, "redis_default")
        bind_sink(work, queue, "redis_default")
        with pytest.raises(SinkBindingError, match="'redis_default', found a drain into 'pg'"):
            bind_sink(work, queue, "pg")
    store.rebind("q", "pg")
    assert store.queue("q").sink == "pg"


def test_dead_letters_are_kept_once_with_their_reason(store: Store) -> None:
    queue = store.configure_queue("q")
    add(store, "a", "b")
    found = entries(store)
    letters = [DeadLetter(found.position(i), found.values[i], "ValueError", "no", "drain-1") for i in range(2)]
    for _ in range(2):
        with store.database.begin() as work:
            dead_letter(work, queue, letters)
    kept = sorted(store.dead_letters.list("q", values=True), key=lambda letter: letter.position)
    assert [replace(letter, value_bytes=None, dead_since_ms=0, key=None) for letter in kept] == sorted(
        letters, key=lambda letter: letter.position
    )
    assert [letter.value_bytes for letter in kept] == [len(letter.value or b"") for letter in kept]
    assert [letter.key for letter in kept] == [letter.position.key.decode() for letter in kept]
    assert store.dead_letters.count("q") == 2
    assert '"key"' not in repr(kept)


def test_removed_rows_are_reclaimed(postgres_url: str) -> None:
    with Store.open(postgres_url) as store:
        store.create()
        queue = store.configure_queue("q")
        add(store, *[f"k{i}" for i in range(5000)])
        found = entries(store)
        with store.database.begin() as work:
            remove_span(work, queue, take_snapshot(store.database), found.position(0), found.position(len(found) - 1))
        with store.database.connect() as connection:
            server = store.database.dialect.server
            assert server is not None
            assert server.is_untidy(connection, removed=5000, after=4999)
            assert not server.is_untidy(connection, removed=0, after=10**9)

            def is_reclaimed() -> bool:
                server.tidy_entries(connection)  # skips the table while the server itself cleans or analyses it
                size = connection.exec_driver_sql("select pg_relation_size('export_queue.xq_entry')").scalar()
                return size == 0

            wait_until(is_reclaimed, "the space is not reclaimed")
