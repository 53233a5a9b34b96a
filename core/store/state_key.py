"""The statement that reads all that a store has about one key of a state.

It is one statement, so it sees one moment: what was committed, and which rows and segments held it, either before
entries moved into a file or another layout, or after. A row is committed unless its sequence is an id in progress or
invalid. A segment has a reader only from its commit on.
"""

from __future__ import annotations

from typing import NamedTuple

from export_queue.core.store.schema import segment

SEGMENT_COLUMNS = tuple(column.name for column in segment.columns)
"""In this order rows of the catalogue are listed as JSON."""
_OF_READER = "q.number, q.first_load, q.first_load_seq, q.oldest_cut"
_IS_STATE = "q.number = ?1 and q.oldest_cut is not null"
_TEXT = f"""
    select {{first}}l.first_load, l.first_load_seq, l.oldest_cut, l.buckets, e.seq, e.value, (
        select {{all_of}}({{listed}}({", ".join(f"g.{name}" for name in SEGMENT_COLUMNS)}))
        from {{s}}xq_segment_reader r
        join {{s}}xq_segment g on g.transaction_id = r.transaction_id and g.number = r.number
        where r.queue_number = l.number and g.layout = l.layout and g.first_bucket <= l.bucket
          and g.end_bucket > l.bucket)
    from (
        select a.*, ((cast(?2 as bigint) % a.buckets) + a.buckets) % a.buckets as bucket from (
            select {_OF_READER}, q.layout, q.buckets from {{s}}xq_queue q where {_IS_STATE}
            union all
            select {_OF_READER}, o.layout, o.buckets from {{s}}xq_queue q
            join {{s}}xq_layout o on o.queue_number = q.parent and o.layout < q.layout and o.closed_ms is null
            where {_IS_STATE}) a) l
    left join {{s}}xq_entry e on e.queue_number = l.number and e.layout = l.layout and e.bucket = l.bucket
      and e.key = ?3 and e.seq = (
        select m.seq from {{s}}xq_entry m
        where m.queue_number = l.number and m.layout = l.layout and m.bucket = l.bucket and m.key = ?3 and m.seq <= ?4
          and not exists (select 1 from {{s}}xq_active i where i.id = m.seq)
          and not exists (select 1 from {{s}}xq_invalid i where i.id = m.seq)
        order by m.seq desc limit 1)
"""
SQLITE = _TEXT.format(first="", all_of="json_group_array", listed="json_array", s="")
POSTGRESQL = _TEXT.format(
    first="pg_catalog.pg_is_in_recovery(), ",
    all_of="pg_catalog.json_agg",
    listed="pg_catalog.json_build_array",
    s="{s}.",
).replace("?", "$")
"""With ``{s}`` for the schema. The arguments of both are the reader's number, the key's hash, the key, and the greatest
sequence to read."""


class KeyInLayout(NamedTuple):
    """What one layout of a state has about one key."""

    first_load: str | None
    """As in the reader's options."""
    first_load_seq: int | None
    """The sequence of the entries of its first load; None if none was made."""
    oldest_cut: int
    """The state cannot be read as of an older id."""
    buckets: int
    """Buckets of the layout."""
    seq: int | None
    """The sequence of the newest row; None without a row."""
    value: bytes | None
    """The value of that row."""
    segments: str | bytes | None
    """A JSON list of the pending segments that may have the key, with :data:`SEGMENT_COLUMNS`; maybe None for none."""
