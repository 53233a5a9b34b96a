"""Compactions, trimming and other jobs next to the state of a queue: no deleted key returns, no reading is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from tests.support.waiting import wait_until

from export_queue import Candidates, SnapshotTooOld, Store
from export_queue.core.queue import bucket
from export_queue.core.segments import compact
from export_queue.core.state import trim, trimming
from export_queue.core.store.schema import entry


@pytest.fixture
def remembering(store: Store, tmp_path: Path) -> Store:
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("q", buckets=8, buckets_per_range=4, state=True, history=0)
    return store


def add(store: Store, changes: dict[str, Any], *, in_a_file: bool = False) -> int:
    with store.transaction(long=True) as tx:
        if in_a_file:
            tx.queue("q").add_batch(pa.table({"key": [*changes], "value": [*changes.values()]}))
        else:
            tx.queue("q").add_many([*changes.items()])
        return tx.id


def state_of(store: Store) -> dict[str, Any]:
    return dict(store.state("q").scan())


def pass_the_history(store: Store) -> None:
    """Wait until everything committed is older than the history, which is none."""
    before = time_of(store)
    wait_until(lambda: time_of(store) > before, "the clock stands still")


def time_of(store: Store) -> int:
    with store.database.read() as work:
        return work.now()


def merge_state(store: Store) -> None:
    pass_the_history(store)
    compact(store.database, "q/@state", wanted=Candidates(least=2))


def test_deleted_keys_stay_deleted_when_they_were_all_of_a_unit(remembering: Store) -> None:
    keys = [f"k{i}" for i in range(40)]
    gone = [key for key in keys if bucket(key.encode(), 8) < 4]
    for _ in range(2):
        add(remembering, dict.fromkeys(keys, "1"), in_a_file=True)
    add(remembering, dict.fromkeys(gone, None))
    merge_state(remembering)
    assert state_of(remembering) == dict.fromkeys(set(keys) - set(gone), "1")


def test_what_was_deleted_is_not_stored_for_ever(remembering: Store) -> None:
    keys = [f"k{i}" for i in range(40)]
    for _ in range(2):
        add(remembering, dict.fromkeys(keys, "1"), in_a_file=True)
    add(remembering, dict.fromkeys(keys, None))
    merge_state(remembering)
    assert state_of(remembering) == {}
    found = compact(remembering.database, "q/@state", wanted=Candidates(least=2), dry_run=True)
    assert sum(unit.read for unit in found.units) <= 2


def test_a_first_load_of_another_queue_does_not_make_a_reading_too_old(remembering: Store) -> None:
    remembering.configure_queue("other", subscriptions=["a"])
    remembering.subscribe("other", "b")
    with remembering.first_load("other/b"):
        add(remembering, {"a": 1})
        add(remembering, {"a": 2})
        wait_until(lambda: trim(remembering.database, limit=100) == 1, "the former value is not deleted")
        assert state_of(remembering) == {"a": 2}
        assert remembering.mirror("q", {"a": 2}.items()).unchanged == 1


def test_deleted_keys_stay_deleted_when_the_buckets_change_during_trimming(
    remembering: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(remembering, {"a": 1, "b": 1})

    def later(*arguments: Any) -> Any:
        remembering.alter_queue("q", buckets=16, guard="seq")
        add(remembering, {"a": None})
        pass_the_history(remembering)
        return settled(*arguments)

    settled = trimming.settled_snapshot
    monkeypatch.setattr(trimming, "settled_snapshot", later)
    trim(remembering.database, limit=100)
    assert state_of(remembering) == {"b": 1}


def test_a_state_cannot_be_read_as_of_before_its_first_load(store: Store) -> None:
    store.configure_queue("q")
    add(store, {"old": 1})
    store.alter_queue("q", state=True)
    incomplete = add(store, {"new": 1})
    with store.first_load(store.state("q").id) as load:
        load.add("old", 1)
    complete = add(store, {"newer": 1})
    assert store.state("q").count(as_of=complete) == 3
    with pytest.raises(SnapshotTooOld, match="that of its first load"):
        store.state("q").count(as_of=incomplete)
    with pytest.raises(SnapshotTooOld, match="that of its first load"):
        store.state("q").rollback(to=incomplete)


@pytest.mark.parametrize("store_url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
def test_trimming_passes_over_rows_that_others_delete(remembering: Store) -> None:
    for value in (1, 2, 3):
        add(remembering, {"a": value})
    with ThreadPoolExecutor(1) as pool, remembering.database.begin() as work:
        number = remembering.queue("q/@state").number
        held = sa.select(entry.c.seq).where(entry.c.queue_number == number).order_by(entry.c.seq).limit(1)
        work.connection.execute(held.with_for_update())
        trimming_rows = pool.submit(lambda: trim(remembering.database, limit=100))
        wait_until(trimming_rows.done, "trimming waits for others")
    assert trimming_rows.result() <= 1
