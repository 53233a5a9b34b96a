"""The files of a state, as the store's rows name them, against the timeline, the definition of which files are visible.

A reader's rows and the timeline are written by different code. After each load, compaction, fall-back and vacuum both
must show the same files, and the state the entries of a dictionary.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support import bulk
from tests.support.timelines import Oracle, by_bucket, numbers

from export_queue import Candidates, InvalidArgument, Range, Store
from export_queue.core.queue import find_state
from export_queue.core.segments import compact, fall_back, vacuum_segments, waiting_segments
from export_queue.core.segments.model import Segment
from export_queue.core.store.schema import hidden_segment as h
from export_queue.core.timeline import AtomicGroup, Generation, SegmentId, Timeline, TimelineSegment
from export_queue.core.transactions import take_snapshot

BUCKETS, PER_RANGE = 6, 3
KEYS = [f"k{i}" for i in range(9)]


@dataclass
class Follower:
    """A timeline that follows the files of a state: each file and unit is a segment, each merged one a group."""

    store: Store
    timeline: Timeline = field(default_factory=Timeline)
    known: set[SegmentId] = field(default_factory=set)
    expected: dict[str, bytes] = field(default_factory=dict)
    partitions: int = 0

    def rows(self) -> dict[SegmentId, Segment]:
        """Read what the store's rows show."""
        snapshot = take_snapshot(self.store.database)
        with self.store.database.read() as work:
            found = waiting_segments(work, find_state(work, "orders"), snapshot, Range(0, BUCKETS))
        return {SegmentId(*one.key): one for one in found}

    def hidden(self) -> dict[SegmentId, SegmentId]:
        """Read which segments are hidden, and by which one."""
        with self.store.database.read() as work:
            number = find_state(work, "orders").number
            rows = work.connection.execute(sa.select(h).where(h.c.queue_number == number)).all()
        return {SegmentId(one[1], one[2]): SegmentId(one[3], one[4]) for one in rows}

    def follow(self) -> None:
        """Add new segments to the timeline, with what the rows say that they replace."""
        hidden = self.hidden()
        shown = self.rows()
        for name in sorted(set(shown) - self.known):
            inputs = [one for one, by in hidden.items() if by == name]
            group = AtomicGroup(
                frozenset([self.partitions]), self.timeline.overshadowed_by(inputs) if inputs else frozenset()
            )
            generation = Generation(shown[name].first, shown[name].end, 1)
            self.timeline.add(TimelineSegment(id=name, generation=generation, partition=self.partitions, group=group))
            self.known.add(name)
            self.partitions += 1

    def check(self) -> None:
        """Compare the rows, the timeline and its oracle; and the state's entries with the dictionary."""
        self.follow()
        shown = {(name, bucket) for name, one in self.rows().items() for bucket in range(one.first, one.end)}
        assert by_bucket(self.timeline.visible(0, BUCKETS)) == shown
        assert Oracle(self.timeline).visible(0, BUCKETS) == shown
        assert set(self.hidden()) == {one.id for one in self.timeline.hidden()}
        assert dict(self.store.state("orders").scan()) == self.expected

    def load(self, entries: dict[str, bytes], *, tasks: int = 1) -> None:
        bulk.load(self.store, entries, tasks=tasks)
        self.expected |= entries

    def compact(self, wanted: Candidates) -> None:
        compact(self.store.database, "orders/@state", wanted=wanted)

    def fall_back(self, file: str) -> bool:
        """Fall back from a merged file; return whether its inputs are still there."""
        outputs = [name for name, one in self.rows().items() if one.file == file]
        replaced = [self.timeline[one].group.overshadows for one in outputs]
        with self.store.database.read() as work:
            reader = find_state(work, "orders")
        try:
            fall_back(self.store.database, reader, file, who="a test")
        except InvalidArgument:
            partitions = {one.partition for one in self.timeline}
            assert any(not (overshadows & partitions) or not overshadows for overshadows in replaced)
            return False
        for one in outputs:
            self.timeline.withdraw(one)
        return True

    def vacuum(self) -> None:
        """Delete what is hidden, and its files."""
        before = self.hidden()
        vacuum_segments(self.store.database, hidden_seconds=0.0, grace_seconds=0.0, zombie_seconds=0.0)
        for gone in set(before) - set(self.hidden()):
            self.timeline.withdraw(gone)


@pytest.fixture
def follower(store: Store, tmp_path: Path) -> Follower:
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=BUCKETS, buckets_per_range=PER_RANGE, value="bytes", state=True)
    return Follower(store)


