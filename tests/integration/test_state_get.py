"""Reading one key of a state: what it costs, and what it sees next to everything that moves the key's entries."""

from __future__ import annotations

import contextlib
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.waiting import wait_until

from export_queue import (
    Candidates,
    InvalidArgument,
    SegmentLost,
    SnapshotTooOld,
    StateIncomplete,
    Store,
)
from export_queue.core.segments import compact, vacuum_segments, verified_file
from export_queue.core.state import one_key, trim
from export_queue.core.store import Database, schema
from export_queue.core.store.byte_cache import ByteCache
from export_queue.core.store.pool import Pool

KEYS = [f"k{i}" for i in range(400)]


@pytest.fixture
def remembering(store: Store, tmp_path: Path) -> Store:
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("q", buckets=8, buckets_per_range=4, state=True, history=0)
    return store


def load(store: Store, value: str, *, queue: str = "q", keys: list[str] = KEYS) -> None:
    with store.transaction(long=True) as tx:
        tx.queue(queue).add_batch(pa.table({"key": keys, "value": [value] * len(keys)}))


def merged(store: Store, *, queue: str = "q") -> Path:
    """Load two files, merge them, and return the only file of the state."""
    load(store, "old", queue=queue)
    load(store, "new", queue=queue)
    return merge(store, queue=queue)


def merge(store: Store, *, queue: str = "q") -> Path:
    (file,) = compact(store.database, f"{queue}/@state", wanted=Candidates(least=2)).files
    return Path(file)


def vacuum(store: Store) -> None:
    vacuum_segments(store.database, grace_seconds=0.0, zombie_seconds=0.0, hidden_seconds=0.0)


