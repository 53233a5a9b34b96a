"""Clean-up happens by itself: a bounded part of it after a drain, at most every ten minutes."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from export_queue import MemorySink, Store, drain, follow
from export_queue.core.maintenance import after_drains
from export_queue.core.store import schema

MINUTE = 60_000


class Clock:
    """The store's clock, which tests set forward."""

    ahead = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/store.db", clock=clock) as store:
        store.create()
        store.configure_queue("q")
        yield store


def marks(store: Store) -> int:
    with store.database.connect() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(schema.low_watermark)).scalar_one())


def versions(store: Store) -> int:
    with store.database.connect() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(schema.cell)).scalar_one())


def held(sink: MemorySink) -> list[bytes]:
    return list(sink.records().values())


def write_and_drain(store: Store, sink: MemorySink, number: int) -> None:
    with store.transaction() as tx:
        tx.table("t").set("row", "n", b"%d" % number)
        tx.queue("q").add("key", number)
    drain(store, "q", sink)


def test_a_program_that_only_writes_and_drains_keeps_no_old_versions(store: Store, clock: Clock) -> None:
    sink, most = MemorySink(), 0
    for number in range(24):
        clock.ahead += 15 * MINUTE
        write_and_drain(store, sink, number)
        most = max(most, versions(store))
    assert most < 15, "six hours of versions are kept for little more than one hour"
    assert held(sink) == [b"23"]


def test_drains_soon_after_another_clean_up_do_nothing(store: Store, clock: Clock, monkeypatch: Any) -> None:
    sink = MemorySink()
    write_and_drain(store, sink, 0)
    assert marks(store) == 1, "the first one notes its time"
    clock.ahead += 9 * MINUTE
    monkeypatch.setattr(after_drains, "maintain", lambda *_, **__: pytest.fail("not due"))
    write_and_drain(store, sink, 1)
    assert marks(store) == 1
    monkeypatch.undo()
    clock.ahead += 2 * MINUTE
    write_and_drain(store, sink, 2)
    assert marks(store) == 2


def test_followers_clean_up_too(store: Store, clock: Clock) -> None:
    sink = MemorySink()
    write_and_drain(store, sink, 0)
    clock.ahead += 11 * MINUTE
    with store.transaction() as tx:
        tx.queue("q").add("key", 1)
    looks = itertools.count()
    follow(store, "q", sink, stop=lambda: held(sink) == [b"1"] and next(looks) > 3)
    assert marks(store) == 2


def test_a_drain_succeeds_although_the_clean_up_fails(
    store: Store, clock: Clock, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sink = MemorySink()
    write_and_drain(store, sink, 0)
    clock.ahead += 11 * MINUTE

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(after_drains, "maintain", broken)
    with caplog.at_level(logging.WARNING):
        write_and_drain(store, sink, 1)
    assert "no space" in caplog.text
    assert held(sink) == [b"1"]


def test_it_ends_after_some_seconds_even_if_more_is_left(store: Store, monkeypatch: Any) -> None:
    calls = []

    class More:
        more, busy = True, False

        def line(self) -> str:
            return "more"

    monkeypatch.setattr(after_drains, "maintain", lambda *_, **options: calls.append(options) or More())
    monkeypatch.setattr(after_drains, "_is_due", lambda _: True)
    seconds = itertools.count(0, 2)
    after_drains.maintain_if_due(store.database, clock=lambda: float(next(seconds)))
    assert [call["limit"] for call in calls] == [10_000] * 3


def test_records_that_a_user_may_want_to_keep_longer_are_kept(store: Store, clock: Clock) -> None:
    store.configure_queue("other")
    with store.transaction(idempotency_key="nightly") as tx:
        tx.queue("other").add("key", 1)
    sink = MemorySink()
    for number in range(3):
        clock.ahead += 100 * 24 * 60 * MINUTE
        write_and_drain(store, sink, number)
        clock.ahead += 11 * MINUTE
        write_and_drain(store, sink, number)
    assert store.idempotency("nightly").committed
    store.maintain()
    assert not store.idempotency("nightly").committed


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_on_postgresql_too(store_url: str) -> None:
    with Store.open(store_url) as store:
        store.create()
        store.configure_queue("q")
        sink = MemorySink()
        write_and_drain(store, sink, 0)
        assert marks(store) == 1
        with store.database.begin() as work:
            work.connection.execute(
                schema.low_watermark.update().values(at_ms=schema.low_watermark.c.at_ms - 11 * MINUTE)
            )
        write_and_drain(store, sink, 1)
        assert marks(store) == 2
