"""Looking at waiting entries, and the story of one key, on both stores."""

from __future__ import annotations

import pytest
from tests.support.contexts import context_of, opened_by

from export_queue import (
    DeadLetterFilter,
    Delete,
    DrainReport,
    Entry,
    EntryError,
    InvalidArgument,
    MemorySink,
    Range,
    SinkRefused,
    Store,
    bucket,
    drain,
)
from export_queue.core.drain import FinishedDrain, LastCommit
from export_queue.core.drain.why import last_commit, possible_delivery
from export_queue.core.queue.read import VALUES_BYTES
from export_queue.core.transactions import OpenTransaction


@pytest.fixture
def queue_id(store: Store) -> str:
    store.configure_queue("q", buckets=16, buckets_per_range=4, value="str", max_value_bytes=8 << 20)
    return "q"


def add(store: Store, *keys: str, value: str | None = "v") -> int:
    with store.transaction() as tx:
        for key in keys:
            tx.queue("q").add(key, value)
        return tx.id


def test_entries_come_in_the_order_of_a_drain_and_stay(store: Store, queue_id: str) -> None:
    first = add(store, "a", "b", "c")
    second = add(store, "b", value=None)
    for _ in range(2):
        found = store.peek(queue_id)
        assert [one.position for one in found] == sorted(one.position for one in found)
        assert {(one.position.key, one.position.seq, one.value_bytes) for one in found} == {
            (b"a", first, 1),
            (b"b", first, 1),
            (b"b", second, None),
            (b"c", first, 1),
        }
        assert all(one.value is None for one in found), "values come on request only"
    assert store.peek(queue_id, limit=2) == found[:2]
    assert [one.position.seq for one in store.peek(queue_id, key="b")] == [first, second]
    assert [one.value for one in store.peek(queue_id, key="b", values=True)] == [b"v", None]
    assert store.peek(queue_id, key="other") == []


def test_a_look_shows_committed_entries_only(store: Store, queue_id: str) -> None:
    long = context_of(store, OpenTransaction(store.database, kind="long"))
    long.queue(queue_id).add("staged", "v")
    long.flush()
    assert store.peek(queue_id, values=True) == []
    opened_by(long).commit()
    assert [one.position.key for one in store.peek(queue_id)] == [b"staged"]


def test_a_look_is_bounded(store: Store, queue_id: str) -> None:
    for limit in (0, 1001, True):
        with pytest.raises(InvalidArgument, match="1 to 1000"):
            store.peek(queue_id, limit=limit)
    with pytest.raises(EntryError):
        store.peek(queue_id, key=7)
    for n in range(4):
        add(store, str(n), value="x" * (6 << 20))
    found = store.peek(queue_id, values=True)
    assert sum(one.value_bytes or 0 for one in found) <= VALUES_BYTES
    assert len(found) == 2
    assert len(store.peek(queue_id)) == 4


