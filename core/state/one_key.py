"""Reading one key of a state: one statement of the store, and a part of each file that may have a newer entry.

The statement sees one moment. Afterwards only files are read, which never change. A compaction and clean-up may replace
and delete one meanwhile; then the statement is run again, and names the files that count now.
"""

from __future__ import annotations

from collections.abc import Sequence

from export_queue.core.errors import SegmentLost
from export_queue.core.queue import Queue, bucket, hash_of
from export_queue.core.segments import entries_of_key, listed_segments
from export_queue.core.sources import require_complete, require_kept, require_loaded
from export_queue.core.store import ANSWER_SECONDS, Database, KeyInLayout

LAST_SEQ = (1 << 63) - 1
"""The greatest sequence that there may be."""


def latest_value(database: Database, reader: Queue, key: bytes, cut: int) -> bytes | None:
    """Read the value of a key; None if the key does not exist. For parameters and errors see :func:`latest_entry`."""
    return latest_entry(database, reader, key, cut)[1]


def latest_entry(database: Database, reader: Queue, key: bytes, cut: int) -> tuple[int, bytes | None]:
    """Read the sequence and the value of the newest entry of a key; -1 and None if the state has none.

    :param reader: the reader that is the state.
    :param key: encoded.
    :param cut: entries with a greater sequence are not seen.
    :raises UnknownQueue: the state was removed.
    :raises StateIncomplete: its first load is missing.
    :raises SnapshotTooOld: former values of the cut are deleted, or were never there.
    :raises SegmentLost: a file that may have the value is missing or damaged.
    """
    find, hashed = database.dialect.steps.find_key, hash_of(key)
    lost: list[str | bytes | None] | None = None
    while True:
        found = database.call(ANSWER_SECONDS, find, reader.number, hashed, key, cut)
        first_load, loaded, oldest_cut = found[0][:3] if found else (None, None, None)
        require_complete(reader, first_load)
        require_loaded(reader, cut, loaded)
        require_kept(reader, cut, oldest_cut)
        try:
            return _latest(database, found, key, cut)
        except SegmentLost:
            files = [of_layout.segments for of_layout in found]
            if files == lost:
                raise
            lost = files


def _latest(database: Database, found: Sequence[KeyInLayout], key: bytes, cut: int) -> tuple[int, bytes | None]:
    newest: int = -1
    value: bytes | None = None
    for of_layout in found:
        if of_layout.seq is not None and of_layout.seq > newest:
            newest, value = of_layout.seq, of_layout.value
        at = bucket(key, of_layout.buckets)
        for segment in listed_segments(database, of_layout.segments):
            if segment.highest_seq <= newest:
                break  # the others have only older entries, too
            if segment.lowest_seq <= cut:
                for seq, held in entries_of_key(database, segment, at, key):
                    if newest < seq <= cut:
                        newest, value = seq, held
    return newest, value
