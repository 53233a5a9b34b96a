"""The statements of a transaction's steps in PostgreSQL; ``{s}`` is the quoted schema."""

from __future__ import annotations

from typing import Any

from export_queue.core.store.postgresql_arrays import ByteaArray
from export_queue.core.store.protocol import Span

_VISIBLE = "(version = any(%b) or (version <= %b and version <> all(%b)))"
_WRITES = ", ".join(["%b"] * 10)
_NOTES = "%b, %b, %b"

NOW = "(extract(epoch from clock_timestamp()) * 1000)::bigint"
"""The store's clock, in milliseconds since the epoch."""
START = """
    select id, excluded, deadline_ms, found_version, found_value
    from {s}.xq_start_v1(%s, %b, %b, %b, %b, %s, %b, %b, %b)
"""
SETTLE = "update {s}.xq_active set client = client where owner = %b"
"""Its durable commit makes durable what has been written before it."""
CHECKPOINT = "select {s}.xq_checkpoint_v1(%b)"
OBSERVE = "select read_pointer, excluded from {s}.xq_observe_v1()"
POINTERS = "select array(select id from {s}.xq_active where owner = %b order by id)"
STAGE = "select {s}.xq_stage_v1(%b, " + _WRITES + ", " + _NOTES + ")"
COMMIT = "select {s}.xq_commit_v1(%s, %b, %b, %b, %b, %b, %s, %b, %s, " + ", ".join([_WRITES, _NOTES, _NOTES]) + ")"
ABORT = "select {s}.xq_abort_v1(%s, %b)"
REFUSE = "insert into {s}.xq_outcome values (%b, 'refused', null, " + NOW + ") on conflict do nothing"
OUTCOME = "select status, id from {s}.xq_outcome where request = %b"
READ_CELL = (
    """
    select s.horizon, c.version, c.value
    from {s}.xq_store s left join (
        select version, value from {s}.xq_cell
        where table_number = %b and row_key = %b and column_key = %b and """
    + _VISIBLE
    + """
        order by version desc limit 1) c on true
"""
)
READ_CELLS = (
    """
    select (select horizon from {s}.xq_store), w.r, w.k, c.version, c.value
    from unnest(%b, %b) as w(r, k)
    left join lateral (
        select version, value from {s}.xq_cell
        where table_number = %b and row_key = w.r and column_key = w.k and """
    + _VISIBLE
    + """
        order by version desc limit 1) c on true
"""
)
_SCAN = (
    """
    select (select horizon from {s}.xq_store), c.row_key, c.column_key, c.version, c.value
    from (select 1) one left join (
        select g.row_key, g.column_key, g.version, v.value
        from (
            select row_key, column_key, max(version) as version from {s}.xq_cell
            where table_number = %b and row_key >= %b and {span} and """
    + _VISIBLE
    + """
            group by row_key, column_key order by row_key, column_key limit %b) g
        join {s}.xq_cell v on v.table_number = %b and v.row_key = g.row_key and v.column_key = g.column_key
                          and v.version = g.version) c on true
    order by c.row_key, c.column_key
"""
)


def scan(schema: str, span: Span) -> bytes:
    """Write the statement that reads the first cells of a span; it takes the arguments of :func:`of_span`.

    The newest version is found by grouping, since that is the index's order: ``distinct on`` would sort the whole rest
    of the span for every page.
    """
    conditions = ["true"]
    if span.end_row is not None:
        conditions.append("row_key < %b")
    if span.after is not None:
        conditions.append("(row_key, column_key) > (%b, %b)")
    if span.columns:
        conditions.append("column_key = any(%b)")
    return _SCAN.format(s=schema, span=" and ".join(conditions)).encode()


def of_span(table: int, span: Span) -> list[Any]:
    """Return the arguments for what a span adds to the statement, before those of visibility."""
    arguments: list[Any] = [table, span.first_row if span.after is None else span.after[0]]
    if span.end_row is not None:
        arguments.append(span.end_row)
    arguments.extend(span.after or ())
    if span.columns:
        arguments.append(ByteaArray.of(span.columns))
    return arguments
