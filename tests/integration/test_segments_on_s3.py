"""Entries in files of an object store, by a server that checks signatures and rights (I3, I6, I12)."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from tests.support import bulk
from tests.support.bulk import many
from tests.support.proxy import Cut, CuttingProxy
from tests.support.s3 import CLEANER, READER, REGION, WRITER, Keys, S3Server

from export_queue import (
    ApplyResult,
    ExportQueueError,
    MemorySink,
    Operations,
    Retry,
    SegmentLost,
    SegmentRefused,
    SegmentUnavailable,
    Store,
    drain,
)
from export_queue.core.segments import begin_load, stage_segments, vacuum_segments, write_segments
from export_queue.core.segments import writing as segment_writing
from export_queue.core.store import schema

fork = multiprocessing.get_context("fork")
Use = Callable[[Keys], None]


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """What kind of store names the files is all the same."""
    return sqlite_url


@pytest.fixture
def orders(store: Store, s3_server: S3Server, s3_bucket: str) -> Store:
    """A store with a queue of four units, whose files are in the bucket."""
    store.database.segments = s3_server.place(s3_bucket)
    store.configure_queue("orders", buckets=20, buckets_per_range=5, value="bytes")
    return store


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Let this process have other keys."""

    def change(keys: Keys) -> None:
        for name, value in keys.variables.items():
            monkeypatch.setenv(name, value)

    return change


def drained(store: Store, **options: Any) -> dict[str, Any]:
    sink = MemorySink(f"{store.id} {options.pop('name', 'sink')}")
    drain(store, "orders", sink, sink_name="sink", **options)
    return {key[1].decode(): value for key, value in sink.records().items()}


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def table(entries: dict[str, bytes | None]) -> pa.Table:
    return pa.table({"key": list(entries), "value": pa.array(list(entries.values()), pa.binary())})


def key_of(url: str) -> str:
    return urlsplit(url).path.lstrip("/")


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_bulk_entries_in_an_object_store_are_added_shown_drained_and_cleaned_up(
    orders: Store, s3_server: S3Server, s3_bucket: str, scheme: str
) -> None:
    orders.database.segments = s3_server.place(s3_bucket).replace("s3:", f"{scheme}:", 1)
    with orders.transaction(long=True) as tx:
        for part in range(3):
            tx.queue("orders").add_batch(table(many(50, start=50 * part)))
        assert waiting(orders) == 0
        number = tx.id
    files = orders.bulk_files()
    assert [one.startswith(f"s3://{s3_bucket}/queue/{orders.id}/{number}/") for one in files] == [True] * 3
    assert s3_server.objects(s3_bucket).keys() == {key_of(one) for one in files}
    assert len(orders.peek("orders", limit=100, values=True)) == 100
    assert orders.peek("orders", key="key-149", values=True)[0].value == b"bulk"
    assert drained(orders) == many(150)
    for _ in range(2):
        assert [one.file for one in vacuum_segments(orders.database).waiting] == sorted(files)
    with orders.database.begin() as work:  # an hour passes
        since = schema.unused_file.c.since_ms
        work.connection.execute(schema.unused_file.update().values(since_ms=since - 3_600_000))
    assert vacuum_segments(orders.database).files == 3
    vacuum_segments(orders.database, grace_seconds=0, zombie_seconds=0.0)
    assert set(s3_server.objects(s3_bucket)) <= {f"queue/{orders.id}/"}, "Arrow's mark of a folder, one a store"


def test_files_are_found_by_the_rows_of_the_store_alone(
    orders: Store, s3_server: S3Server, s3_bucket: str, use: Use, caplog: pytest.LogCaptureFixture
) -> None:
    use(s3_server.user(*WRITER))
    with orders.transaction(long=True) as tx:
        tx.queue("orders").add_batch(table(many(60)))
    use(s3_server.user(*READER))
    begun = len(s3_server.requests())
    assert len(orders.peek("orders", limit=60)) == 60
    assert drained(orders) == many(60)
    assert s3_server.requests()[begun:]
    assert not [line for line in s3_server.requests()[begun:] if "list-type" in line or " 4" in line]
    with caplog.at_level(logging.WARNING):
        assert vacuum_segments(orders.database, grace_seconds=0).files == 0
    assert "were not deleted" in caplog.text
    use(s3_server.user(*CLEANER))
    assert vacuum_segments(orders.database, grace_seconds=0).files == 1


