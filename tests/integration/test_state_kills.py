"""Mirrors and rollbacks that are killed at each of their steps leave the state before, or the one after (I16)."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.deaths import count_points, kill_at

from export_queue import MemorySink, Store, drain
from export_queue.core.maintenance import Patience, maintain
from export_queue.core.state import mirror
from export_queue.core.store import queries, schema

EVERY_WAY = True
KILLS = int(os.environ.get("EXPORT_QUEUE_STATE_KILLS", "0"))
"""How many steps of each operation a long run kills at; 1000 are all."""
OLD = {f"k{n}": "old" for n in range(20)}
DATA = {**{f"k{n}": "old" for n in range(10)}, "k10": "changed", "new": "new"}
FORMER = {f"k{n}": "former" for n in range(12)}


def begin_queue(store: Store, name: str) -> int:
    """Fill a queue by a transaction in files and one in rows; returns the id after which it had its former state."""
    store.configure_queue(name, buckets=4, buckets_per_range=2, state=True)
    with store.transaction(long=True) as tx:
        tx.queue(name).add_batch(pa.table({"key": list(FORMER), "value": list(FORMER.values())}))
    with store.database.read() as work:
        number = store.queue(name).number
        found = work.connection.execute(schema.segment.select().where(schema.segment.c.queue_number == number)).first()
    assert found is not None
    with store.transaction() as tx:
        for key, value in OLD.items():
            tx.queue(name).add(key, value)
    return int(found.transaction_id)


def mirrored(store: Store, name: str, former: int) -> None:
    report = store.mirror(name, list(DATA.items()), max_deletes=1.0, settle_timeout=0.0)
    assert report.new + report.unchanged + report.changed == len(DATA)


def rolled_back(store: Store, name: str, former: int) -> None:
    store.state(name).rollback(to=former, settle_timeout=0.0)


def end_all(store: Store) -> None:
    with store.database.begin() as work:
        queries.registrations.end_all(work)


def check_cleaned(store: Store, folder: Path) -> None:
    """No file without a row that refers to it, and nothing staged, once the dead transactions are ended."""
    end_all(store)
    for _ in range(2):
        maintain(store.database, patience=Patience(files=0.0))
    files = {str(path) for path in folder.rglob("*.parquet")}
    assert files <= set(store.bulk_files())
    with store.database.read() as work:
        assert work.connection.execute(schema.staged_entry.select()).all() == []


@pytest.mark.timeout(1800)  # some dozen processes, next to other work
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(2, id="some", marks=pytest.mark.brief),
        pytest.param(
            KILLS or 12, id="many", marks=pytest.mark.full("a minute: more of its steps, drawn anew in each run")
        ),
    ],
)
@pytest.mark.parametrize("in_files", [False, True], ids=["rows", "files"])
@pytest.mark.parametrize(("act", "after"), [(mirrored, DATA), (rolled_back, FORMER)], ids=["mirror", "rollback"])
def test_a_kill_at_any_step_leaves_the_state_before_or_after(
    store: Store,
    open_store: Callable[[], Store],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    act: Callable[[Store, str, int], None],
    after: dict[str, Any],
    *,
    in_files: bool,
    kills: int,
) -> None:
    if in_files:
        monkeypatch.setattr(mirror, "_FILES_FROM", 1)
    store.database.segments = str(tmp_path / "files")

    def act_on(name: str, former: int) -> Callable[[], None]:
        def work() -> None:
            with open_store() as mine:
                mine.database.segments = store.database.segments
                act(mine, name, former)

        return work

    points = count_points(act_on("counted", begin_queue(store, "counted")))
    assert dict(store.state("counted").scan()) == after
    assert points > 10
    if store.database.dialect.name != "sqlite":
        kills = min(kills, KILLS or 4)  # the same steps; each takes longer there
    seed = int(os.environ.get("EXPORT_QUEUE_SEED") or random.randrange(1 << 32))
    print(f"EXPORT_QUEUE_SEED={seed}")
    for point in random.Random(seed).sample(range(points), min(kills, points)):
        name = f"q{point}"
        former = begin_queue(store, name)
        kill_at(point, act_on(name, former))
        found = dict(store.state(name).scan())
        assert found in (OLD, after), f"killed at point {point}"
        act(store, name, former)  # which waits for nobody
        assert dict(store.state(name).scan()) == after, f"killed at point {point}"
        sink = MemorySink()
        assert drain(store, name, sink, sink_name="memory").left == 0
        assert {key.decode(): json.loads(value) for (_, key), value in sink.records().items()} == after
        check_cleaned(store, tmp_path / "files")
