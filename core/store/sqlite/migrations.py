"""The statements that bring a SQLite store from an older schema to this one."""

from __future__ import annotations


def wider(key: bytes) -> bytes:
    """Give a conflict key its wider number: behind its first byte, four bytes have become eight.

    SQL of SQLite has nothing that joins bytes in files of any encoding.
    """
    return key[:1] + bytes(4) + key[1:]


_TO_SCHEMA_2 = (
    "alter table xq_store add column expiry_ms bigint not null default 0",
    "alter table xq_store add column cluster text",
    "alter table xq_store add column changes_from bigint not null default 0",
    "alter table xq_store add column lists bigint not null default 0",
    "alter table xq_clock rename to xq_last_id",
    "create unique index xq_table_number on xq_table (number)",
    "alter table xq_conflict_key add column xid bigint not null default 0",
    # By way of a copy: the new form of one key may be the old form of another.
    "create temp table xq_copy as select xq_wider(key) as key, writer from xq_conflict_key",
    "delete from xq_conflict_key",
    "insert into xq_conflict_key (key, writer) select key, writer from xq_copy",
    "drop table xq_copy",
    "create temp table xq_copy as select id, xq_wider(key) as key from xq_staged_key",
    "delete from xq_staged_key",
    "insert into xq_staged_key (id, key) select id, key from xq_copy",
    "drop table xq_copy",
    "alter table xq_cell add column xid bigint not null default 0",
    "alter table xq_notification add column xid bigint not null default 0",
    "alter table xq_staged_cell add column flush bigint not null default 0",
    "alter table xq_staged_entry add column flush bigint not null default 0",
    "alter table xq_dead_letter rename column drain to drain_id",
    "drop table xq_cleanup",  # a pass of clean-up begins anew; one that is under way ends here
    "drop table xq_lock",  # nobody who held a lock is still there; it is created anew
    "alter table xq_drain_report add column idle boolean not null default false",
    "create index xq_drain_report_queue on xq_drain_report (queue, id)",
    "create index xq_active_short on xq_active (id) where kind <> 'long'",
    # As the triggers would, which are not there yet: there may be invalid ids.
    "update xq_store set schema_version = 2, oldest_code = 2, lists = random()",
)
"""A client of schema 1 that still runs draws an id from ``xq_clock`` at each transaction."""
_TO_SCHEMA_3 = (
    "alter table xq_staged_entry add column hash bigint",
    "alter table xq_active add column load bigint",
    "alter table xq_queue add column parent bigint",
    "alter table xq_queue add column fans_out boolean not null default false",
    "alter table xq_queue add column first_load text",
    "create index xq_queue_source on xq_queue (coalesce(parent, number))",
    "alter table xq_table add column row_codec text not null default 'bytes'",
    "alter table xq_table add column value_codec text not null default 'bytes'",
    "update xq_store set schema_version = 3",
)
"""Clients of schema 2 go on."""

_TO_SCHEMA_4 = ("update xq_store set schema_version = 4",)
"""Clients of schema 3 go on. The new tables come with a new store's."""

_TO_SCHEMA_5 = ("alter table xq_queue add column coalesce text", "update xq_store set schema_version = 5")
"""Clients of schema 4 go on. The new tables come with a new store's."""

TO_SCHEMA = {2: _TO_SCHEMA_2, 3: _TO_SCHEMA_3, 4: _TO_SCHEMA_4, 5: _TO_SCHEMA_5}
"""By the schema that they lead to, from the one before it."""
