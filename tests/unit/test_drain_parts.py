"""Cutting units into parts and giving parts to tasks: every entry is in one part, no key is cut, tasks are level."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise

from hypothesis import given
from hypothesis import strategies as st

from export_queue import Range
from export_queue.core.drain.parts import Block, Part, cut, spread
from export_queue.core.locks import Lease
from export_queue.core.queue import Entries, Position

UNIT = Lease(1, 1, 1, Range(10, 20))

positions = st.builds(
    Position,
    st.integers(10, 19),
    st.text("abc", min_size=1, max_size=3).map(str.encode),
    st.integers(1, 3),
)


@st.composite
def measured_units(draw: st.DrawFn) -> tuple[list[Position], list[Block]]:
    """Entries of a unit, and blocks of them as a look at the store measures them."""
    entries = sorted(draw(st.sets(positions, max_size=60)))
    blocks = []
    for bucket, group in groupby(entries, key=lambda entry: entry.bucket):
        keys = sorted({entry.key for entry in group})
        ends = sorted(draw(st.sets(st.sampled_from(keys), max_size=len(keys))))
        blocks += [Block(bucket, key, draw(st.integers(1, 9))) for key in ends]
        blocks.append(Block(bucket, None, draw(st.integers(0, 9))))
    if blocks:  # of files, which are measured for themselves
        blocks += [replace(block, weight=3) for block in draw(st.sets(st.sampled_from(blocks), max_size=3))]
    return entries, sorted(blocks, key=Block.place)


def chunk(entries: list[Position]) -> Entries:
    return Entries(
        [e.bucket for e in entries], [e.key for e in entries], [e.seq for e in entries], [None] * len(entries)
    )


def of_part(part: Part, entries: list[Position]) -> list[Position]:
    """The entries that a drain reads: those of the part's buckets behind its beginning, trimmed."""
    behind = [
        entry
        for entry in entries
        if part.buckets.first <= entry.bucket < part.buckets.end and (part.after is None or entry > part.after)
    ]
    trimmed = part.trim(chunk(behind))
    return [trimmed.position(i) for i in range(len(trimmed))]


@given(measured_units(), st.integers(1, 30))
def test_every_entry_is_in_exactly_one_part_and_no_key_is_cut(
    unit: tuple[list[Position], list[Block]], share: int
) -> None:
    entries, blocks = unit
    parts = [part for _, part in cut(UNIT, blocks, share)]

    assert [entry for part in parts for entry in of_part(part, entries)] == entries
    assert all(part.buckets.first < part.buckets.end for part in parts)
    keys = [{(entry.bucket, entry.key) for entry in of_part(part, entries)} for part in parts]
    assert all(not one & other for one, other in pairwise(keys))


@given(measured_units(), st.integers(1, 30))
def test_a_part_is_heavier_than_a_share_only_where_one_block_is(
    unit: tuple[list[Position], list[Block]], share: int
) -> None:
    _, blocks = unit
    weights = [weight for weight, _ in cut(UNIT, blocks, share)]

    assert sum(weights) == sum(block.weight for block in blocks)
    at_one_place = [sum(block.weight for block in group) for _, group in groupby(blocks, key=Block.place)]
    heaviest = max(at_one_place, default=0)
    assert all(weight <= max(share, heaviest) for weight in weights)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=40), st.integers(1, 8))
def test_tasks_are_level_up_to_one_part(weights: list[int], tasks: int) -> None:
    leases = [Lease(1, 1, 1, Range(i, i + 1)) for i in range(len(weights))]
    by_lease = dict(zip(leases, weights, strict=True))

    given_out = spread([(weight, Part.whole(lease)) for lease, weight in by_lease.items()], tasks)

    assert len(given_out) == min(tasks, len(weights))
    assert sorted(part.lease.range for parts in given_out for part in parts) == [lease.range for lease in leases]
    loads = [sum(by_lease[part.lease] for part in parts) for parts in given_out]
    assert max(loads) - min(loads) <= max(weights)


def test_a_trimmed_chunk_is_the_last_one() -> None:
    part = Part(UNIT, Range(10, 11), until=Position(10, b"b", (1 << 63) - 1))
    read = chunk([Position(10, key, seq) for key in (b"a", b"b", b"c") for seq in (1, 2)])

    trimmed = part.trim(read)

    assert (trimmed.keys, trimmed.is_last) == ([b"a", b"a", b"b", b"b"], True)
    assert not part.trim(trimmed).is_last or part.trim(trimmed) is trimmed