def test_the_example_of_the_segment_locking_proposal(store: Store, tmp_path: Path) -> None:
    """1, 2 and 3 come from a batch; 4 merges 2 and 3, 5 is appended; 6 replaces 4 and 5, 8 is appended."""
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=BUCKETS, buckets_per_range=BUCKETS, value="bytes", state=True)
    follower = Follower(store)
    named: dict[SegmentId, int] = {}

    def visible(name: int) -> list[int]:
        """Name the newest segment, and list those that are visible by their names in the proposal."""
        follower.check()
        new = [one for one in follower.rows() if one not in named]
        named.update({one: name + i for i, one in enumerate(sorted(new))})
        return sorted(named[piece.segment.id] for piece in follower.timeline.visible(0, BUCKETS))

    small = Candidates(small_bytes=1000, least=2)
    follower.load({"large": b"1" * 2000})
    assert visible(1) == [1]
    follower.load({"k2": b"2", "k": b"2"})
    assert visible(2) == [1, 2]
    follower.load({"k3": b"3", "k": b"3"})
    assert visible(3) == [1, 2, 3]
    follower.compact(small)
    assert visible(4) == [1, 4]
    follower.load({"k5": b"5", "k": b"5"})
    assert visible(5) == [1, 4, 5]
    follower.compact(small)
    assert visible(6) == [1, 6]
    follower.load({"k8": b"8"})
    assert visible(8) == [1, 6, 8]
    assert numbers(follower.timeline.hidden())  # 2, 3, 4 and 5

    six = next(one.file for name, one in follower.rows().items() if named[name] == 6)
    assert follower.fall_back(six)
    assert visible(9) == [1, 4, 5, 8]
    four = next(one.file for name, one in follower.rows().items() if named[name] == 4)
    assert follower.fall_back(four)
    assert visible(9) == [1, 2, 3, 5, 8]


def test_two_files_that_replace_others_together_are_withdrawn_together(store: Store, tmp_path: Path) -> None:
    """As 6 and 7 of the proposal replace 4 and 5: what a move of buckets writes is one atomic group."""
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=BUCKETS, buckets_per_range=BUCKETS, value="bytes", state=True)
    expected = dict.fromkeys(KEYS, b"4")
    bulk.load(store, expected)
    bulk.load(store, dict.fromkeys(KEYS[:4], b"5"))
    expected |= dict.fromkeys(KEYS[:4], b"5")

    def shown() -> dict[SegmentId, Segment]:
        snapshot = take_snapshot(store.database)
        with store.database.read() as work:
            state = find_state(work, "orders")
            layouts = [state.laid_out_as(layout) for layout in state.layouts()]
            found = [waiting_segments(work, one, snapshot, Range(0, BUCKETS, one.layout)) for one in layouts]
        assert dict(store.state("orders").scan()) == expected
        return {SegmentId(*one.key): one for of_layout in found for one in of_layout}

    generation = Generation(0, BUCKETS, 1)
    inputs, timeline = sorted(shown()), Timeline()
    for partition, name in enumerate(inputs):
        group = AtomicGroup(frozenset([partition]))
        timeline.add(TimelineSegment(id=name, generation=generation, partition=partition, group=group))
    assert len(inputs) == 2
    store.alter_queue("orders", buckets_per_range=PER_RANGE, guard="seq")
    compact(store.database, "orders/@state", older_layouts=True)
    outputs = sorted(shown())
    pair = AtomicGroup(frozenset([2, 3]), timeline.overshadowed_by(inputs))
    assert len(outputs) == 2
    for partition, name in enumerate(outputs, 2):
        timeline.add(TimelineSegment(id=name, generation=generation, partition=partition, group=pair))

    def visible() -> list[SegmentId]:
        names = {piece.segment.id for piece in timeline.visible(0, BUCKETS)}
        assert names == {name for name, _ in Oracle(timeline).visible(0, BUCKETS)}
        return sorted(names)

    assert visible() == outputs
    with store.database.read() as work:
        state = find_state(work, "orders")
    fall_back(store.database, state, shown()[outputs[1]].file, who="a test")
    timeline.withdraw(outputs[1])
    assert visible() == sorted(shown()) == inputs


@pytest.mark.parametrize("rounds", [pytest.param(2, id="few"), pytest.param(8, marks=pytest.mark.full("more walks"))])
def test_any_sequence_of_loads_compactions_fall_backs_and_vacuums(follower: Follower, rounds: int) -> None:
    seed = int(os.environ.get("EXPORT_QUEUE_SEED") or random.randrange(1 << 32))
    print(f"EXPORT_QUEUE_SEED={seed}")
    source = random.Random(seed)
    done: dict[str, int] = dict.fromkeys(("loaded", "merged", "fell back", "refused", "vacuumed"), 0)

    def load() -> None:
        entries = {key: b"%d" % source.randrange(100) for key in source.sample(KEYS, source.randrange(1, 6))}
        follower.load(entries, tasks=source.choice((1, 2)))
        done["loaded"] += 1

    def merge() -> None:
        follower.compact(Candidates(least=source.choice((2, 3)), most_inputs=source.choice((2, 10))))
        done["merged"] += 1

    def lose() -> None:
        merged = sorted({one.file for one in follower.rows().values() if "compaction" in one.file})
        if merged:
            done["fell back" if follower.fall_back(source.choice(merged)) else "refused"] += 1

    def vacuum() -> None:
        follower.vacuum()
        done["vacuumed"] += 1

    steps: list[Any] = [load, load, load, merge, merge, lose, lose]
    for _ in range(rounds):
        for step in source.choices(steps, k=12):
            step()
            follower.check()
        vacuum()
        follower.check()
    assert done["loaded"]
    assert done["merged"]
