"""Files of entries that are damaged or exchanged: one terminal error that names the file, never fewer entries (I15)."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
import pytest
from tests.support import bulk
from tests.support.s3 import S3Server

from export_queue import Candidates, MemorySink, Range, SegmentLost, Store, drain
from export_queue.core.segments import Segment, row_groups, waiting_segments, writing
from export_queue.core.segments.reading import Row, SegmentReader, read_slices
from export_queue.core.transactions import take_snapshot

DAMAGES = int(os.environ.get("EXPORT_QUEUE_DAMAGES", "400"))
"""Random damages of each run; a long run by hand has 100 000."""
TWO_INPUTS = Candidates(least=2)


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """The kind of store makes no difference to what is in the files."""
    return sqlite_url


@pytest.fixture
def orders(store: Store, tmp_path: Path) -> Store:
    """A store with a queue of four units, whose files are in a folder of the test's."""
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=20, buckets_per_range=5, value="bytes")
    return store


def entries(number: int, prefix: str = "key") -> dict[str, bytes | None]:
    return {f"{prefix}-{i:03}": b"value %d" % i for i in range(number)}


def segments_of(store: Store) -> list[Segment]:
    queue = store.queue("orders")
    with store.database.read() as work:
        return waiting_segments(work, queue, take_snapshot(store.database), Range(0, queue.buckets))


def read(segment: Segment) -> list[Row]:
    """Read a segment as a drain does."""
    reader = SegmentReader(segment, first=segment.first, end=segment.end)
    found: list[Row] = []
    while not reader.is_read:
        reader.fill()
        found += reader.take(None)
    return found


def slices(segment: Segment) -> list[Row]:
    """Read a segment as a compaction does."""
    (table,) = read_slices([segment])
    return list(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))


def measure(segment: Segment) -> Any:
    """Read the statistics of a segment as a drain does that shares it out."""
    return row_groups([segment])


WAYS: list[Callable[[Segment], Any]] = [read, slices, measure]


class Damaged:
    """A file with segments of four units, what each way of reading gives, and what became of damages."""

    def __init__(self, store: Store) -> None:
        _, (report,) = bulk.load(store, entries(24))
        self.path = Path(report.file)
        self.whole = self.path.read_bytes()
        self.segments = segments_of(store)
        self.expected = [[way(segment) for way in WAYS] for segment in self.segments]

    def check_whole(self, content: bytes) -> None:
        """Read all segments of damaged content at once: the file is lost."""
        self.path.write_bytes(content)
        with pytest.raises(SegmentLost) as raised:
            read_slices(self.segments)
        assert str(self.path) in str(raised.value)

    def check(self, content: bytes) -> None:
        """Read damaged content in each way: the result is the original one, or the file is lost; at least once."""
        self.path.write_bytes(content)
        lost = 0
        for segment, expected in zip(self.segments, self.expected, strict=True):
            for way, right in zip(WAYS, expected, strict=True):
                try:
                    found = way(segment)
                except SegmentLost as error:
                    lost += str(self.path) in str(error)
                else:
                    assert found == right
        assert lost


@pytest.fixture
def damaged(orders: Store) -> Damaged:
    return Damaged(orders)


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_flipped_bit_anywhere_is_found(damaged: Damaged) -> None:
    bits = random.Random(1).sample(range(8 * len(damaged.whole)), 200)
    for bit in bits:
        damaged.check(flipped(damaged.whole, bit))


@pytest.mark.full("about 15 seconds of processor time: each of about 30 000 bits")
def test_each_flipped_bit_is_found(damaged: Damaged) -> None:
    for bit in range(8 * len(damaged.whole)):
        damaged.check_whole(flipped(damaged.whole, bit))


def test_a_file_cut_at_any_byte_is_found(damaged: Damaged) -> None:
    for size in {*range(0, len(damaged.whole), 7), *range(len(damaged.whole) - 99, len(damaged.whole))}:
        damaged.check_whole(damaged.whole[:size])


