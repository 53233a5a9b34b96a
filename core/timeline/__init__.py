"""The timeline: which segments are visible in which buckets. Pure, in memory.

The answers depend only on the set of segments. The timeline at a snapshot has the segments whose transactions the
snapshot sees.
"""

from export_queue.core.timeline.model import AtomicGroup, Generation, Missing, Piece, SegmentId, TimelineSegment
from export_queue.core.timeline.timeline import Timeline

__all__ = ["AtomicGroup", "Generation", "Missing", "Piece", "SegmentId", "Timeline", "TimelineSegment"]