def forget(store: Store) -> None:
    """Let the process begin without a part of a file."""
    store.database.kept.clear()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the files that are opened."""
    names: list[str] = []
    open_file = verified_file.open_file

    def noted(url: str, *, size: int) -> Any:
        names.append(url)
        return open_file(url, size=size)

    monkeypatch.setattr(verified_file, "open_file", noted)
    return names


def test_a_get_runs_one_statement_and_reads_a_part_of_a_file_once(
    remembering: Store, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    merged(remembering)
    state = remembering.state("q")
    assert [state.get(key) for key in KEYS] == ["new"] * len(KEYS)
    opened.clear()
    calls: list[str] = []

    def noted(owner: type, name: str) -> None:
        method = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **named: calls.append(name) or method(*given, **named))

    noted(Database, "call")
    noted(Pool, "connect")
    assert [state.get(key) for key in KEYS] == ["new"] * len(KEYS)
    assert calls == ["call"] * len(KEYS)
    assert opened == []


def test_a_file_is_not_opened_for_a_key_whose_row_is_newer(remembering: Store, opened: list[str]) -> None:
    merged(remembering).unlink()
    opened.clear()
    with remembering.transaction() as tx:
        tx.queue("q").add_many([("k1", "newest"), ("k2", None)])
    state = remembering.state("q")
    assert (state.get("k1"), state.get("k2")) == ("newest", None)
    assert opened == []


def test_kept_parts_stay_within_their_bytes(remembering: Store) -> None:
    merged(remembering)
    state = remembering.state("q")
    assert {state.get(key) for key in KEYS} == {"new"}
    whole = remembering.database.kept.bytes
    assert whole > 10_000
    for limit in (whole * 3 // 4, 100):  # one of the two parts, and none
        remembering.database.kept = kept = ByteCache(limit)
        for key in KEYS:
            assert state.get(key) == "new"
            assert kept.bytes <= limit


@pytest.mark.parametrize("at", [0.3, 0.999], ids=["a part", "the footer"])
def test_a_damaged_file_is_refused_by_name(remembering: Store, at: float) -> None:
    file = merged(remembering)
    content = bytearray(file.read_bytes())
    content[int(len(content) * at)] ^= 1
    file.write_bytes(content)
    state = remembering.state("q")
    for _ in range(2):  # what is damaged is not kept
        refused = []
        for key in KEYS:
            try:
                assert state.get(key) == "new"
            except SegmentLost as error:
                refused.append(error.message)
        assert refused
        assert all(file.name in message for message in refused)


def test_a_kept_part_is_served_after_its_file_was_deleted(remembering: Store) -> None:
    file = merged(remembering)
    state = remembering.state("q")
    assert state.get("k0") == "new"
    file.unlink()
    assert state.get("k0") == "new"
    forget(remembering)
    with pytest.raises(SegmentLost, match=file.name):
        state.get("k0")


def test_another_file_of_the_same_name_is_not_taken_for_the_kept_one(remembering: Store) -> None:
    """As in a store that was restored together with its files."""
    remembering.configure_queue("other", buckets=8, buckets_per_range=4, state=True)
    file, state = merged(remembering), remembering.state("q")
    load(remembering, "older", queue="other")
    load(remembering, "restored", queue="other")
    other = merge(remembering, queue="other")
    assert state.get("k0") == "new"
    shutil.copyfile(other, file)
    g = schema.segment
    columns = ("file_bytes", "footer_bytes", "checksum", "entries", "lowest_seq", "highest_seq")
    with remembering.database.begin() as work:
        for row in work.rows(g.select().where(g.c.file == str(other))):
            changed = g.update().where(g.c.file == str(file), g.c.first_bucket == row["first_bucket"])
            work.connection.execute(changed.values({name: row[name] for name in columns}))
    assert state.get("k0") == "restored"


def test_a_file_that_clean_up_deletes_meanwhile_is_looked_up_again(
    remembering: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = merged(remembering)
    load(remembering, "newer", keys=KEYS[1:])
    state, read = remembering.state("q"), one_key.entries_of_key

    def late(*given: Any) -> Any:
        if file.exists():
            merge(remembering)
            vacuum(remembering)
            assert not file.exists()
        return read(*given)

    monkeypatch.setattr(one_key, "entries_of_key", late)
    assert state.get("k0") == "new"
    assert not file.exists()


def test_a_lost_file_that_still_counts_is_reported(remembering: Store) -> None:
    file = merged(remembering)
    file.unlink()
    with pytest.raises(SegmentLost, match=file.name):
        remembering.state("q").get("k0")


def test_a_get_sees_rows_and_files_of_every_layout(remembering: Store) -> None:
    merged(remembering)
    state = remembering.state("q")
    remembering.alter_queue("q", buckets=5, buckets_per_range=5, guard="seq")
    with remembering.transaction() as tx:
        tx.queue("q").add_many([("k1", "row"), ("k2", None)])
    expected = dict.fromkeys(KEYS, "new") | {"k1": "row", "k2": None}
    assert {key: state.get(key) for key in KEYS} == expected
    remembering.alter_queue("q", buckets=7, buckets_per_range=3, guard="seq")
    assert {key: state.get(key) for key in KEYS} == expected
    compact(remembering.database, "q/@state", older_layouts=True)
    forget(remembering)
    assert {key: state.get(key) for key in KEYS} == expected


def test_the_newest_of_several_files_and_rows_counts(remembering: Store) -> None:
    remembering.alter_queue("q", history="1h")
    load(remembering, "first")
    with remembering.transaction() as tx:
        tx.queue("q").add("k0", "row")
        between = tx.id
    load(remembering, "last")
    load(remembering, "other", keys=KEYS[1:])
    state = remembering.state("q")
    assert (state.get("k0"), state.get("k0", as_of=between)) == ("last", "row")
    assert (state.get("k1"), state.get("k1", as_of=between)) == ("other", "first")


def test_a_file_with_another_number_of_entries_than_the_store_has_is_refused(remembering: Store) -> None:
    merged(remembering)
    with remembering.database.begin() as work:
        work.connection.execute(schema.segment.update().values(entries=schema.segment.c.entries + 1))
    with pytest.raises(SegmentLost, match="entries in a unit"):
        remembering.state("q").get("k0")


@pytest.mark.parametrize("commits", [True, False])
def test_a_get_does_not_see_what_a_first_load_has_staged(remembering: Store, commits: bool) -> None:
    remembering.configure_queue("late")
    remembering.alter_queue("late", state=True)
    state = remembering.state("late")
    with pytest.raises(StateIncomplete):
        state.get("a")
    remembering.waive_first_load(state.id)
    assert state.get("a") is None
    with contextlib.suppress(ZeroDivisionError), remembering.first_load(state.id) as loading:
        loading.add("a", 1)
        loading.flush()
        assert state.get("a") is None
        if not commits:
            raise ZeroDivisionError
    assert state.get("a") == (1 if commits else None)


def test_a_get_does_not_see_rows_of_an_invalid_transaction(remembering: Store) -> None:
    remembering.configure_queue("late")
    remembering.alter_queue("late", state=True)
    state = remembering.state("late")
    remembering.waive_first_load(state.id)
    loading = remembering.first_load(state.id)
    with pytest.raises(Exception, match="has ended|no longer in progress|invalid"), loading as tx:
        tx.add("a", 1)
        tx.flush()
        with remembering.database.begin() as work:
            work.connection.execute(schema.active.update().values(deadline_ms=0))
        with remembering.database.connect() as connection:
            remembering.database.dialect.steps.expire(connection)
        assert state.get("a") is None


def test_a_former_value_is_read_as_of_a_time_or_transaction(remembering: Store) -> None:
    remembering.alter_queue("q", history="1h")
    ids = []
    for value in ("one", None, "three"):
        with remembering.transaction() as tx:
            tx.queue("q").add("a", value)
            ids.append(tx.id)
        load(remembering, value or "", keys=["b", "c"])
        if value is None:
            compact(remembering.database, "q/@state", wanted=Candidates(least=2))
    state = remembering.state("q")
    assert [state.get("a", as_of=number) for number in ids] == ["one", None, "three"]
    assert [state.get("b", as_of=number) for number in (*ids, ids[-1] + 3600 * 10**9)] == [None, "one", "", "three"]
    with pytest.raises(SnapshotTooOld):
        state.get("a", as_of=datetime(1, 1, 1, tzinfo=UTC))
    assert state.get("a", as_of=datetime(9000, 1, 1, tzinfo=UTC)) == "three"
    with pytest.raises(InvalidArgument, match="as_of"):
        state.get("a", as_of=-1)


def test_a_get_as_of_a_time_whose_values_are_deleted_is_refused(remembering: Store) -> None:
    with remembering.transaction() as tx:
        tx.queue("q").add("a", 1)
        first = tx.id
    state = remembering.state("q")
    assert state.get("a", as_of=first) == 1
    with remembering.transaction() as tx:
        tx.queue("q").add("a", 2)
    wait_until(lambda: trim(remembering.database, limit=100) == 1, "the former value is not deleted")
    with pytest.raises(SnapshotTooOld, match="older values are deleted"):
        state.get("a", as_of=first)
    assert state.get("a") == 2


def test_a_get_as_of_before_the_first_load_is_refused(remembering: Store) -> None:
    remembering.configure_queue("late")
    remembering.alter_queue("late", state=True)
    with remembering.transaction() as tx:
        tx.queue("late").add("new", 1)
        incomplete = tx.id
    state = remembering.state("late")
    with remembering.first_load(state.id) as loading:
        loading.add("old", 1)
    assert state.get("old") == 1
    with pytest.raises(SnapshotTooOld, match="that of its first load"):
        state.get("new", as_of=incomplete)


def test_a_state_that_was_switched_off_and_on_is_found_again(remembering: Store) -> None:
    merged(remembering)
    state = remembering.state("q")
    assert state.get("k0") == "new"
    remembering.alter_queue("q", state=False)
    with pytest.raises(InvalidArgument, match="has no state"):
        state.get("k0")
    remembering.alter_queue("q", state=True)
    remembering.waive_first_load(remembering.state("q").id)
    assert state.get("k0") is None
    with remembering.transaction() as tx:
        tx.queue("q").add("k0", "again")
    assert state.get("k0") == "again"