def test_each_slice_of_a_file_is_opened_by_one_question(orders: Store, s3_server: S3Server) -> None:
    bulk.load(orders, many(60))
    begun = len(s3_server.requests())
    drained(orders)
    asked = [line for line in s3_server.requests()[begun:] if "HEAD" in line]
    assert len(asked) <= 4 * 2, "units, each measured and read"


def test_keys_and_the_server_come_from_the_environment_and_are_written_nowhere(
    orders: Store,
    s3_server: S3Server,
    s3_bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    orders.database.segments = f"s3://{s3_bucket}/queue?region={REGION}"
    with caplog.at_level(logging.DEBUG):
        bulk.load(orders, many(40))
        assert drained(orders) == many(40)
    orders.database.engine.dispose()
    path = str(orders.database.engine.url.database)
    written = b"".join(one.read_bytes() for one in Path(path).parent.iterdir() if one.name.startswith(Path(path).name))
    assert s3_bucket.encode() in written
    for secret in s3_server.owner.variables.values():
        assert secret.encode() not in written
        assert secret not in caplog.text


def test_keys_that_are_replaced_are_used_by_the_next_request(orders: Store, s3_server: S3Server, use: Use) -> None:
    bulk.load(orders, many(10))
    wrong = Keys(s3_server.owner.id, "0" * 40)
    use(wrong)
    with pytest.raises(SegmentRefused):
        drained(orders)
    use(s3_server.owner)
    assert drained(orders) == many(10)


@pytest.mark.parametrize("trouble", ["no such bucket", "no right to write", "wrong secret", "unknown key"])
def test_a_place_that_refuses_is_named_with_a_hint_and_is_not_tried_again(
    orders: Store, s3_server: S3Server, use: Use, trouble: str
) -> None:
    keys = {
        "no right to write": s3_server.user(*READER),
        "wrong secret": Keys(s3_server.owner.id, "wrong" * 8),
        "unknown key": Keys("AKIANOBODYHASTHISONE", "wrong" * 8),
    }.get(trouble, s3_server.owner)
    use(keys)
    if trouble == "no such bucket":
        orders.database.segments = s3_server.place("nobody-has-this")
    begun = len(s3_server.requests())
    with pytest.raises(SegmentRefused) as caught, orders.transaction(long=True) as tx:
        tx.queue("orders").add_batch(table(many(10)))
    assert str(orders.database.segments).partition("?")[0] in str(caught.value)
    assert caught.value.transient is False
    assert "the bucket exists" in str(caught.value)
    _without(keys, caught.value)
    assert len([line for line in s3_server.requests()[begun:] if "PUT" in line or "POST" in line]) == 1
    assert waiting(orders) == 0


def _without(keys: Keys, error: ExportQueueError) -> None:
    chain: BaseException | None = error
    while chain is not None:
        told = f"{chain} {chain!r} {getattr(chain, '__notes__', '')}"
        assert keys.secret not in told
        assert keys.id not in told
        chain = chain.__cause__


def test_a_drain_that_may_not_read_ends_at_once_and_loses_nothing(orders: Store, s3_server: S3Server, use: Use) -> None:
    bulk.load(orders, many(10))
    use(s3_server.user(*WRITER))
    with pytest.raises(SegmentRefused):
        drained(orders, retry=Retry(sleep=_no_pause))
    assert waiting(orders) == 10
    use(s3_server.owner)
    assert drained(orders) == many(10)


def _no_pause(seconds: float) -> None:
    raise AssertionError("an error that says the same again is not waited for")


def test_a_missing_object_is_lost_with_a_hint_and_one_that_comes_back_is_drained(
    orders: Store, s3_server: S3Server, s3_bucket: str
) -> None:
    _, (report,) = bulk.load(orders, many(10))
    key = key_of(report.file)
    content = s3_server.read(s3_bucket, key)
    s3_server.delete(s3_bucket, key)
    with pytest.raises(SegmentLost, match="found no file") as caught:
        drained(orders)
    assert "bring the file back" in str(caught.value)
    with pytest.raises(SegmentLost):
        orders.peek("orders")
    s3_server.write(s3_bucket, key, content[:-1])
    with pytest.raises(SegmentLost, match=f"expected {len(content)} bytes, found {len(content) - 1}"):
        drained(orders)
    s3_server.write(s3_bucket, key, content)
    assert drained(orders) == many(10)


MOMENTS = ["in the upload", "before staging", "after staging", "before the commit", "after the commit"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_process_that_dies_between_its_upload_and_its_commit_leaves_all_or_nothing(
    orders: Store, open_store: Callable[[], Store], s3_server: S3Server, s3_bucket: str, moment: str
) -> None:
    ours, theirs = fork.Pipe()

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        with open_store() as mine:
            mine.database.segments = orders.database.segments
            step = mine.database.dialect.steps.commit

            def commit(*given: Any, **options: Any) -> Any:
                if moment == "before the commit":
                    die()
                found = step(*given, **options)
                die()
                return found

            mine.database.dialect.steps.commit = commit  # type: ignore[method-assign]
            if moment == "in the upload":
                segment_writing._Files._end_file = die  # type: ignore[method-assign]
            with mine.transaction(long=True) as tx:
                theirs.send((tx.id, tx.request))
                reports = bulk.write(mine, tx.id, many(30))
                if moment == "before staging":
                    die()
                stage_segments(mine.database, tx.id, mine.queue("orders"), reports)
                if moment == "after staging":
                    die()

    process = fork.Process(target=work)
    process.start()
    number, request = ours.recv()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    found = len(s3_server.objects(s3_bucket))
    assert found == (0 if moment == "in the upload" else 1), "an upload that did not end is no object"
    if moment == "after the commit":
        assert orders.outcome(request).status == "committed"
        assert vacuum_segments(orders.database, grace_seconds=0).files == 0
        assert drained(orders) == many(30)
        assert vacuum_segments(orders.database, grace_seconds=0).files == 1
    else:
        assert waiting(orders) == 0
        assert (
            vacuum_segments(orders.database, grace_seconds=0).files == 0
        )  # it may still be at work, as far as anybody knows
        assert orders.outcome(request).status == "refused"
        connection: Any = orders.database.pool.check_out().driver_connection
        orders.database.dialect.steps.abort(connection, kind="long", transaction=number)
        assert vacuum_segments(orders.database, grace_seconds=0).files == found
        assert waiting(orders) == 0


class Gate:
    """What stands between clients and the server, and may go and come back."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._proxy: CuttingProxy | None = None
        self.port = 0
        self.open()

    def open(self) -> None:
        if self._proxy is None:
            self._proxy = CuttingProxy(self._server.host, self._server.port, at=self.port)
            self._proxy.__enter__()
            self.port = self._proxy.port

    def shut(self) -> None:
        if self._proxy is not None:
            self._proxy.hold()
            self._proxy.__exit__(None, None, None)
            self._proxy = None

    def cut(self, cut: Cut) -> None:
        assert self._proxy is not None
        self._proxy.arm(cut)


@pytest.fixture
def gate(s3_server: S3Server) -> Iterator[Gate]:
    found = Gate(s3_server)
    yield found
    found.shut()


def large(number: int) -> dict[str, bytes | None]:
    """Entries that no compression makes small, so that a file is read piece by piece."""
    draw = random.Random(7)
    return {f"key-{i}": draw.randbytes(4000) for i in range(number)}


class Stopping(MemorySink):
    """A sink beside which something happens once, behind its first batch."""

    def __init__(self, name: str, happen: Callable[[], None]) -> None:
        super().__init__(name)
        self._happen: Callable[[], None] | None = happen

    def apply(self, operations: Operations) -> ApplyResult:
        result = super().apply(operations)
        happen, self._happen = self._happen, None
        if happen is not None:
            happen()
        return result


@pytest.mark.full("Arrow asks a server that is gone for six seconds")
def test_a_drain_waits_for_an_object_store_that_goes_and_comes_back(
    orders: Store, s3_server: S3Server, s3_bucket: str, gate: Gate
) -> None:
    orders.database.segments = s3_server.place(s3_bucket, port=gate.port)
    entries = large(3000)
    bulk.load(orders, entries)
    pauses: list[float] = []

    def come_back(seconds: float) -> None:
        pauses.append(seconds)
        gate.open()

    sink = Stopping(f"{orders.id} gone", gate.shut)
    retry = Retry(attempts=9, sleep=come_back)
    report = drain(orders, "orders", sink, sink_name="sink", chunk_rows=200, retry=retry)
    assert pauses
    assert (report.read, report.acknowledged, report.dead, report.left) == (3000, 3000, 0, 0)
    assert {key[1].decode(): value for key, value in sink.records().items()} == entries
    assert waiting(orders) == 0


@pytest.mark.full("Arrow asks a server that is gone for six seconds")
def test_a_drain_that_waited_in_vain_is_transient_and_loses_nothing(
    orders: Store, s3_server: S3Server, s3_bucket: str, gate: Gate
) -> None:
    orders.database.segments = s3_server.place(s3_bucket, port=gate.port)
    bulk.load(orders, many(30))
    gate.shut()
    with pytest.raises(SegmentUnavailable) as caught:
        drained(orders, retry=Retry(attempts=1))
    assert caught.value.transient
    assert waiting(orders) == 30
    gate.open()
    assert drained(orders) == many(30)


@pytest.mark.full("Arrow asks a server that is gone for six seconds")
def test_an_error_of_the_writer_is_told_although_the_server_has_gone(
    orders: Store, s3_server: S3Server, s3_bucket: str, gate: Gate
) -> None:
    orders.database.segments = s3_server.place(s3_bucket, port=gate.port)

    def batches() -> Iterator[pa.RecordBatch]:
        yield bulk.batch(large(4000), 20)
        gate.shut()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), orders.transaction(long=True) as tx:
        write_segments(
            batches(),
            base=begin_load(orders.database, tx.id),
            store_id=orders.id,
            transaction=tx.id,
            name="broken",
            buckets_per_range=5,
        )
    gate.open()
    vacuum_segments(orders.database, grace_seconds=0)
    assert not [key for key in s3_server.objects(s3_bucket) if key.endswith(".parquet")]


@pytest.mark.full("Arrow asks a server that is gone for six seconds")
@pytest.mark.parametrize("after", [50_000, 6_000_000])
def test_an_upload_that_breaks_is_repeated_within_its_transaction(
    orders: Store, s3_server: S3Server, s3_bucket: str, gate: Gate, after: int
) -> None:
    """Once in the first request, once in the part of a large upload."""
    orders.database.segments = s3_server.place(s3_bucket, port=gate.port)
    entries = large(4000)
    with orders.transaction(long=True) as tx:
        queue = tx.queue("orders")
        gate.cut(Cut("to_server", after, "reset"))
        queue.add_batch(table(entries))
    assert drained(orders) == entries


@pytest.mark.full("Arrow asks a server that is gone for six seconds")
def test_an_upload_to_a_server_that_stays_away_is_transient_and_may_be_called_again(
    orders: Store, s3_server: S3Server, s3_bucket: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.database.segments = s3_server.place(s3_bucket, port=gate.port)
    step = segment_writing._Files._end_group

    def end_group(self: Any) -> None:
        step(self)
        gate.shut()

    entries = large(4000)
    with orders.transaction(long=True) as tx:
        with monkeypatch.context() as patched:
            patched.setattr(segment_writing._Files, "_end_group", end_group)
            with pytest.raises(SegmentUnavailable):
                tx.queue("orders").add_batch(table(entries))
        gate.open()
        tx.queue("orders").add_batch(table(entries))
    assert drained(orders) == entries
    assert vacuum_segments(orders.database, grace_seconds=0).files >= 1
    assert not [key for key in s3_server.objects(s3_bucket) if key.endswith(".parquet")]
