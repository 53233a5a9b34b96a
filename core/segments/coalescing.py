"""Entries of one key among those that a compaction merges: the latest stands for all of them, or a fold of them.

A fold makes a value that nobody has added, and what lies between its first and its last entry must not reach a sink by
another way. So it is made of those entries only that no drain has looked at; a drain may have brought others, and have
died before it removed them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from export_queue.core.codecs import Refused
from export_queue.core.errors import EntryError, FoldError
from export_queue.core.queue import LATEST, Fold, Queue, find_fold, fold_values
from export_queue.core.retry import is_transient
from export_queue.core.segments.gathering import repeats, without_earlier

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = ("bucket", "key")


def coalesced(table: pa.Table, queue: Queue, *, folds_after: int | None) -> pa.Table:
    """Drop what later entries of the same key stand for, as the queue says.

    :param table: entries in the order of bucket, key and seq, each place once.
    :param folds_after: only entries with a higher sequence are folded; None folds none.
    :raises FoldError: the fold does not take the values of a key.
    """
    if queue.coalesce is None:
        return table
    if queue.coalesce == LATEST:
        return without_earlier(table, _KEY)
    return table if folds_after is None else _folded(table, queue, find_fold(queue.coalesce), folds_after)


def _folded(table: pa.Table, queue: Queue, fold: Fold, after: int) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    count = table.num_rows
    follows = pc.and_(repeats(table, _KEY), pc.greater(table["seq"].slice(0, max(count - 1, 0)), after))
    stays, is_new, values = bytearray(b"\x01" * count), bytearray(count), list[bytes | None]()
    for first, end in _runs(pc.indices_nonzero(follows).to_pylist()):
        for begin, last, value in _fold_key(table.slice(first, end - first), queue, fold):
            stays[first + begin : first + last] = bytes(last - begin)
            is_new[first + last] = True
            values.append(value)
    if not values:
        return table
    column = table.schema.get_field_index("value")
    kind = table.schema.field(column).type
    new = pc.replace_with_mask(table["value"].combine_chunks(), _mask(is_new), pa.array(values, kind))
    return table.set_column(column, table.schema.field(column), new).filter(_mask(stays))


def _mask(flags: bytearray) -> pa.BooleanArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.not_equal(pa.Array.from_buffers(pa.uint8(), len(flags), [None, pa.py_buffer(flags)]), 0)


def _runs(followed: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield first and end of each run of rows, given those that the next row belongs to."""
    first = None
    for at, row in enumerate(followed):
        if first is None:
            first = row
        if at + 1 == len(followed) or followed[at + 1] != row + 1:
            yield first, row + 2
            first = None


def _fold_key(rows: pa.Table, queue: Queue, fold: Fold) -> list[tuple[int, int, bytes | None]]:
    """Fold the entries of one key; returns first and last position and value of what stands for several."""
    key = rows["key"][0].as_py()
    values = [queue.decode_value(value, key=key) for value in rows["value"].to_pylist()]
    try:
        return [(one.first, one.last, queue.encode_value(one.value, key=key)) for one in fold_values(values, fold)]
    except Exception as error:
        if is_transient(error):
            raise
        problem = error.message if isinstance(error, Refused | EntryError) else f"it raised {type(error).__name__}"
        hint = error.hint if isinstance(error, EntryError) else None
        raise FoldError(f"queue {queue.id!r}: fold {fold.name} of {_place(rows)}: {problem}", hint=hint) from error


def _place(rows: pa.Table) -> str:
    bucket, key, seqs = rows["bucket"][0].as_py(), rows["key"][0].as_py(), rows["seq"].to_pylist()
    return f"bucket {bucket}, key {key!r}, sequences {seqs[0]} to {seqs[-1]}"
