"""Options of a queue that are altered while it is in use, on both stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.contexts import catalogue_of, context_of, opened_by

from export_queue import (
    ConflictError,
    EntryError,
    InvalidArgument,
    LockNotAvailable,
    MemorySink,
    OptionsDiffer,
    Owner,
    Range,
    Store,
    UnknownQueue,
    drain,
)
from export_queue.core.client.catalogue import FRESH_SECONDS, Catalogue
from export_queue.core.drain import LastCommit
from export_queue.core.locks import claim, release
from export_queue.core.transactions import OpenTransaction


@pytest.fixture
def queue_id(store: Store) -> str:
    store.configure_queue("q", buckets=16, buckets_per_range=4, value="bytes")
    return "q"


def add(store: Store, key: str, value: bytes = b"x") -> None:
    with store.transaction() as tx:
        tx.queue("q").add(key, value)


def test_options_are_altered_one_by_one_and_again_without_effect(store: Store, queue_id: str) -> None:
    for _ in range(2):
        assert store.alter_queue(queue_id, max_value_bytes=7).max_value_bytes == 7
    altered = store.alter_queue(queue_id, exclusive=True, buckets_per_range=8)
    assert (altered.max_value_bytes, altered.exclusive, altered.buckets_per_range) == (7, True, 8)
    assert store.queue(queue_id) == altered == store.alter_queue(queue_id)
    assert altered.units() == [Range(0, 8, 2), Range(8, 16, 2)]


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("max_value_bytes", 0, "1 to 67108864, found 0"),
        ("buckets_per_range", 17, "1 to 16, found 17"),
        ("guard", "none", "seq or fence, found 'none'"),
    ],
)
def test_an_option_out_of_bounds_is_refused(
    store: Store, queue_id: str, option: str, value: object, expected: str
) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        store.alter_queue(queue_id, **{option: value})  # type: ignore[arg-type]


def test_a_queue_that_is_not_there_is_not_altered(store: Store) -> None:
    with pytest.raises(UnknownQueue, match="no queue 'other'"):
        store.alter_queue("other", exclusive=True)


def test_the_error_of_other_options_names_the_command_that_alters_them(store: Store, queue_id: str) -> None:
    with pytest.raises(OptionsDiffer) as caught:
        store.configure_queue("q", buckets=32, buckets_per_range=8, value="bytes", max_value_bytes=9, exclusive=True)
    assert "exclusive: expected True, found False" in caught.value.message
    assert (
        "export-queue alter q --buckets 32 --buckets-per-range 8 --max-value-bytes 9 --exclusive --store …"
        in caught.value.hint
    )


@pytest.mark.parametrize("option", [{"key": "bytes"}, {"value": "json"}])
def test_an_option_that_cannot_be_altered_is_named_as_such(store: Store, queue_id: str, option: dict[str, Any]) -> None:
    with pytest.raises(OptionsDiffer) as caught:
        store.configure_queue("q", **{"buckets": 16, "buckets_per_range": 4, "value": "bytes", **option})
    (name,) = option
    assert f"{name}: expected" in caught.value.message
    assert f"{name} of a queue cannot be altered" in caught.value.hint


def test_a_smaller_limit_leaves_the_entries_that_wait(store: Store, queue_id: str) -> None:
    add(store, "before", b"x" * 100)
    store.alter_queue(queue_id, max_value_bytes=10)
    with pytest.raises(EntryError, match="at most 10 bytes, found 11"):
        add(store, "after", b"x" * 11)
    sink = MemorySink()
    assert drain(store, queue_id, sink, sink_name="s").acknowledged == 1
    assert sink.records() == {("q", b"before"): b"x" * 100}


def test_a_limit_that_plans_memory_is_not_lowered_below_what_waits(store: Store, queue_id: str) -> None:
    store.alter_queue(queue_id, max_value_bytes=3 << 20)
    add(store, "large", b"x" * (2 << 20))
    with pytest.raises(InvalidArgument, match=f"expected at least {2 << 20}, .* found {1 << 20}"):
        store.alter_queue(queue_id, max_value_bytes=1 << 20)
    assert store.alter_queue(queue_id, max_value_bytes=2 << 20).max_value_bytes == 2 << 20
    drain(store, queue_id, MemorySink(), sink_name="s")
    assert store.alter_queue(queue_id, max_value_bytes=1000).max_value_bytes == 1000


def test_a_process_that_uses_a_queue_learns_of_its_options_within_a_minute(store: Store, queue_id: str) -> None:
    now = [1000.0]
    catalogue = Catalogue(store.database, clock=lambda: now[0])
    assert not catalogue.queue(queue_id).exclusive
    store.alter_queue(queue_id, exclusive=True)
    now[0] += FRESH_SECONDS - 1
    assert not catalogue.queue(queue_id).exclusive
    now[0] += 1
    assert catalogue.queue(queue_id).exclusive
    assert catalogue_of(store).queue(queue_id).exclusive, "the process that altered them knows at once"


def test_of_two_overlapping_transactions_one_commits_once_the_queue_is_exclusive(
    store: Store, queue_id: str, open_store: Callable[[], Store]
) -> None:
    def both() -> None:
        first = context_of(store, OpenTransaction(store.database))
        assert first.table("t").get("a", "b") is None  # its snapshot
        first.queue(queue_id).add("k", b"1")
        add(store, "k", b"2")
        opened_by(first).commit()

    both()
    store.alter_queue(queue_id, exclusive=True)
    with pytest.raises(ConflictError):
        both()
    store.alter_queue(queue_id, exclusive=False)
    both()


def test_units_stay_while_somebody_works_on_one(store: Store, queue_id: str) -> None:
    queue = store.queue(queue_id)
    leases = claim(store.database, queue, queue.units()[1:2], owner=Owner("worker", "1"), lease_seconds=600)
    with pytest.raises(LockNotAvailable, match=r"\[4, 8\) by worker"):
        store.alter_queue(queue_id, buckets_per_range=8)
    assert store.alter_queue(queue_id, exclusive=True).exclusive, "this concerns no unit"
    release(store.database, leases)
    assert store.alter_queue(queue_id, buckets_per_range=8).buckets_per_range == 8


def test_units_of_a_queue_with_entries_are_altered_only_for_sinks_with_ranks(store: Store, queue_id: str) -> None:
    add(store, "waits")
    with pytest.raises(InvalidArgument, match="expected an empty queue") as caught:
        store.alter_queue(queue_id, buckets_per_range=8)
    assert "--guard seq" in caught.value.hint
    assert store.alter_queue(queue_id, buckets_per_range=8, guard="seq").buckets_per_range == 8
    sink = MemorySink()
    assert drain(store, queue_id, sink, sink_name="s").acknowledged == 1
    assert store.alter_queue(queue_id, buckets_per_range=3).buckets_per_range == 3


def test_a_staged_entry_is_one_that_waits(store: Store, queue_id: str) -> None:
    long = context_of(store, OpenTransaction(store.database, kind="long"))
    long.queue(queue_id).add("k", b"1")
    long.flush()
    with pytest.raises(InvalidArgument, match="expected an empty queue"):
        store.alter_queue(queue_id, buckets_per_range=8)
    opened_by(long).abort()


def test_subscriptions_are_altered_with_their_queue(store: Store) -> None:
    store.configure_queue("airports", buckets=16, buckets_per_range=4, subscriptions=["search", "cache"])
    with store.transaction() as tx:
        tx.queue("airports").add("OSL", 1)
    with pytest.raises(InvalidArgument, match="'airports/search' has the options of its queue"):
        store.alter_queue("airports/search", max_value_bytes=9)
    store.alter_queue("airports", max_value_bytes=99, exclusive=True)
    with pytest.raises(InvalidArgument, match="'airports/cache': expected an empty queue"):
        store.alter_queue("airports", buckets_per_range=8)
    sink = MemorySink()
    drain(store, "airports/cache", sink, sink_name="c")
    search = store.queue("airports/search")
    leases = claim(store.database, search, search.units()[:1], owner=Owner("worker", "1"), lease_seconds=600)
    with pytest.raises(LockNotAvailable, match="others work on units of queue 'airports/search'"):
        store.alter_queue("airports", buckets_per_range=8)
    assert store.queue("airports/cache").buckets_per_range == 4, "all of them are altered, or none"
    release(store.database, leases)
    store.alter_queue("airports", buckets_per_range=8, guard="seq")
    for found in (store.queue("airports"), *store.subscriptions("airports")):
        assert (found.max_value_bytes, found.exclusive, found.buckets_per_range) == (99, True, 8)
    drain(store, "airports/search", MemorySink(), sink_name="s")
    story = store.why("airports/search", "OSL")
    assert story.last_commit is None, "the entry came before the queue was exclusive"
    with store.transaction() as tx:
        tx.queue("airports").add("OSL", 2)
        seq = tx.id
    drain(store, "airports/cache", sink, sink_name="c")
    assert store.why("airports/cache", "OSL").last_commit == LastCommit(seq, "conflict key")