def test_a_random_damage_is_found(damaged: Damaged) -> None:
    seed = int(os.environ.get("EXPORT_QUEUE_SEED", "7"))
    print("EXPORT_QUEUE_SEED =", seed)
    chance, whole = random.Random(seed), damaged.whole

    def part() -> tuple[int, int]:
        first, end = sorted(chance.sample(range(len(whole) + 1), 2))
        return first, end

    def zeroed() -> bytes:
        first, end = part()
        return whole[:first] + bytes(end - first) + whole[end:]

    def random_bytes() -> bytes:
        first, end = part()
        return whole[:first] + chance.randbytes(end - first) + whole[end:]

    def moved() -> bytes:
        first, end = part()
        to = chance.randrange(len(whole) - (end - first) + 1)
        return whole[:to] + whole[first:end] + whole[to + end - first :]

    def removed() -> bytes:
        first, end = part()
        return whole[:first] + whole[end:]

    def repeated() -> bytes:
        first, end = part()
        return whole[:end] + whole[first:]

    def several_bits() -> bytes:
        content = whole
        for _ in range(chance.randrange(1, 9)):
            content = flipped(content, chance.randrange(8 * len(whole)))
        return content

    def other_footer_size() -> bytes:
        return whole[:-8] + struct.pack("<I", chance.choice([0, 1, len(whole), 1 << 31, (1 << 32) - 1])) + whole[-4:]

    for _ in range(DAMAGES):
        content = chance.choice([zeroed, random_bytes, moved, removed, repeated, several_bits, other_footer_size])()
        if content != whole:
            damaged.check(content)


def in_place_of(path: Path, kind: str) -> None:
    """Put something else in the place of a file."""
    whole = path.read_bytes()
    path.unlink()
    match kind:
        case "a folder":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
        case "a file in place of its folder":
            shutil.rmtree(path.parent)
            path.parent.write_bytes(b"")
        case "an empty file":
            path.write_bytes(b"")
        case "appended bytes":
            path.write_bytes(whole + b"\0")
        case "zeroes":
            path.write_bytes(bytes(len(whole)))
        case "one flipped bit in a page header":
            path.write_bytes(flipped(whole, 8 * 50))
        case "another writer's Parquet file":
            pa.parquet.write_table(pa.table({"bucket": [1], "key": [b"k"]}), path)
            path.write_bytes(path.read_bytes().ljust(len(whole), b"\0")[: len(whole)])


@pytest.mark.parametrize(
    "kind",
    [
        "a folder",
        "a pipe",
        "a file in place of its folder",
        "an empty file",
        "appended bytes",
        "zeroes",
        "one flipped bit in a page header",
        "another writer's Parquet file",
    ],
)
def test_a_drain_and_a_compaction_of_a_damaged_file_end_with_one_error_and_lose_nothing(
    orders: Store, kind: str
) -> None:
    _, (report,) = bulk.load(orders, entries(40))
    bulk.load(orders, entries(40, "other"))
    path = Path(report.file)
    shutil.copytree(path.parent, path.parent.with_name("copy"))
    in_place_of(path, kind)
    with pytest.raises(SegmentLost, match=path.name) as raised:
        orders.compact("orders", wanted=TWO_INPUTS)
    assert not raised.value.transient
    sink = MemorySink()
    with pytest.raises(SegmentLost, match=path.name) as raised:
        drain(orders, "orders", sink, sink_name="sink")
    assert not raised.value.transient
    assert not [key for key in sink.records() if key[1].startswith(b"key")]
    if path.parent.is_file():
        path.parent.unlink()
    else:
        shutil.rmtree(path.parent)
    shutil.copytree(path.parent.with_name("copy"), path.parent)
    drain(orders, "orders", sink, sink_name="sink")
    assert {key[1].decode(): value for key, value in sink.records().items()} == entries(40) | entries(40, "other")


def test_files_of_one_transaction_that_were_exchanged_are_refused(orders: Store) -> None:
    """Both have the same size, entries in the same units, and right checksums of their own."""
    orders.configure_queue("salaries", buckets=20, buckets_per_range=5, value="bytes")
    with orders.transaction(long=True) as tx:
        (public,) = bulk.add(tx, orders, dict.fromkeys(entries(9), b"public"))
        (secret,) = bulk.add(tx, orders, dict.fromkeys(entries(9), b"secret"), queue_id="salaries")
    paths = Path(public.file), Path(secret.file)
    contents = [path.read_bytes() for path in paths]
    assert len(contents[0]) == len(contents[1])
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_bytes(content)
    for queue_id, path in zip(("orders", "salaries"), paths, strict=True):
        sink = MemorySink(queue_id)
        with pytest.raises(SegmentLost, match=path.name):
            drain(orders, queue_id, sink, sink_name="sink")
        assert not sink.records()


