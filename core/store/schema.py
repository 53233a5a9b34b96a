"""The tables of a store, portable; PostgreSQL adds the functions of ``postgresql/sql``."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

SCHEMA_VERSION = 1
"""Version of the schema that this code creates."""
OLDEST_SCHEMA = 1
"""Oldest schema that this code can work with."""
OLDEST_CODE = 1
"""Oldest code, by its schema, that may open a store which this code has created or migrated."""

metadata = sa.MetaData()


def _table(name: str, *columns: sa.schema.SchemaItem, **options: Any) -> sa.Table:
    # Clustered by primary key on SQLite too: every access is by a prefix of it.
    return sa.Table(name, metadata, *columns, sqlite_with_rowid=False, **options)


def _id(name: str, *, primary_key: bool = False, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, primary_key=primary_key, nullable=nullable, autoincrement=False)


def _int(name: str, *, primary_key: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, primary_key=primary_key, nullable=False, autoincrement=False)


def _bytes(name: str, *, primary_key: bool = False, nullable: bool = False) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary, primary_key=primary_key, nullable=nullable)


def _text(name: str, *, primary_key: bool = False, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=primary_key, nullable=nullable)


def _xid() -> sa.Column[int]:
    # The SQL transaction that wrote the row: on PostgreSQL by a default that its dialect adds, otherwise always 0.
    return sa.Column("xid", sa.BigInteger, nullable=False, server_default=sa.text("0"))


store = _table(
    "xq_store",
    _int("one", primary_key=True),  # always 1
    _text("store_id"),
    _int("schema_version"),
    _int("oldest_code"),
    _id("mask"),
    _id("horizon"),
    # Cells whose time to live had ended by then may be deleted.
    sa.Column("expiry_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    _id("created_ms"),
    _text("cluster", nullable=True),  # of PostgreSQL servers, in which the numbers in the columns "xid" are valid
    # On PostgreSQL: changes of the ids that are excluded for a long time are kept from this SQL transaction on.
    sa.Column("changes_from", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    # On SQLite: a number that changes with the ids that are excluded for a long time.
    sa.Column("lists", sa.BigInteger, nullable=False, server_default=sa.text("0")),
)
clock = _table("xq_last_id", _int("one", primary_key=True), _id("last_id"))
active = _table(
    "xq_active",
    _id("id", primary_key=True),
    sa.Column("request", sa.Uuid, nullable=False),
    _text("kind"),
    _id("started_ms"),
    _id("deadline_ms"),
    _id("low"),
    _id("owner"),  # the transaction of a write pointer; its own id in the transaction's first row
    _text("client"),
    _id("load", nullable=True),  # of a first load: the number of its subscription
    _text("mirrors", nullable=True),  # of a mirror: its queue and scope; a newer mirror of the same ends this one
    _text("queues", nullable=True),  # a JSON list of the only queues that it may add to
    _id("late_ms", nullable=True),  # when it was first found past its deadline, if a second check decides
    sa.Index("xq_active_owner", "owner"),
    # For snapshots on SQLite, which read these each time.
    sa.Index("xq_active_short", "id", sqlite_where=sa.text("kind <> 'long'")).ddl_if(dialect="sqlite"),
)
invalid = _table(
    "xq_invalid",
    _id("id", primary_key=True),
    _id("since_ms"),
    _text("left_to", nullable=True),  # participants that hold data of this id, and only they know when it is gone
)
outcome = _table(
    "xq_outcome",
    sa.Column("request", sa.Uuid, primary_key=True),
    _text("status"),
    _id("id", nullable=True),
    _id("decided_ms"),
    # For snapshots: which of the ids whose locks are listed have committed.
    sa.Index("xq_outcome_id", "id").ddl_if(dialect="postgresql"),
)
idempotency = _table(
    "xq_idempotency",
    _text("idempotency_key", primary_key=True),
    _int("generation", primary_key=True),
    _id("id"),
    _text("result", nullable=True),
    _id("committed_ms"),
    _id("closed_ms", nullable=True),
    sa.Index("xq_idempotency_committed", "committed_ms"),
)
table = _table(
    "xq_table",
    _text("name", primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False, unique=True),  # from the id source: never used again
    _text("conflict"),
    _id("ttl_ms", nullable=True),
    sa.Column("row_codec", sa.Text, nullable=False, server_default=sa.text("'bytes'")),
    sa.Column("value_codec", sa.Text, nullable=False, server_default=sa.text("'bytes'")),
)
conflict_key = _table(
    "xq_conflict_key",
    _bytes("key"),
    _id("writer"),
    _xid(),
    sa.PrimaryKeyConstraint("key", name="xq_conflict_key_pk"),  # named in "on conflict"
    # Room on each page for the next version of a row, so that its index need not change.
    postgresql_with={"fillfactor": 70},
)
cell = _table(
    "xq_cell",
    _id("table_number", primary_key=True),
    _bytes("row_key", primary_key=True),
    _bytes("column_key", primary_key=True),
    _id("version", primary_key=True),
    _bytes("value", nullable=True),
    _xid(),
)
staged_key = _table("xq_staged_key", _id("id", primary_key=True), _bytes("key", primary_key=True))
staged_cell = _table(
    "xq_staged_cell",
    _id("id", primary_key=True),
    _id("table_number", primary_key=True),
    _bytes("row_key", primary_key=True),
    _bytes("column_key", primary_key=True),
    _id("flush"),  # the number of the last flush that wrote it; an older flush comes too late
)
staged_entry = _table(
    "xq_staged_entry",
    _id("id", primary_key=True),  # the transaction's, as in the entry
    _id("queue_number", primary_key=True),
    _int("layout", primary_key=True),
    _int("bucket", primary_key=True),
    _bytes("key", primary_key=True),
    _id("flush"),
    # In a queue with subscriptions, whose staged entries have layout and bucket 0: the source of each reader's bucket.
    _id("hash", nullable=True),
)
observed = _table(
    "xq_observed", _id("table_number", primary_key=True), _bytes("column_key", primary_key=True), _text("kind")
)
notification = _table(
    "xq_notification",
    _id("table_number", primary_key=True),
    _bytes("row_key", primary_key=True),
    _bytes("column_key", primary_key=True),
    _id("version", primary_key=True),
    _xid(),
    sa.Index("xq_notification_column", "table_number", "column_key", "version", "row_key"),
)
observer_failure = _table(
    "xq_observer_failure",
    _id("table_number", primary_key=True),
    _bytes("row_key", primary_key=True),
    _bytes("column_key", primary_key=True),
    _int("attempts"),
    _id("next_ms"),
    _text("error"),
)
queue = _table(
    "xq_queue",
    _text("id", primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False, unique=True),  # from the id source: never used again
    _int("layout"),
    _int("buckets"),
    _int("buckets_per_range"),
    _text("key_codec"),
    _text("value_codec"),
    _int("max_value_bytes"),
    sa.Column("exclusive", sa.Boolean, nullable=False),
    _text("sink", nullable=True),
    _text("binding", nullable=True),  # the options of sink and exporter that determine the written records, as JSON
    _id("created_ms"),
    _id("parent", nullable=True),  # of a subscription: the number of its queue
    # Whether it has subscriptions, which get its entries.
    sa.Column("fans_out", sa.Boolean, nullable=False, server_default=sa.text("false")),
    _text("first_load", nullable=True),  # of a subscription that came later: 'missing', 'made' or 'waived'
    _id("first_load_seq", nullable=True),  # the sequence of the entries of the last first load that was made
    _text("coalesce", nullable=True),  # what a compaction does with several entries of a key
    # Of a queue that has a state, and of the reader that is its state: how long former values are kept.
    _id("history_ms", nullable=True),
    # Of a state: it cannot be read as of an older id, because former values may be deleted.
    _id("oldest_cut", nullable=True),
    # For commits: the readers of the queue to which they add.
    sa.Index("xq_queue_source", sa.text("coalesce(parent, number)")),
)
# The former layouts of queues and their subscriptions.
layout = _table(
    "xq_layout",
    _id("queue_number", primary_key=True),  # of the queue to which entries are added
    _int("layout", primary_key=True),
    _int("buckets"),
    _int("buckets_per_range"),
    _id("ceased_id"),  # the last drawn id; transactions up to it may add to this layout
    _id("ceased_ms"),
    _id("closed_ms", nullable=True),  # when it was empty and nobody could add to it
)
removed_queue = _table("xq_removed_queue", _id("number", primary_key=True))  # clean-up deletes its rows in parts
is_state = sa.and_(queue.c.parent.is_not(None), queue.c.history_ms.is_not(None))
"""The condition that a reader is the state of its queue, which is never drained."""
entry = _table(
    "xq_entry",
    _id("queue_number", primary_key=True),
    _int("layout", primary_key=True),
    _int("bucket", primary_key=True),
    _bytes("key", primary_key=True),
    _id("seq", primary_key=True),
    _bytes("value", nullable=True),
    # Of a retried dead letter that a compaction kept in place of older entries: their lowest possible sequence.
    _id("covers", nullable=True),
    sa.Index(
        "xq_entry_covers",
        "queue_number",
        sqlite_where=sa.text("covers is not null"),
        postgresql_where=sa.text("covers is not null"),
    ),
)
# Long transactions that write files, from before the first file until all are deleted; used by clean-up.
load = _table(
    "xq_load",
    _id("transaction_id", primary_key=True),
    _text("folder"),  # the URL of all its files
    _id("begun_ms"),
    _id("ended_ms", nullable=True),  # when clean-up first found that the transaction had ended
    _int("segments"),  # the highest number of a segment
    _int("stagings"),  # how often rows or files were staged
    _int("checked"),  # up to which of these stagings no key has two entries
)
segment = _table(
    "xq_segment",
    _id("transaction_id", primary_key=True),
    _int("number", primary_key=True),
    _id("queue_number"),  # of the queue to which entries are added
    _int("layout"),
    _int("first_bucket"),
    _int("end_bucket"),
    _text("file"),  # its URL
    _id("file_bytes"),
    _id("footer_bytes"),
    _text("checksum"),  # of the file's footer, which has the checksums of everything else
    _int("row_group_first"),
    _int("row_group_end"),
    _id("entries"),
    _id("bytes"),  # of keys and values
    _id("lowest_seq"),
    _id("highest_seq"),
    _id("add_order"),  # of two entries of a key in one transaction the one with the higher order counts
    _int("largest_value"),  # bytes of its largest value
    # Of a segment whose file another transaction has written, and which other segments may also have: that transaction.
    _id("written_by", nullable=True),
    sa.Index("xq_segment_file", "transaction_id", "file", "first_bucket", unique=True),
    sa.Index(
        "xq_segment_written_by",
        "written_by",
        sqlite_where=sa.text("written_by is not null"),
        postgresql_where=sa.text("written_by is not null"),
    ),
)
# Readers for which a segment is pending; written by the commit, so staged segments have none.
segment_reader = _table(
    "xq_segment_reader",
    _id("queue_number", primary_key=True),
    _id("transaction_id", primary_key=True),
    _int("number", primary_key=True),
    sa.Index("xq_segment_reader_segment", "transaction_id", "number"),
)
# The parts of a segment that a reader has drained: all entries from the first to the last.
segment_done = _table(
    "xq_segment_done",
    _id("queue_number", primary_key=True),
    _id("transaction_id", primary_key=True),
    _int("number", primary_key=True),
    _int("first_bucket", primary_key=True),
    _bytes("first_key", primary_key=True),
    _id("first_seq", primary_key=True),
    _int("last_bucket"),
    _bytes("last_key"),
    _id("last_seq"),
    _id("entries"),
    _id("bytes"),
)
# Segments that a compaction has made for one reader; every snapshot sees them.
compacted = _table(
    "xq_compacted",
    _id("transaction_id", primary_key=True),
    _int("number", primary_key=True),
    _id("queue_number"),  # of the reader
    _int("row_entries"),  # how many of its entries were rows and are in no other file
    _id("coalesced"),  # how many entries were dropped because a later one of their key replaces them
)
# Undrained segments of a reader that a merged one replaces; they have no rows in xq_segment_reader.
hidden_segment = _table(
    "xq_hidden_segment",
    _id("queue_number", primary_key=True),
    _id("transaction_id", primary_key=True),
    _int("number", primary_key=True),
    _id("by_transaction"),  # the segment that replaces it
    _int("by_number"),
    _id("hidden_ms"),
    sa.Index("xq_hidden_segment_segment", "transaction_id", "number"),
)
# Unused files of ended transactions, which clean-up keeps for a grace time.
unused_file = _table(
    "xq_unused_file",
    _id("transaction_id", primary_key=True),
    _text("file", primary_key=True),  # its URL
    _id("since_ms"),  # when clean-up first found it unused
)
dead_letter = _table(
    "xq_dead_letter",
    _id("queue_number", primary_key=True),
    _bytes("key", primary_key=True),
    _id("seq", primary_key=True),
    _int("layout"),
    _int("bucket"),
    _bytes("value", nullable=True),
    _text("error_class"),
    _text("reason"),
    _text("drain_id"),
    _id("dead_since_ms"),
    _id("covers", nullable=True),  # as in xq_entry: what it stands for does not arrive either
    sa.Index("xq_dead_letter_seq", "queue_number", "seq"),
)
# Acts of people that may have cost a sink entries, and promises; those about the whole store have queue ''.
dead_letter_audit = _table(
    "xq_dead_letter_audit",
    _id("id", primary_key=True),
    _text("queue"),
    _text("act"),  # 'retry', or one of the marks of core/queue/marks.py
    _text("who"),
    _id("letters"),  # how many entries
    _text("selection"),  # which, and further numbers, as JSON
    _text("seqs", nullable=True),  # of discarded entries: between which sequences, as a JSON list of pairs
    _id("at_ms"),
    _id("cleared_ms", nullable=True),  # when a load or a promise made up for it; else null
    _text("cleared_by", nullable=True),
)
lock = _table(
    "xq_lock",
    _id("fence", primary_key=True),  # of the claim
    _int("first_bucket", primary_key=True),
    _id("queue_number"),
    _int("layout"),
    _int("end_bucket"),
    # A JSON list of what it covers in its interval, 'rows' or names of segments; null for all.
    _text("segment", nullable=True),
    _text("mode"),  # 'exclusive' or 'shared'
    _int("priority"),
    _text("task"),
    _text("attempt"),
    _id("lease_ms"),
    sa.Column("revoked", sa.Boolean, nullable=False),
    sa.Index("xq_lock_queue", "queue_number", "layout", "first_bucket"),
    sa.Index("xq_lock_task", "task"),
)
# Requests for locks. One that has not been refreshed for a while no longer counts.
lock_request = _table(
    "xq_lock_request",
    _id("number", primary_key=True),  # from the id source: of equal requests, the lower one is served first
    _id("queue_number"),
    _int("layout"),
    _text("areas"),  # a JSON list: first bucket, end, and what is requested there, as in a lock
    _text("mode"),
    _int("priority"),
    _text("task"),
    _text("attempt"),
    _id("asked_ms"),
    _id("until_ms"),
    sa.Index("xq_lock_request_queue", "queue_number", "layout"),
)
attempt = _table(
    "xq_attempt",
    _text("task", primary_key=True),
    _text("attempt", primary_key=True),
    _text("submission", nullable=True),  # the attempt that submitted this one
    sa.Column("queue_number", sa.BigInteger, nullable=True),  # null where it was revoked before it began
    sa.Column("revoked", sa.Boolean, nullable=False),
    _id("at_ms"),
    sa.Index("xq_attempt_at", "at_ms"),
)
drain_report = _table(
    "xq_drain_report",
    _id("id", primary_key=True),
    _text("drain_id"),
    _text("queue"),
    _id("finished_ms"),
    sa.Column("idle", sa.Boolean, nullable=False),  # it found no entry and no problem
    _text("report"),
    sa.Index("xq_drain_report_drain_id", "drain_id"),
    sa.Index("xq_drain_report_queue", "queue", "id"),
)
# Comparisons of sinks with what they should hold. Those that did not reach their end have no row.
comparison = _table(
    "xq_comparison",
    _id("id", primary_key=True),
    _text("queue"),
    _id("finished_ms"),
    _text("report"),
    sa.Index("xq_comparison_queue", "queue", "id"),
)
sink_fence = _table(
    "xq_sink_fence",
    _text("queue", primary_key=True),
    _text("sink", primary_key=True),
    _id("fence"),  # the highest that the sink has shown to remember; written before the first batch
)

# Rebuilds of the targets of readers; one that has ended stays until the next one of its reader.
rebuild = _table(
    "xq_rebuild",
    _text("reader", primary_key=True),  # the id of the reader whose target is replaced
    _text("new_reader"),
    _text("phase"),  # see core/verify/rebuild_record.py
    _text("step"),  # the run of a step that set the phase
    _text("options"),  # JSON
    _text("who"),
    _id("begun_ms"),
    _id("changed_ms"),
)

low_watermark = _table("xq_low_watermark", _id("at_ms", primary_key=True), _id("low"))
cleanup = _table(
    "xq_cleaning",
    _text("subject", primary_key=True),
    _id("reached"),  # the horizon of the last pass, or the time before which rows have been deleted
    _bytes("place", nullable=True),  # where the pass under way goes on; null between two passes
)