def test_a_key_of_which_nothing_is_known(store: Store, queue_id: str) -> None:
    story = store.why(queue_id, "anna")
    at = bucket(b"anna", 16)
    assert (story.bucket, story.unit) == (at, Range(at // 4 * 4, at // 4 * 4 + 4))
    assert (story.last_commit, story.queued, story.dead, story.not_committed) == (None, (), (), ())
    assert (story.last_drain, story.possible_delivery) == (None, None)


def test_what_is_staged_for_a_subscription_is_in_its_story(store: Store) -> None:
    store.configure_queue("airports", buckets=16, buckets_per_range=4, value="str", subscriptions=["cache", "search"])
    with store.transaction(long=True) as tx:
        tx.queue("airports").add("OSL", "Oslo")
        tx.flush()
        for reader in ("airports/cache", "airports/search"):
            assert store.why(reader, "OSL").not_committed == (tx.id,)
            assert store.why(reader, "CPH").not_committed == ()
    assert store.why("airports/cache", "OSL").not_committed == ()
    store.subscribe("airports", "reports")
    with store.first_load("airports/reports") as load:
        load.add("OSL", "Oslo")
        load.flush()
        assert store.why("airports/reports", "OSL").not_committed == (load.id,)
        assert store.why("airports/cache", "OSL").not_committed == ()


def test_the_story_of_a_key_from_its_commit_to_the_drain(store: Store, queue_id: str) -> None:
    long = context_of(store, OpenTransaction(store.database, kind="long"))
    long.queue(queue_id).add("anna", "v")
    long.flush()
    add(store, "other")
    seq = add(store, "anna")
    story = store.why(queue_id, "anna")
    assert story.last_commit == LastCommit(seq, "entry")
    assert [one.position.seq for one in story.queued] == [seq]
    assert story.not_committed == (long.id,)
    opened_by(long).abort()
    assert store.why(queue_id, "anna").not_committed == ()
    sink = MemorySink()
    report = drain(store, queue_id, sink, sink_name="s")
    story = store.why(queue_id, "anna")
    assert (story.last_commit, story.queued) == (None, ()), "the store has no trace of the commit any more"
    assert story.possible_delivery is not None
    assert story.possible_delivery.report == report
    assert story.last_drain == story.possible_delivery
    idle = drain(store, queue_id, sink, sink_name="s")
    story = store.why(queue_id, "anna")
    assert story.last_drain is not None
    assert story.last_drain.report.drain_id == idle.drain_id
    assert story.possible_delivery is not None
    assert story.possible_delivery.report == report


def test_the_story_names_the_drain_that_failed(store: Store, queue_id: str) -> None:
    class Closed(MemorySink):
        def admit(self, **_: object) -> None:
            raise SinkRefused("the sink takes nothing")

    seq = add(store, "anna")
    unit = Range(bucket(b"anna", 16) // 4 * 4, bucket(b"anna", 16) // 4 * 4 + 4)
    with pytest.raises(SinkRefused):
        drain(store, queue_id, Closed(), sink_name="s", ranges=[unit])
    story = store.why(queue_id, "anna")
    assert story.possible_delivery is None
    assert story.last_drain is not None
    assert story.last_drain.report.problem is not None
    assert story.last_commit == LastCommit(seq, "entry")


def test_the_story_of_a_dead_letter(store: Store, queue_id: str) -> None:
    seq = add(store, "anna")
    drain(store, queue_id, MemorySink(), sink_name="s", exporter=lambda entry: [entry])
    story = store.why(queue_id, "anna")
    assert story.last_commit == LastCommit(seq, "dead letter")
    (letter,) = story.dead
    assert (letter.position.seq, letter.value) == (seq, None)


def test_a_state_knows_whether_a_key_is_exported(store: Store) -> None:
    store.configure_queue("orders", subscriptions=["search", "cache"], state=True)
    search, cache = MemorySink(), MemorySink()

    def told() -> dict[str, bool | None]:
        return {reader: store.why(f"orders/{reader}", "anna").exported for reader in ("search", "cache")}

    assert told() == {"search": None, "cache": None}
    seq = add_to(store, "orders", "anna", 1)
    assert told() == {"search": False, "cache": False}
    report = drain(store, "orders/search", search, sink_name="search")
    story = store.why("orders/search", "anna")
    assert (story.last_commit, story.exported) == (LastCommit(seq, "state"), True)
    assert story.possible_delivery is not None
    assert story.possible_delivery.report == report
    assert told() == {"search": True, "cache": False}

    drain(store, "orders/cache", cache, sink_name="cache", exporter=only_deletes)
    assert told() == {"search": True, "cache": False}, "a dead letter"
    assert store.dead_letters.drop("orders/cache", DeadLetterFilter()) == 1
    assert told() == {"search": True, "cache": False}, "a letter that was dropped"

    gone = add_to(store, "orders", "anna", None)
    assert told() == {"search": False, "cache": False}
    drain(store, "orders/search", search, sink_name="search")
    drain(store, "orders/cache", cache, sink_name="cache", exporter=only_deletes)
    assert told() == {"search": True, "cache": True}
    assert store.why("orders/search", "anna").last_commit == LastCommit(gone, "state")
    store.subscribe("orders", "late")
    assert store.why("orders/late", "anna").exported is False, "its first load is missing"


def only_deletes(entry: Entry) -> list[Delete]:
    if entry.value is not None:
        raise ValueError("no form of it")
    return [Delete("orders", entry.key)]


def add_to(store: Store, queue: str, key: str, value: object) -> int:
    with store.transaction() as tx:
        tx.queue(queue).add(key, value)
        return tx.id


def test_a_conflict_key_tells_of_a_commit_that_was_drained(store: Store, queue_id: str) -> None:
    store.alter_queue(queue_id, exclusive=True)
    seq = add(store, "anna")
    sink = MemorySink()
    report = drain(store, queue_id, sink, sink_name="s")
    add(store, *"abcdefghijklmnop")
    drain(store, queue_id, sink, sink_name="s")
    story = store.why(queue_id, "anna")
    assert story.last_commit == LastCommit(seq, "conflict key")
    assert story.possible_delivery is not None
    assert story.possible_delivery.report == report, "the later drain of the unit brought only younger entries"


def test_of_the_traces_of_a_commit_the_newest_counts() -> None:
    assert last_commit([], [], None) is None
    assert last_commit([5], [5], 5) == LastCommit(5, "entry")
    assert last_commit([3], [7], 5) == LastCommit(7, "dead letter")
    assert last_commit([3], [], 5) == LastCommit(5, "conflict key")


def test_a_report_fits_a_delivery_by_its_ranges_and_sequences() -> None:
    def finished(drain_id: str, *ranges: Range, seqs: tuple[int, int] = (1, 9), acknowledged: int = 1) -> FinishedDrain:
        low, high = seqs
        return FinishedDrain(
            0,
            DrainReport(
                queue="q",
                sink="s",
                drain_id=drain_id,
                ranges=ranges,
                acknowledged=acknowledged,
                lowest_seq=low,
                highest_seq=high,
            ),
        )

    drains = [
        finished("elsewhere", Range(4, 8)),
        finished("nothing", Range(0, 4), acknowledged=0),
        finished("younger", Range(0, 4), seqs=(6, 9)),
        finished("fits", Range(0, 4), Range(8, 12), seqs=(5, 5)),
        finished("older", Range(0, 12)),
    ]

    def named(at: int, seq: int | None) -> str | None:
        found = possible_delivery(drains, [Range(at, at + 1)], seq)
        return None if found is None else found.report.drain_id

    assert (named(3, 5), named(11, 5), named(3, None), named(4, None), named(12, None)) == (
        "fits",
        "fits",
        "younger",
        "elsewhere",
        None,
    )