def test_row_groups_that_were_exchanged_within_a_file_are_refused(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "GROUP_ROWS", 10)
    values = {f"key-{i}": b"%04d" % i for i in range(40)}
    orders.configure_queue("single", buckets=1, value="bytes")
    _, (report,) = bulk.load(orders, values, queue_id="single")
    path = Path(report.file)
    whole = path.read_bytes()
    first = pa.parquet.read_metadata(path).row_group(1).column(0).dictionary_page_offset
    size = first - 4
    swapped = whole[:4] + whole[first : first + size] + whole[4:first] + whole[first + size :]
    path.write_bytes(swapped)
    with pytest.raises(SegmentLost, match="row group|checksum"):
        drain(orders, "single", MemorySink(), sink_name="sink")


def test_damage_behind_the_first_batches_keeps_what_was_drained_and_no_more(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "GROUP_ROWS", 10)
    orders.configure_queue("single", buckets=1, value="bytes")
    values = {f"key-{i:02}": b"%04d" % i for i in range(90)}
    _, (report,) = bulk.load(orders, values, queue_id="single")
    path = Path(report.file)
    whole = path.read_bytes()
    path.write_bytes(flipped(whole, 8 * (len(whole) - report.footer_bytes - 5)))
    sink = MemorySink()
    with pytest.raises(SegmentLost, match=path.name):
        drain(orders, "single", sink, sink_name="sink", chunk_rows=10)
    (left,) = orders.backlog("single")
    assert left.entries + len(sink.records()) == 90
    assert left.entries >= 10
    path.write_bytes(whole)
    assert drain(orders, "single", sink, sink_name="sink").read == left.entries
    assert {key[1].decode(): value for key, value in sink.records().items()} == values


@pytest.mark.parametrize("what", ["a link to itself", "a folder that links to itself", "a file as folder", "a pipe"])
def test_a_file_to_which_no_path_leads_is_lost_at_once(orders: Store, what: str) -> None:
    _, (report,) = bulk.load(orders, entries(24))
    path = Path(report.file)
    replaced = path if what in ("a link to itself", "a pipe") else path.parent
    kept = replaced.rename(replaced.with_name("kept"))
    if what == "a pipe":
        os.mkfifo(replaced)
    elif what == "a file as folder":
        replaced.touch()
    else:
        replaced.symlink_to(replaced)
    sink = MemorySink()
    for work in (drain, lambda *_, **__: orders.peek("orders", values=True)):
        with pytest.raises(SegmentLost, match=f"{path.name}: expected {report.bytes} bytes, found"):
            work(orders, "orders", sink, sink_name="sink")
    replaced.unlink()
    kept.rename(replaced)
    assert drain(orders, "orders", sink, sink_name="sink").read == 24


@pytest.fixture
def in_bucket(orders: Store, s3_server: S3Server, s3_bucket: str) -> tuple[bytes, Callable[[bytes], None]]:
    """Put one file into an object store; gives its content, and what replaces it."""
    orders.database.segments = s3_server.place(s3_bucket)
    _, (report,) = bulk.load(orders, entries(24))
    parts = urlsplit(report.file)
    filesystem = pa.fs.FileSystem.from_uri(f"s3://{s3_bucket}?{parts.query}")[0]

    def put(content: bytes) -> None:
        with filesystem.open_output_stream(f"{parts.netloc}{parts.path}") as stream:
            stream.write(content)

    return filesystem.open_input_file(f"{parts.netloc}{parts.path}").read(), put


def test_damage_in_an_object_store_is_found(orders: Store, in_bucket: tuple[bytes, Callable[[bytes], None]]) -> None:
    whole, put = in_bucket
    sink = MemorySink()
    for content in (whole[:-1], whole[:9], b"", whole + b"\0", bytes(len(whole)), whole[::-1]):
        put(content)
        with pytest.raises(SegmentLost, match="expected"):
            drain(orders, "orders", sink, sink_name="sink")
    chance, segments = random.Random(3), segments_of(orders)
    for _ in range(12):
        put(flipped(whole, chance.randrange(8 * len(whole))))
        with pytest.raises(SegmentLost, match="expected checksum"):
            read_slices(segments)
    put(whole)
    drain(orders, "orders", sink, sink_name="sink")
    assert {key[1].decode(): value for key, value in sink.records().items()} == entries(24)
