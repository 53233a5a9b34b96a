"""Keys in files, found through the parts that a process keeps, compared with reading everything."""

from __future__ import annotations

import tempfile
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export_queue.core.queue import bucket
from export_queue.core.segments import Segment, entries_of_key, writing
from export_queue.core.segments.writing import write_merged
from export_queue.core.store.byte_cache import ByteCache

BUCKETS = 4
KEYS = st.binary(min_size=1, max_size=3)
ENTRIES = st.dictionaries(
    st.tuples(KEYS, st.integers(1, 9)), st.none() | st.binary(max_size=3), min_size=1, max_size=60
)


def written(folder: str, entries: dict[tuple[bytes, int], bytes | None]) -> Segment:
    rows = sorted((bucket(key, BUCKETS), key, seq, value) for (key, seq), value in entries.items())
    kinds = {"bucket": pa.int32(), "key": pa.binary(), "seq": pa.int64(), "value": pa.binary()}
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds.values(), strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, names=list(kinds))
    (report,) = write_merged([(0, BUCKETS, batch)], base=folder, store_id="s", transaction=1, name="m")
    (part,) = report.slices
    found: Any = SimpleNamespace(number=1, layout=1, buckets=BUCKETS)
    return Segment.from_row({**report.columns(part, found), "transaction_id": 1, "number": 1})


@given(entries=ENTRIES, others=st.lists(KEYS, max_size=5), limit=st.sampled_from([0, 2000, 1 << 20]))
@settings(deadline=None, max_examples=20)
def test_a_key_is_found_in_whichever_row_group_it_is(
    entries: dict[tuple[bytes, int], bytes | None], others: list[bytes], limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(writing, "GROUP_ROWS", 4)
        segment, database = written(folder, entries), SimpleNamespace(kept=ByteCache(limit))
        for _ in range(2):
            for key in [*others, *{key for key, _ in entries}]:
                found = entries_of_key(database, segment, bucket(key, BUCKETS), key)  # type: ignore[arg-type]
                assert found == sorted((seq, value) for (of, seq), value in entries.items() if of == key)
                assert database.kept.bytes <= limit


def test_values_that_were_not_used_for_longest_are_dropped_first() -> None:
    kept = ByteCache(10)
    for name in "abc":
        kept.put(name, name.upper(), 3)
    assert kept.get("a") == "A"
    kept.put("d", "D", 4)
    assert [kept.get(name) for name in "abcd"] == ["A", None, "C", "D"]
    assert kept.bytes == 10
    kept.put("e", "E", 11)  # larger than everything
    kept.put("a", "AA", 2)  # in place of the earlier one
    assert [kept.get(name) for name in "acde"] == ["AA", "C", "D", None]
    assert kept.bytes == 9
    kept.clear()
    assert (kept.get("a"), kept.bytes) == (None, 0)
