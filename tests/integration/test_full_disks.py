"""Drains into sinks without room, on disk or in memory: they wait for it, as for a server that is away."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import redis
import sqlalchemy as sa
from tests.support.drains import after_chunks
from tests.support.elasticsearch import ElasticsearchServer
from tests.support.fixtures import OLDER, shared_or_skip
from tests.support.servers import RedisServer
from tests.support.shared import exclusive
from tests.support.waiting import wait_until

from export_queue import DrainReport, SinkSpec, SinkUnavailable, Store, drain
from export_queue.core.drain import DRAIN_RETRY

ENTRIES = 200
CHUNK = 20
QUEUE = f"full-{os.getpid()}"


@dataclass(frozen=True)
class Target:
    """A sink whose room a test takes and gives back.

    :param count: the records that are there.
    """

    sink: SinkSpec
    fill: Callable[[], object]
    make_room: Callable[[], object]
    count: Callable[[], int]


@pytest.fixture
def queue(sqlite_url: str) -> Iterator[Store]:
    """A store with a queue of one unit, drained in many chunks."""
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue(QUEUE, buckets=5, buckets_per_range=5)
        with store.transaction() as tx:
            for i in range(ENTRIES):
                tx.queue(QUEUE).add(f"k{i}", {"n": i})
        yield store


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("redis_disk", marks=pytest.mark.redis),
        pytest.param("redis_memory", marks=pytest.mark.redis),
        pytest.param("elasticsearch", marks=[pytest.mark.elasticsearch, pytest.mark.timeout(240)]),
    ]
)
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def sqlite(small_disk: Path) -> Iterator[Target]:
    url = f"sqlite:///{small_disk}/copies.db"
    engine = sa.create_engine(url)
    ballast = small_disk / "ballast"

    def fill() -> None:
        found = os.statvfs(small_disk)
        ballast.write_bytes(b"x" * found.f_bavail * found.f_bsize)

    def count() -> int:
        with engine.connect() as connection:
            return int(connection.exec_driver_sql("SELECT count(*) FROM copies_live").scalar_one())

    yield Target(SinkSpec("sql", {"url": url, "table": "copies"}), fill, ballast.unlink, count)
    engine.dispose()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """A server of the test's own, which it may spoil."""
    try:
        own = RedisServer({"enable-protected-configs": "yes"})
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with own:
        monkeypatch.setenv("XQ_TEST_REDIS", own.password)
        yield own


def described(server: RedisServer) -> SinkSpec:
    return SinkSpec("redis", {"host": server.host, "port": server.port}, {"password": "env:XQ_TEST_REDIS"})


@pytest.fixture
def redis_memory(cache: RedisServer) -> Iterator[Target]:
    with redis.Redis(host=cache.host, port=cache.port, password=cache.password) as client:
        yield Target(
            described(cache),
            lambda: client.config_set("maxmemory", "1"),
            lambda: client.config_set("maxmemory", "0"),
            lambda: len(client.keys(f"{QUEUE}:*")),
        )


@pytest.fixture
def redis_disk(cache: RedisServer) -> Iterator[Target]:
    folder = cache.folder / "snapshots"

    def save(status: str) -> None:
        client.bgsave()
        wait_until(
            lambda: (
                not (found := client.info("persistence"))["rdb_bgsave_in_progress"]
                and found["rdb_last_bgsave_status"] == status
            ),
            f"a snapshot does not end: {status}",
        )

    def fill() -> None:
        folder.mkdir()
        client.config_set("dir", str(folder))
        client.config_set("save", "3600 1")
        shutil.rmtree(folder)
        save("err")

    def make_room() -> None:
        folder.mkdir()
        client.config_set("dir", str(folder))
        save("ok")

    with redis.Redis(host=cache.host, port=cache.port, password=cache.password) as client:
        yield Target(described(cache), fill, make_room, lambda: len(client.keys(f"{QUEUE}:*")))


@pytest.fixture
def elasticsearch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """The flood stage of a disk puts this very block on all indices of a node, those of control records too."""
    server = shared_or_skip(ElasticsearchServer, OLDER)
    monkeypatch.setenv("XQ_TEST_ELASTICSEARCH", server.password)

    def block(*, is_on: bool) -> None:
        for name in ("xq_control", QUEUE):
            if server.request("HEAD", f"/{name}")[0] == 200:
                settings = {"index.blocks.read_only_allow_delete": True if is_on else None}
                assert server.request("PUT", f"/{name}/_settings", settings)[0] == 200

    def count() -> int:
        server.request("POST", f"/{QUEUE}/_refresh")
        return int(server.request("GET", f"/{QUEUE}/_count")[1]["count"])

    options = {"hosts": server.url, "username": server.user}
    spec = SinkSpec("elasticsearch", options, {"password": "env:XQ_TEST_ELASTICSEARCH"})
    with exclusive(f"elasticsearch-{OLDER}"):
        yield Target(spec, lambda: block(is_on=True), lambda: block(is_on=False), count)
        block(is_on=False)
        for path in (f"{QUEUE}-000001", f"xq_control/_doc/{QUEUE}", "xq_control/_doc/%2A"):
            server.request("DELETE", f"/{path}")


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog(QUEUE))


def test_a_drain_that_meets_a_full_target_waits_for_room_and_goes_on(queue: Store, target: Target) -> None:
    pauses = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            target.make_room()

    report = drain(
        queue,
        QUEUE,
        target.sink,
        chunk_rows=CHUNK,
        retry=replace(DRAIN_RETRY, sleep=sleep),
        on_progress=after_chunks(2, target.fill),
    )
    report.check()
    assert len(pauses) == 2
    assert (report.read, report.acknowledged, report.dead, report.left) == (ENTRIES, ENTRIES, 0, 0)
    assert (waiting(queue), target.count()) == (0, ENTRIES)


def test_a_drain_whose_patience_ends_at_a_full_target_leaves_the_rest_to_the_next(queue: Store, target: Target) -> None:
    retry = replace(DRAIN_RETRY, attempts=2, sleep=lambda seconds: None)
    with pytest.raises(SinkUnavailable) as caught:
        drain(queue, QUEUE, target.sink, chunk_rows=CHUNK, retry=retry, on_progress=after_chunks(2, target.fill))
    assert caught.value.transient
    assert "entries wait in the queue" in caught.value.hint
    (found,) = queue.reports()
    report = DrainReport.from_dict(found)
    report.check()
    assert report.problem is not None
    assert report.problem.transient
    assert 0 < report.acknowledged < ENTRIES
    assert (report.dead, waiting(queue)) == (0, ENTRIES - report.acknowledged)
    with pytest.raises(SinkUnavailable):  # before it claims anything
        drain(queue, QUEUE, target.sink, retry=retry)
    target.make_room()
    assert drain(queue, QUEUE, target.sink).acknowledged == ENTRIES - report.acknowledged
    assert (waiting(queue), target.count()) == (0, ENTRIES)
