"""What a failed write of files leaves behind: nothing, so that a full disk has room again at once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support import bulk
from tests.support.s3 import S3Server

from export_queue import (
    Candidates,
    ConflictError,
    EntryError,
    MemorySink,
    SegmentRefused,
    SegmentUnavailable,
    Store,
    drain,
)
from export_queue.core.segments import files, mergers, write_segments


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """The kind of store makes no difference to what is left of files."""
    return sqlite_url


@pytest.fixture
def orders(store: Store, tmp_path: Path) -> Store:
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=20, buckets_per_range=5, value="bytes")
    return store


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def left(store: Store) -> list[str]:
    return left_in(Path(str(store.database.segments)))


def table(entries: int, size: int) -> pa.Table:
    return pa.table({"key": [f"key-{i}" for i in range(entries)], "value": [os.urandom(size) for _ in range(entries)]})


def test_a_full_disk_has_room_again_after_each_refusal(orders: Store, small_disk: Path) -> None:
    orders.database.segments = str(small_disk / "segments")
    for _ in range(2):
        with pytest.raises(SegmentUnavailable, match="No space left"), orders.transaction(long=True) as tx:
            tx.queue("orders").add_batch(table(60, 100_000))
        assert left_in(small_disk) == []
    with orders.transaction(long=True) as tx:
        with pytest.raises(SegmentUnavailable, match="No space left"):
            tx.queue("orders").add_batch(table(60, 100_000))
        tx.queue("orders").add_batch(table(3, 100_000))
    assert drain(orders, "orders", MemorySink(), sink_name="sink").read == 3


@pytest.mark.parametrize("what", ["a file", "below a file", "a link to itself", "a dead link", "a long name"])
def test_a_place_that_can_be_no_folder_is_refused_at_once(orders: Store, tmp_path: Path, what: str) -> None:
    place = tmp_path / "place"
    if "link" in what:
        place.symlink_to(tmp_path / "nothing" / "here" if what == "a dead link" else place)
    elif what.endswith("file"):
        place.touch()
    orders.database.segments = str(
        {"below a file": place / "below", "a long name": tmp_path / ("a" * 300)}.get(what, place)
    )
    with (
        pytest.raises(SegmentRefused, match="check that the place and all its parents are folders"),
        orders.transaction(long=True) as tx,
    ):
        tx.queue("orders").add_batch(table(3, 10))


def test_a_folder_that_goes_while_a_file_is_made_is_no_lost_file(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken_away(path: Path) -> Any:
        shutil.rmtree(path.parent)
        return path.rename(path)

    with orders.transaction(long=True) as tx:
        with monkeypatch.context() as patch, pytest.raises(SegmentUnavailable, match="No such file"):
            patch.setattr(files, "_publish", taken_away)
            tx.queue("orders").add_batch(table(3, 10))
        tx.queue("orders").add_batch(table(3, 10))
    assert drain(orders, "orders", MemorySink(), sink_name="sink").read == 3


@pytest.mark.parametrize("url", ["sqlite_url", "postgres_url"])
def test_an_aborted_transaction_leaves_no_file(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> None:
    with Store.open(request.getfixturevalue(url), segments=str(tmp_path / "segments")) as orders:
        orders.create()
        orders.configure_queue("orders", buckets=20, buckets_per_range=5, value="bytes")
        abort_in_each_way(orders)


def abort_in_each_way(orders: Store) -> None:
    with pytest.raises(ZeroDivisionError), orders.transaction(long=True) as tx:
        tx.queue("orders").add_batch(table(3, 9))
        raise ZeroDivisionError
    assert left(orders) == []
    token = orders.begin()
    with orders.resume(token) as tx:
        tx.queue("orders").add_batch(table(3, 9))
    orders.abort(token)
    assert left(orders) == []
    with pytest.raises(ConflictError), orders.transaction(long=True) as tx:
        tx.queue("orders").add_batch(table(3, 9))
        tx.queue("orders").add("one", b"1", exclusive=True)
        with orders.transaction() as other:
            other.queue("orders").add("one", b"2", exclusive=True)
    assert left(orders) == []


def test_an_abort_after_the_commit_deletes_no_file(orders: Store) -> None:
    token = orders.begin()
    with orders.resume(token) as tx:
        tx.queue("orders").add_batch(table(3, 9))
    orders.commit(token)
    orders.abort(token)
    assert drain(orders, "orders", MemorySink(), sink_name="sink").read == 3
    orders.abort(token)
    assert len(left(orders)) == 1


def unsorted(orders: Store, number: int, base: str) -> None:
    """Write a whole file, and then meet an entry that is out of order."""
    batches = [bulk.batch({f"key-{i}": os.urandom(99) for i in range(300)}, 20)] * 2
    write_segments(
        batches,
        base=base,
        store_id=orders.id,
        transaction=number,
        name="task",
        buckets_per_range=5,
        target_bytes=1 << 12,
    )


def test_an_entry_that_is_refused_leaves_neither_its_file_nor_those_before(orders: Store) -> None:
    with orders.transaction(long=True) as tx:
        with pytest.raises(EntryError, match="sorted"):
            unsorted(orders, tx.id, str(orders.database.segments))
        assert left(orders) == []


def test_an_entry_that_is_refused_leaves_no_object(orders: Store, s3_server: S3Server, s3_bucket: str) -> None:
    place = s3_server.place(s3_bucket)
    with orders.transaction(long=True) as tx, pytest.raises(EntryError, match="sorted"):
        unsorted(orders, tx.id, place)
    assert [name for name in s3_server.objects(s3_bucket) if name.endswith(".parquet")] == []


@pytest.mark.parametrize("step", ["fsync", "rename", "open", "interruption"])
def test_a_write_that_fails_at_any_step_leaves_nothing(
    orders: Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fails(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt if step == "interruption" else OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        match step:
            case "fsync":
                patched.setattr(files.os, "fsync", fails)
            case "rename":
                patched.setattr(Path, "rename", fails)
            case "open":
                patched.setattr(Path, "mkdir", fails)
            case "interruption":
                patched.setattr(files.Written, "end_section", fails)
        expected = KeyboardInterrupt if step == "interruption" else SegmentUnavailable
        with pytest.raises(expected), orders.transaction(long=True) as tx:
            tx.queue("orders").add_batch(table(3, 9))
    assert left(orders) == []


def test_a_compaction_that_meets_a_full_disk_leaves_nothing_of_its_own(orders: Store, small_disk: Path) -> None:
    orders.database.segments = str(small_disk / "segments")
    for i in range(2):
        bulk.load(orders, {f"key-{i}-{n}": os.urandom(30_000) for n in range(16)})
    before = left_in(small_disk)
    with pytest.raises(SegmentUnavailable, match="No space left"):
        (small_disk / "other").write_bytes(bytes(900_000))
        orders.compact("orders", wanted=Candidates(least=2))
    assert [name for name in left_in(small_disk) if name != "other"] == before
    assert drain(orders, "orders", MemorySink(), sink_name="sink").read == 32


def test_shares_that_were_merged_before_one_failed_are_deleted(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(2):
        bulk.load(orders, {f"key-{i}-{n}": os.urandom(99) for n in range(40)})
    before, run, runs = left(orders), mergers.Merge.run, list[int]()

    def fails(self: Any, *args: Any) -> Any:
        runs.append(1)
        if len(runs) == 3:
            raise SegmentUnavailable("no room")
        return run(self, *args)

    monkeypatch.setattr(mergers.Merge, "run", fails)
    monkeypatch.setattr(mergers.LocalMerger, "shares", 4)
    with pytest.raises(SegmentUnavailable, match="no room"):
        orders.compact("orders", wanted=Candidates(least=2))
    assert len(runs) == 3
    assert left(orders) == before


def test_a_move_that_meets_a_full_disk_leaves_nothing_of_its_own(orders: Store, small_disk: Path) -> None:
    orders.database.segments = str(small_disk / "segments")
    orders.configure_queue("one", buckets=1, value="bytes")
    bulk.load(orders, {f"key-{n}": os.urandom(30_000) for n in range(32)}, queue_id="one")
    orders.alter_queue("one", buckets=2, guard="seq")
    before = left_in(small_disk)
    (small_disk / "other").write_bytes(bytes(700_000))
    with pytest.raises(SegmentUnavailable, match="No space left"):
        orders.compact("one", wanted=Candidates(most_bytes=100_000), older_layouts=True)
    assert [name for name in left_in(small_disk) if name != "other"] == before
    assert drain(orders, "one", MemorySink(), sink_name="sink").read == 32
