"""Falling back beside clean-up: the inputs of a merged file count again all together, or not at all (I6, I12)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support import bulk
from tests.support.waiting import PATIENCE, wait_until

from export_queue import Candidates, ExportQueueError, InvalidArgument, LeaseLost, MemorySink, Range, Store, drain
from export_queue.core.locks import standing_locks
from export_queue.core.segments import (
    UnitReader,
    compact,
    falling_back,
    list_segments,
    vacuum_segments,
    waiting_segments,
)
from export_queue.core.store import queries, schema
from export_queue.core.transactions import take_snapshot

fork = multiprocessing.get_context("fork")
FEW = Candidates(least=2)


class Lost:
    """A queue whose merged file is out of reach.

    :param store: a store without queues.
    :param folder: for the files.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.sink = store, MemorySink()
        store.database.segments = str(folder / "segments")
        store.configure_queue("orders", buckets=20, buckets_per_range=5, value="bytes")
        for number in range(3):
            bulk.load(store, bulk.many(60, b"%d" % number))
        compact(store.database, "orders", wanted=FEW)
        (self.file,) = (folder / "segments").rglob("compaction-*.parquet")
        self.aside = folder / "aside"

    def fall_back(self) -> Any:
        """Fall back, as the user does."""
        return self.store.dead_letters.fall_back("orders", str(self.file))

    def lose(self) -> None:
        """Take the file away."""
        self.file.rename(self.aside)

    def find(self) -> None:
        """Bring the file back."""
        self.aside.rename(self.file)

    def drain_a_part(self) -> None:
        """Drain some chunks, then fail."""
        sink, left = self.sink, iter(range(5))
        apply = sink.apply

        def fail(operations: Any) -> Any:
            if next(left, None) is None:
                raise ExportQueueError("enough")
            return apply(operations)

        sink.apply = fail  # type: ignore[method-assign]
        with pytest.raises(ExportQueueError, match="enough"):
            drain(self.store, "orders", sink, sink_name="sink", chunk_rows=7)
        sink.apply = apply  # type: ignore[method-assign]

    def waits(self) -> list[tuple[bytes, int]]:
        """Read keys and sequences of all that waits."""
        queue, within, seen = self.store.queue("orders"), Range(0, 20), take_snapshot(self.store.database)
        found: list[tuple[bytes, int]] = []
        with self.store.database.read() as work:
            segments = waiting_segments(work, queue, seen, within)
            reader = UnitReader(queue, seen, within, segments, rows=1000, size=1 << 20)
            while chunk := reader.read(work).entries:
                found += zip(chunk.keys, chunk.seqs, strict=True)
        reader.close()
        return found


@pytest.fixture
def lost(store: Store, tmp_path: Path) -> Lost:
    """The queue, its file still there."""
    return Lost(store, tmp_path)


