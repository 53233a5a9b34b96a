"""Batches of the Redis sink, cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("hiredis")

from export_queue import Operations, bucket
from export_queue.core.sinks.redis import pieces
from export_queue.core.sinks.redis.pieces import Batch

RECORDS = st.dictionaries(
    st.binary(max_size=12), st.none() | st.integers(0, 600).map(lambda size: b"x" * size), min_size=1, max_size=80
)


def operations(records: dict[bytes, bytes | None]) -> Operations:
    count = len(records)
    return Operations(["k:$id"] * count, list(records), list(records.values()), list(range(count)), range(count))


@given(RECORDS, st.integers(0, 9), st.integers(1, 30), st.integers(1, 2000))
def test_each_operation_is_in_one_piece_of_bounded_size(records, shards, rows, size):
    sent = operations(records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "ROWS", rows)
        patch.setattr(pieces, "BYTES", size)
        batch = Batch(sent, shards)
        parts = batch.cut()
    assert [i for part in parts for i in part] == list(range(len(sent)))
    found = [batch.take(part) for part in parts]
    assert [i for part in found for i in part.ids] == [sent.ids[i] for i in batch.order]
    assert sorted(batch.order) == list(range(len(sent)))
    for one in found:
        assert len(one) <= rows
        weight = sum(map(len, one.ids)) + sum(len(document or b"") for document in one.documents)
        assert weight <= size or len(one) == 1


@given(RECORDS, st.integers(1, 9))
def test_a_record_is_in_the_shard_of_its_bucket(records, shards):
    batch = Batch(operations(records), shards)
    (part,) = batch.cut()
    ids = batch.take(part).ids
    groups = batch.groups(part)
    assert {ids[i]: shard for shard, start, end in groups for i in range(start, end)} == {
        record: bucket(record, shards) for record in records
    }
    assert len({shard for shard, _, _ in groups}) == len(groups)


@given(RECORDS, st.integers(0, 9))
def test_halves_have_every_record_once_and_share_no_shard(records, shards):
    batch = Batch(operations(records), shards)
    (whole,) = batch.cut()
    halves = batch.halves(whole)
    assert [i for half in halves for i in half] == list(whole)
    if shards:
        first, *second = ({shard for shard, _, _ in batch.groups(half)} for half in halves)
        assert not any(first & other for other in second)
        assert len(halves) == min(2, len(batch.groups(whole)))
    else:
        assert halves == [whole]
