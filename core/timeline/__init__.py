"""The timeline: which of the stored segments count, and which go; pure and in memory.

Segments are added, withdrawn and retired, one by one or all at once: the answers depend on the set of segments only.
The timeline of a snapshot is that of the segments whose transactions the snapshot sees.
"""

from export_queue.core.timeline.drawing import draw, draw_svg
from export_queue.core.timeline.model import (
    AtomicGroup,
    Generation,
    Missing,
    Part,
    Piece,
    SegmentId,
    State,
    TimelineSegment,
)
from export_queue.core.timeline.timeline import Timeline

__all__ = [
    "AtomicGroup",
    "Generation",
    "Missing",
    "Part",
    "Piece",
    "SegmentId",
    "State",
    "Timeline",
    "TimelineSegment",
    "draw",
    "draw_svg",
]
