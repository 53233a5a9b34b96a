"""Rules about what waits in a queue are asked of rows and of files alike (I6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.contexts import begin

from export_queue import Candidates, EntriesWait, EntryRejected, InvalidArgument, MemorySink, Store, UnknownQueue, drain
from export_queue.core.maintenance import maintain
from export_queue.core.queue import Pending, find_reader, pending
from export_queue.core.store import queries, schema

FORMS = ["row", "file"]
LARGE = 3 << 20


@pytest.fixture
def files(store: Store, tmp_path: Path) -> Store:
    """A store whose files are in a folder of the test's."""
    store.database.segments = str(tmp_path / "segments")
    return store


def add(writer: Any, form: str, key: str = "k", value: bytes = b"1") -> None:
    if form == "row":
        writer.add(key, value)
    else:
        writer.add_batch(pa.table({"key": [key], "value": pa.array([value], pa.binary())}))


def commit(store: Store, form: str, *keys: str) -> None:
    with store.transaction(long=True) as tx:
        for key in keys or ("k",):
            add(tx.queue("orders"), form, key, key[:1].encode() * LARGE)


def stage(store: Store, form: str) -> None:
    context = begin(store, kind="long", timeout=3600)
    add(context.queue("orders"), form, value=b"1" * LARGE)
    context.flush()


def refuse(entry: Any) -> list[Any]:
    raise ValueError("no")


def dead(store: Store, form: str) -> None:
    commit(store, form)
    drain(store, "orders", MemorySink(), sink_name="sink", exporter=refuse)


def retried(store: Store, form: str) -> None:
    dead(store, form)
    store.dead_letters.retry("orders")


def drained_in_part(store: Store, form: str) -> None:
    def export(entry: Any) -> list[Any]:
        return [] if entry.key == "a" else refuse(entry)

    commit(store, form, "a", "b")
    with pytest.raises(EntryRejected):
        drain(store, "orders", MemorySink(), sink_name="sink", exporter=export, on_error="fail", chunk_rows=1)


def merged(store: Store, form: str) -> None:
    """Leave a merged file, whose inputs hide behind it."""
    for key in ("a", "b"):
        commit(store, "file", key)
    commit(store, form)
    store.compact("orders", wanted=Candidates(least=2))


STATES: dict[str, Callable[[Store, str], None]] = {
    "waits": commit,
    "is staged": stage,
    "is dead": dead,
    "is retried": retried,
    "is drained in part": drained_in_part,
    "is merged": merged,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("state", STATES)
def test_no_option_changes_that_needs_an_empty_queue_while_an_entry(files: Store, form: str, state: str) -> None:
    files.configure_queue("orders", buckets=1, value="bytes", max_value_bytes=4 << 20)
    STATES[state](files, form)
    with pytest.raises(EntriesWait, match=r"found ([1-9] entries, 0 dead letters|0 entries, 1 dead letters)"):
        files.subscribe("orders", "search")
    with pytest.raises(InvalidArgument, match=r"empty queue, found ([1-9] entries and 0|0 entries and 1) dead letters"):
        files.alter_queue("orders", buckets=2, guard="fence")
    with pytest.raises(InvalidArgument, match=rf"expected at least {LARGE}, the size of a pending value"):
        files.alter_queue("orders", max_value_bytes=2 << 20)
    if state != "is dead":  # a dead letter names its bucket and keeps no layout open
        assert [one.number for one in files.alter_queue("orders", buckets=2, guard="seq").older] == [1]
    assert files.alter_queue("orders", max_value_bytes=LARGE).max_value_bytes == LARGE


@pytest.mark.parametrize("form", FORMS)
def test_options_change_once_nothing_waits(files: Store, form: str) -> None:
    files.configure_queue("orders", buckets=1, value="bytes", max_value_bytes=4 << 20)
    merged(files, form)
    drain(files, "orders", MemorySink(), sink_name="sink")
    assert files.alter_queue("orders", max_value_bytes=1 << 20).max_value_bytes == 1 << 20
    assert files.alter_queue("orders", buckets=2, guard="fence").older == ()
    assert files.subscribe("orders", "search").first_load == "missing"


@pytest.mark.parametrize("form", FORMS)
def test_a_subscription_stays_while_an_entry_waits_or_is_staged_for_it(files: Store, form: str) -> None:
    files.configure_queue("orders", buckets=1, value="bytes", max_value_bytes=4 << 20, subscriptions=["search"])
    cache = files.subscribe("orders", "cache")
    with pytest.raises(UnknownQueue), files.first_load("orders/cache") as load:
        add(load, form)
        load.flush()
        with pytest.raises(EntriesWait, match="found 1 entries"):
            files.unsubscribe("orders", "cache")
        files.unsubscribe("orders", "cache", discard=True, who="anna")
    files.subscribe("orders", "cache")
    commit(files, form)
    with pytest.raises(EntriesWait, match="found 1 entries"):
        files.unsubscribe("orders", "cache")
    again = files.queue("orders/cache")
    files.unsubscribe("orders", "cache", discard=True, who="anna")
    drain(files, "orders/search", MemorySink(), sink_name="sink")
    maintain(files.database)
    with files.database.read() as work:
        for one in (cache, again):
            assert not queries.readers.has_rows(work, one.number)
        assert work.connection.execute(schema.segment_reader.select()).all() == []
    assert len(files.dead_letters.audit("orders")) == 2
    assert all('"entries":1' in act.selection.replace(" ", "") for act in files.dead_letters.audit("orders"))


# -- counts that do not grow with the queue ----------------------------------------------------------------------------


def counted(store: Store, most: int = 1000) -> Pending:
    with store.database.read() as work:
        return pending(work, find_reader(work, "orders"), most=most)


@pytest.mark.parametrize("form", FORMS)
def test_a_bounded_count_sees_what_is_committed_and_nothing_else(files: Store, form: str) -> None:
    files.configure_queue("orders", value="bytes", max_value_bytes=LARGE)
    assert counted(files) == Pending(0, None, False)
    commit(files, form, "a", "b")
    stage(files, form)
    (first,) = {entry.oldest_seq for entry in files.backlog("orders")}
    assert counted(files) == Pending(2, first, False)


def test_a_bounded_count_stops_and_says_so(store: Store) -> None:
    store.configure_queue("orders", value="bytes")
    with store.transaction() as tx:
        for key in "abcd":
            tx.queue("orders").add(key, b"1")
    found = [counted(store, most) for most in (3, 4, 5)]
    assert [(one.entries, one.is_more) for one in found] == [(3, True), (4, False), (4, False)]
