"""Sweeps of SQL sinks: the floor is part of each batch's transaction, and pages of keys of every kind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
from sqlalchemy import make_url
from tests.support.sql_targets import admit, execute, puts

from export_queue import Operations, SinkRefused, SqlSink
from export_queue.core.sinks.sql import sweep
from export_queue.core.sinks.sql.dialects.generic import GenericDialect

WAYS = ["sqlite", "postgresql", "mariadb", "generic-sqlite", "generic-postgresql"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(way: str, request: pytest.FixtureRequest, tmp_path) -> str:
    if way.endswith("sqlite"):
        return f"sqlite:///{tmp_path}/sink.db"
    return request.getfixturevalue("mariadb_url" if way == "mariadb" else "postgres_url")


@pytest.fixture
def make(way: str) -> Iterator[Any]:
    opened: list[SqlSink] = []

    def make_sink(url: str, **options: Any) -> SqlSink:
        if way.startswith("generic"):
            with mock.patch("export_queue.core.sinks.sql.sink.open_dialect", open_generic):
                opened.append(SqlSink(url, **options))
        else:
            opened.append(SqlSink(url, **options))
        return opened[-1]

    yield make_sink
    for sink in opened:
        sink.close()


def open_generic(url: str, password: Any, timeout: float) -> GenericDialect:
    found = make_url(url)
    return GenericDialect(found, password=password or found.password, timeout=timeout)


def ranks(url: str, table: str = "orders") -> list[Any]:
    return execute(url, f"SELECT id, _rank FROM {table} WHERE id <> 'xq_mark' ORDER BY id")


@pytest.mark.parametrize("step", ["upsert", pytest.param("held", marks=pytest.mark.full("a sweep a step later"))])
def test_a_batch_that_has_read_the_floor_ends_before_it_rises(url, make, monkeypatch, step):
    """A late put has passed the floor and is about to be written, or was, when a sweep takes the newer tombstone."""
    sink, sweeper = admit(make(url)), admit(make(url))
    sink.apply(puts(b"1", seq=20, document=None))
    run_step = getattr(sink._database.dialect, step)
    swept: list[int] = []
    sweep = threading.Thread(target=lambda: swept.append(sweeper.sweep(store_id="s", floor=25)))
    begun = threading.Event()

    def slowly(*arguments: Any) -> int:
        if not begun.is_set():
            begun.set()
            sweep.start()
            sweep.join(1)  # it ends before us only where nothing holds the floor for us
        return run_step(*arguments)

    monkeypatch.setattr(sink._database.dialect, step, slowly)
    result = sink.apply(puts(b"1", seq=15))
    sweep.join(60)
    assert (result.written, result.stale, swept) == (0, 1, [1])
    assert ranks(url) == []


def test_a_tombstone_that_is_put_again_as_it_is_swept_stays(url, make, monkeypatch):
    sink = admit(make(url))
    sink.apply(puts(b"1", b"2", seq=20, document=None))
    delete = sweep.sa.delete

    def put_first(table: Any) -> Any:
        sink.apply(puts(b"1", seq=30))
        return delete(table)

    monkeypatch.setattr(sweep.sa, "delete", put_first)
    with ThreadPoolExecutor(1) as pool:
        if url.startswith("sqlite"):
            # nobody writes in the middle of a transaction there
            monkeypatch.setattr(sweep.sa, "delete", delete)
            put_first(sweep.sa.table("orders"))
        assert pool.submit(sink.sweep, store_id="s", floor=25).result(60) == 1
    assert ranks(url) == [("1", 61)]


@pytest.mark.parametrize("rows", [1, 6, 7, 8, 40])
def test_all_pages_are_swept_and_only_once(url, make, monkeypatch, rows):
    monkeypatch.setattr(sweep, "PAGE", 7)
    sink = admit(make(url))
    ids = [b"%03d" % n for n in range(rows)]
    sink.apply(puts(*ids, seq=20, document=None))
    sink.apply(puts(*ids[::3], seq=21))
    sink.apply(puts(*ids[1::3], seq=30, document=None))
    assert sink.sweep(store_id="s", floor=25) == len(ids[2::3])
    assert sink.sweep(store_id="s", floor=30) == len(ids[1::3])
    assert [row[0].encode() for row in ranks(url)] == ids[::3]


KEY = {"day": "date", "customer": "text", "number": "integer", "token": "uuid"}


def test_keys_of_several_columns_are_paged(way, url, make, monkeypatch):
    monkeypatch.setattr(sweep, "PAGE", 4)
    sink = admit(make(url, table="bills", key=KEY))
    token = "0b6c1f6e-5f5c-4a62-9f0e-00000000000%d"
    ids = [
        f'["2026-11-{day:02}","{customer}",{number},"{token % number}"]'.encode()
        for day in (1, 2, 3)
        for customer in ("a", "A", "é")
        for number in (-1, 2, 3)
        if number > 0 or day < 3
    ]
    ids = [one.replace(b"00000000000-1", b"000000000001") for one in ids]
    sink.apply(puts(*ids, seq=20, document=None, collection="bills"))
    kept = puts(*ids[::2], seq=30, collection="bills")
    assert sink.apply(kept).written == len(ids[::2])
    assert sink.sweep(store_id="s", floor=25) == len(ids[1::2])
    assert len(execute(url, "SELECT _rank FROM bills WHERE _rank = 61")) == len(ids[::2])


def test_only_tables_of_the_template_and_of_the_sinks_shape_are_swept(url, make):
    sink, other = admit(make(url, table="a_$collection")), admit(make(url, table="b_$collection"))
    execute(url, "CREATE TABLE a_foreign (id integer, _deleted boolean)", "INSERT INTO a_foreign VALUES (1, true)")
    for one in (sink, other):
        one.apply(puts(b"1", seq=20, document=None))
    assert sink.sweep(store_id="s", floor=25) == 1
    assert (len(ranks(url, "a_orders")), len(ranks(url, "b_orders"))) == (0, 1)
    assert other.apply(puts(b"2", seq=25)).stale == 1, "the floor is one for all that shares the control table"
    assert other.sweep(store_id="s", floor=0) == 1, "and is not lowered"
    assert len(execute(url, "SELECT id FROM a_foreign")) == 1


def test_a_row_that_was_there_before_the_sink_stays_and_is_newer_than_what_is_stale(url, make):
    sink = admit(make(url))
    sink.create("orders")
    execute(url, "INSERT INTO orders (id, document, _rank) VALUES ('1', 'theirs', -1)")
    assert sink.sweep(store_id="s", floor=25) == 0
    assert sink.apply(puts(b"1", seq=25)).stale == 1
    assert sink.apply(puts(b"1", seq=26)).written == 1


@pytest.mark.parametrize("way", ["postgresql"], indirect=True)
def test_a_sweep_needs_the_right_to_delete(postgres_server, url, make):
    sink = admit(make(url))
    sink.apply(puts(b"1", seq=20, document=None))
    execute(
        url,
        "CREATE ROLE sweeper LOGIN PASSWORD 'x'",
        "GRANT SELECT, INSERT, UPDATE ON orders, xq_control, xq_floor, xq_target TO sweeper",
    )
    try:
        theirs = make_url(url).set(username="sweeper", password="x").render_as_string(hide_password=False)
        lesser = make(theirs, create_tables=False)
        with pytest.raises(SinkRefused, match="permission denied"):
            lesser.sweep(store_id="s", floor=25)
        assert sink.apply(puts(b"2", seq=25)).stale == 1, "the floor has been raised: the next sweep goes on"
        execute(url, "GRANT DELETE ON orders TO sweeper")
        assert lesser.sweep(store_id="s", floor=25) == 1
    finally:
        execute(url, "DROP OWNED BY sweeper", "DROP ROLE sweeper")


@pytest.mark.parametrize("way", ["postgresql", "mariadb"], indirect=True)
def test_batches_without_end_do_not_keep_the_floor_from_rising(url, make):
    sinks = [admit(make(url)) for _ in range(4)]
    stop = threading.Event()

    def deliver(n: int) -> None:
        seq = 100
        while not stop.is_set():
            seq += 1
            batch = [b"%d-%d" % (n, i) for i in range(500)]
            sinks[n].apply(Operations(["orders"] * 500, batch, [b"x"] * 500, [seq] * 500, range(500)))

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(deliver, n) for n in range(3)]
        try:
            for floor in range(1, 9):
                assert sinks[3].sweep(store_id="s", floor=floor) == 0
        finally:
            stop.set()
        for one in running:
            one.result(60)
