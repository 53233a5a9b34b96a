"""The statements that bring a SQLite store from an older schema to this one."""

from __future__ import annotations

# Behind its first byte, a key holds the number of its table or queue: four bytes have become eight.
_WIDER = "update {table} set key = cast(substr(key, 1, 1) || x'00000000' || substr(key, 2) as blob)"

TO_SCHEMA_2 = (
    "alter table xq_store add column expiry_ms bigint not null default 0",
    "alter table xq_store add column cluster text",
    "alter table xq_store add column changes_from bigint not null default 0",
    "alter table xq_store add column lists bigint not null default 0",
    "alter table xq_clock rename to xq_last_id",
    "create unique index xq_table_number on xq_table (number)",
    "alter table xq_conflict_key add column xid bigint not null default 0",
    _WIDER.format(table="xq_conflict_key"),
    _WIDER.format(table="xq_staged_key"),
    "alter table xq_cell add column xid bigint not null default 0",
    "alter table xq_notification add column xid bigint not null default 0",
    "alter table xq_staged_cell add column flush bigint not null default 0",
    "alter table xq_staged_entry add column flush bigint not null default 0",
    "alter table xq_dead_letter rename column drain to drain_id",
    "drop table xq_lock",  # nobody who held a lock is still there; it is created anew
    "alter table xq_drain_report add column idle boolean not null default false",
    "create index xq_drain_report_queue on xq_drain_report (queue, id)",
    "create index xq_active_short on xq_active (id) where kind <> 'long'",
    # As the triggers would, which are not there yet: there may be invalid ids.
    "update xq_store set schema_version = 2, oldest_code = 2, lists = random()",
)
"""A client of schema 1 that still runs draws an id from ``xq_clock`` at each transaction."""