def test_inputs_that_are_vacuumed_while_they_are_looked_at_are_not_fallen_back_on(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, look = lost.waits(), falling_back._hidden_by

    def vacuumed_behind(*given: Any) -> Any:
        found = look(*given)
        vacuum_segments(lost.store.database, hidden_seconds=-1)
        return found

    monkeypatch.setattr(falling_back, "_hidden_by", vacuumed_behind)
    lost.lose()
    with pytest.raises(InvalidArgument, match="have been vacuumed"):
        lost.fall_back()
    lost.find()
    assert lost.waits() == before


def test_inputs_of_which_an_older_client_has_vacuumed_some_are_not_fallen_back_on(lost: Lost) -> None:
    """A vacuum of schema 4 deletes what nobody reads, and has never heard of what is hidden."""
    before, g = lost.waits(), schema.segment
    first = sa.select(sa.func.min(g.c.transaction_id)).scalar_subquery()
    with lost.store.database.begin() as work:
        work.connection.execute(g.delete().where(g.c.transaction_id == first))
    lost.lose()
    with pytest.raises(InvalidArgument, match="have been vacuumed"):
        lost.fall_back()
    lost.find()
    assert lost.waits() == before


def test_what_a_segment_hides_stays_hidden_though_it_is_drained_in_the_middle_of_a_vacuum(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, database, queue = queries.vacuum.ended_loads, lost.store.database, lost.store.queue("orders")
    sink = MemorySink()

    def drained_before(*given: Any, **named: Any) -> Any:
        drain(lost.store, "orders", sink, sink_name="sink")
        return look(*given, **named)

    def states() -> dict[str, int]:
        with database.read() as work:
            return dict(Counter(one.state for one in list_segments(work, queue)))

    with monkeypatch.context() as patched:
        patched.setattr(queries.vacuum, "ended_loads", drained_before)
        vacuum_segments(database, grace_seconds=0)
    assert states() == {"retired": 4, "hidden": 12}
    vacuum_segments(database, grace_seconds=0)
    assert states() == {}
    assert not lost.file.exists()


@pytest.mark.parametrize("first", ["fall-back", "vacuum"])
def test_of_a_fall_back_and_a_vacuum_at_once_one_waits_for_the_other(
    lost: Lost, store_kind: str, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    if store_kind == "sqlite":
        pytest.skip("a file has one writer")
    lost.drain_a_part()
    before = lost.waits()
    lost.lose()
    errors: list[Exception] = []
    threads: list[threading.Thread] = []

    def guarded(act: Callable[[], Any]) -> None:
        try:
            act()
        except InvalidArgument as error:
            errors.append(error)

    def is_blocked() -> bool:
        with lost.store.database.read() as work:
            return bool(work.connection.scalar(sa.text("select exists (select from pg_locks where not granted)")))

    def then(step: Callable[..., Any], other: Callable[[], Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            found = step(*given, **named)
            if not threads:
                threads.append(threading.Thread(target=guarded, args=(other,)))
                threads[0].start()
                wait_until(is_blocked, "the other one did not wait")
            return found

        return call

    def vacuum() -> Any:
        return vacuum_segments(lost.store.database, hidden_seconds=-1)

    if first == "vacuum":
        forget = queries.vacuum.forget_hidden
        monkeypatch.setattr(queries.vacuum, "forget_hidden", then(forget, lost.fall_back))
        guarded(vacuum)
    else:
        restore = queries.compactions.restore
        monkeypatch.setattr(queries.compactions, "restore", then(restore, vacuum))
        guarded(lost.fall_back)
    threads[0].join(PATIENCE)
    assert len(errors) == (first == "vacuum")
    if errors:
        lost.find()
    assert lost.waits() == before


def leases(store: Store) -> list[tuple[int, bool]]:
    """Read how many milliseconds are left of each lease, and whether it was revoked."""
    with store.database.read() as work:
        now = work.now()
        rows = work.connection.execute(sa.select(schema.lock.c.lease_ms, schema.lock.c.revoked)).all()
    return [(lease - now, revoked) for lease, revoked in rows]


def test_a_killed_fall_back_keeps_no_drain_waiting(lost: Lost, open_store: Callable[[], Store]) -> None:
    """A drain that may wait no longer revokes its locks; another one waits for the rest of a short lease."""
    lost.drain_a_part()
    left = lost.waits()

    def work() -> None:
        falling_back.read_sizes = lambda given: os.kill(os.getpid(), signal.SIGKILL)
        with open_store() as mine:
            mine.dead_letters.fall_back("orders", str(lost.file))

    process = fork.Process(target=work)
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    assert all(0 < left_ms <= 30_000 and not revoked for left_ms, revoked in leases(lost.store))
    with lost.store.database.read() as work:
        assert len(standing_locks(work, lost.store.queue("orders"))) == 4
    skipped = drain(lost.store, "orders", lost.sink, sink_name="sink", if_locked="skip")
    assert skipped.acknowledged == 0
    report = drain(lost.store, "orders", lost.sink, sink_name="sink", lock_timeout=0.0)
    assert (report.acknowledged, report.left) == (len(left), 0)


def test_a_fall_back_whose_locks_a_drain_has_revoked_changes_nothing(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost.drain_a_part()
    left, drained = lost.waits(), list[int]()
    read_sizes = falling_back.read_sizes

    def meanwhile(*given: Any) -> Any:
        if not drained:
            drained.append(drain(lost.store, "orders", lost.sink, sink_name="sink", lock_timeout=0.0).acknowledged)
        return read_sizes(*given)

    monkeypatch.setattr(falling_back, "read_sizes", meanwhile)
    with pytest.raises(LeaseLost):
        lost.fall_back()
    assert drained == [len(left)]
    assert lost.waits() == []


def test_a_fall_back_keeps_its_locks_for_as_long_as_it_works(lost: Lost, monkeypatch: pytest.MonkeyPatch) -> None:
    lost.drain_a_part()
    left = lost.waits()
    monkeypatch.setattr(falling_back, "LEASE_SECONDS", 1.5)
    read_sizes, waited = falling_back.read_sizes, list[None]()

    def meanwhile(*given: Any) -> Any:
        if not waited:
            waited.append(None)
            with lost.store.database.read() as work:
                end = work.connection.scalar(sa.select(sa.func.max(schema.lock.c.lease_ms)))

            def has_passed() -> bool:
                with lost.store.database.read() as work:
                    return work.now() > end

            wait_until(has_passed, "the first lease does not end")
        return read_sizes(*given)

    monkeypatch.setattr(falling_back, "read_sizes", meanwhile)
    lost.lose()
    assert lost.fall_back().given_up == 0
    assert lost.waits() == left
    assert leases(lost.store) == []
