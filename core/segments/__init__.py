"""Segments: pending entries in Parquet files instead of rows, written by long transactions, drained with the rows.

A file is immutable and sorted by bucket, key and seq. It has a slice for each unit of its queue with entries in it.
Nothing of it counts before the transaction commits (I3). Rows of the store, not listings of folders, say what counts.
"""

from export_queue.core.segments.adding import BulkWriter, is_as_stored
from export_queue.core.segments.candidates import Candidates, UnitPlan, choose_candidates
from export_queue.core.segments.catalogue import (
    begin_load,
    by_range,
    delete_aborted,
    give_up_file,
    leave_out_drained,
    mark_done,
    stage_segments,
    waiting_segments,
)
from export_queue.core.segments.compaction import compact
from export_queue.core.segments.compaction_report import CompactionProgress, CompactionReport, UnitCompacted
from export_queue.core.segments.falling_back import FellBack, fall_back
from export_queue.core.segments.files import check_base, delete_files, exists, load_pyarrow
from export_queue.core.segments.gathering import merged, same_as_before, table_of, without_earlier
from export_queue.core.segments.kept_parts import entries_of_key, listed_segments
from export_queue.core.segments.listing import ListedSegment, list_segments
from export_queue.core.segments.mergers import Merge, Merged, Merger
from export_queue.core.segments.merging import Chunk, Run, UnitReader
from export_queue.core.segments.model import FileReport, Segment, Slice
from export_queue.core.segments.one_entry import leave_one_entry
from export_queue.core.segments.peek import peek
from export_queue.core.segments.reading import RowGroup, batches_after, row_groups
from export_queue.core.segments.sharing import Shared, share_state
from export_queue.core.segments.vacuum import GRACE_SECONDS, HIDDEN_SECONDS, UnusedFile, Vacuumed, vacuum_segments
from export_queue.core.segments.windows import BucketAndKey, windows
from export_queue.core.segments.writing import TARGET_BYTES, OnDuplicate, in_order, write_segments

__all__ = [
    "GRACE_SECONDS",
    "HIDDEN_SECONDS",
    "TARGET_BYTES",
    "BucketAndKey",
    "BulkWriter",
    "Candidates",
    "Chunk",
    "CompactionProgress",
    "CompactionReport",
    "FellBack",
    "FileReport",
    "ListedSegment",
    "Merge",
    "Merged",
    "Merger",
    "OnDuplicate",
    "RowGroup",
    "Run",
    "Segment",
    "Shared",
    "Slice",
    "UnitCompacted",
    "UnitPlan",
    "UnitReader",
    "UnusedFile",
    "Vacuumed",
    "batches_after",
    "begin_load",
    "by_range",
    "check_base",
    "choose_candidates",
    "compact",
    "delete_aborted",
    "delete_files",
    "entries_of_key",
    "exists",
    "fall_back",
    "give_up_file",
    "in_order",
    "is_as_stored",
    "leave_one_entry",
    "leave_out_drained",
    "list_segments",
    "listed_segments",
    "load_pyarrow",
    "mark_done",
    "merged",
    "peek",
    "row_groups",
    "same_as_before",
    "share_state",
    "stage_segments",
    "table_of",
    "vacuum_segments",
    "waiting_segments",
    "windows",
    "without_earlier",
    "write_segments",
]
