"""The timeline of many segments, built at once and added to, against a sort of the same segments by their buckets.

A queue of a thousand units; each has a first version with appended segments and compactions in it, and a part of the
units, two by two, has higher versions with other intervals. All figures are processor time: nothing else is at work.
"""

from __future__ import annotations

import gc
import random
import statistics
from functools import partial

from benchmarks.measuring import Figure, Taken, Watch, alternate, speed
from export_queue.core.timeline import AtomicGroup, Generation, SegmentId, Timeline, TimelineSegment

BASELINE = "sorted() by first bucket, version and partition"
GOAL = 0.05
ADDED = 1000
UNIT = 100


def run(quick: bool) -> list[Figure]:
    """Measure in one process; there is nothing else to it."""
    count, repeats = (2_000, 1) if quick else (100_000, 7)
    segments = make_segments(count)
    random.Random(0).shuffle(segments)
    taken = alternate(
        {
            BASELINE: partial(_sort, segments),
            "built": partial(_build, segments),
            "added": partial(_add, segments),
            "visible": partial(_look, Timeline(segments)),
            "removable": partial(_clean_up, Timeline(segments)),
        },
        repeats=repeats,
    )
    each = _milliseconds(taken, "added") / min(ADDED, count // 2)
    notes = {
        "built": f"{_milliseconds(taken, 'built') / 1000:.2f} s",
        "added": f"{each * 1000:.0f} µs each",
        "visible": f"{_milliseconds(taken, 'visible'):.0f} ms",
        "removable": f"{_milliseconds(taken, 'removable'):.0f} ms",
    }
    cases = {
        "built": f"{count:,} segments built at once",
        "added": f"{min(ADDED, count // 2):,} of {count:,} segments added one by one, a look at the unit behind each",
        "visible": f"all that shows of {count:,} segments",
        "removable": f"all that may go of {count:,} segments, half of them retired",
    }
    return [
        Figure(
            bench="timeline",
            case=cases[name],
            ratio=speed(taken.processor, name, BASELINE),
            better="higher",
            baseline=BASELINE,
            repeats=repeats,
            goal=GOAL if name == "built" else None,
            note=notes[name],
        )
        for name in cases
    ]


def make_segments(count: int) -> list[TimelineSegment]:
    """Make segments of a queue that is loaded, compacted and drained: thousands of generations, one over the other."""
    source = random.Random(1)
    segments: list[TimelineSegment] = []
    units = max(count // 100, 1)
    for unit in range(units):
        first = unit * UNIT
        _generation(segments, Generation(first, first + UNIT, 1), 60, 0, source)
        if unit % 2 == 0:
            _generation(segments, Generation(first, first + 2 * UNIT, 2), 50, 4, source)
        else:
            _generation(segments, Generation(first + UNIT // 2, first + UNIT, 3), 30, 2, source)
    return segments[:count]


def _generation(
    segments: list[TimelineSegment], generation: Generation, count: int, founders: int, source: random.Random
) -> None:
    """Append segments, of which each tenth and the next one replace five others as a group."""
    partition = 0
    while partition < count:
        if partition < founders:
            group = AtomicGroup.founding(founders)
        elif partition % 10 == 0 and partition >= founders + 5:
            inputs = frozenset(range(partition - 5, partition))
            group = AtomicGroup(frozenset((partition, partition + 1)), inputs)
        else:
            group = AtomicGroup.of(partition)
        for member in sorted(group.members):
            segments.append(
                TimelineSegment(
                    id=SegmentId(generation.version, len(segments)),
                    generation=generation,
                    partition=member,
                    group=group,
                    founders=founders,
                    retired=source.random() < 0.5,
                )
            )
        partition += len(group.members)


def _sort(segments: list[TimelineSegment], watch: Watch) -> None:
    gc.collect()
    with watch.running():
        sorted(segments, key=lambda one: (one.generation.first, one.generation.version, one.partition))


def _build(segments: list[TimelineSegment], watch: Watch) -> None:
    gc.collect()
    with watch.running():
        Timeline(segments)


def _add(segments: list[TimelineSegment], watch: Watch) -> None:
    some = min(ADDED, len(segments) // 2)
    timeline = Timeline(segments[some:])
    with watch.running():
        for one in segments[:some]:
            timeline.add(one)
            timeline.visible(one.generation.first, one.generation.first + UNIT)


def _look(timeline: Timeline, watch: Watch) -> None:
    with watch.running():
        timeline.visible(0, 1 << 30)


def _clean_up(timeline: Timeline, watch: Watch) -> None:
    with watch.running():
        timeline.removable()


def _milliseconds(taken: Taken, name: str) -> float:
    return statistics.median(taken.processor[name]) * 1000
