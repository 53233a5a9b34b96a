"""The statements of a transaction's steps in SQLite."""

from __future__ import annotations

from export_queue.core.store.seams import Scan

_SEEN = """
    (version in (select value from json_each(:pointers))
     or (version <= :pointer and version not in (select value from json_each(:excluded))))
"""
_UP_TO = "version <= :pointer"  # for a snapshot that is a prefix; half the cost
READ_CELL = f"""
    select (select horizon from xq_store), version, value from xq_cell
    where table_number = :table and row_key = :row and column_key = :column and {_SEEN}
    order by version desc limit 1
"""
READ_CELL_UP_TO = """
    select (select horizon from xq_store), version, value from xq_cell
    where table_number = ? and row_key = ? and column_key = ? and version <= ?
    order by version desc limit 1
"""
READ_VERSION_UP_TO = """
    select version, value from xq_cell where table_number = ? and row_key = ? and column_key = ? and version <= ?
    order by version desc limit 1
"""
HORIZON = "select horizon from xq_store"
_ENTRIES = """
    select bucket, key, seq, value from xq_entry
    where queue_number = :queue and layout = :layout and bucket >= :first and bucket < :end and seq <= :pointer
      and seq not in (select value from json_each(:excluded)) and {}
    order by bucket, key, seq limit :rows
"""
ENTRIES = _ENTRIES.format("true")
ENTRIES_AFTER = _ENTRIES.format("bucket >= :bucket and (bucket, key, seq) > (:bucket, :key, :seq)")
STORE_ID = "select store_id from xq_store"
NAME_OF_TABLE = "select name from xq_table where number = ?"
NAME_OF_QUEUE = "select id from xq_queue where number = ?"
# One statement, hence one SQL snapshot. Short ones are read each time: otherwise each would change the number of lists.
SNAPSHOT = """
    select c.last_id, s.lists, (select group_concat(id) from xq_active where kind <> 'long')
    from xq_last_id c, xq_store s
"""
LAST_ID = "select last_id from xq_last_id"
EXCLUDED_FOR_LONG = "select id from xq_active where kind = 'long' union select id from xq_invalid order by 1"
# Not a counter, since a store that is restored from a copy might reach a number again with other ids.
_CHANGED = "begin update xq_store set lists = random(); end"
TRIGGERS = (
    f"create trigger if not exists xq_active_insert after insert on xq_active when new.kind = 'long' {_CHANGED}",
    f"create trigger if not exists xq_active_delete after delete on xq_active when old.kind = 'long' {_CHANGED}",
    f"create trigger if not exists xq_invalid_insert after insert on xq_invalid {_CHANGED}",
    f"create trigger if not exists xq_invalid_delete after delete on xq_invalid {_CHANGED}",
)
KEEPS_FROM_FLOOR = "select 1 from xq_active, xq_last_id where last_id < ? limit 1"
SET_FLOOR = "update xq_last_id set last_id = max(last_id, ?)"
# If the clock is far above the last id, it may have stepped. While an id is in progress, ids follow it gradually,
# unless a run of clean-up met the clock there some minutes ago.
DRAW = """
    update xq_last_id set last_id = case
        when :now_ms * 1000000 - last_id > :hour and exists (select 1 from xq_active) and not exists (
            select 1 from xq_low_watermark where at_ms between :now_ms - :hour / 1000000 and :now_ms - :stayed_ms)
        then last_id + :hour
        else max(last_id + 1, :now_ms * 1000000) end
    returning last_id
"""
_SCAN = """
    select row_key, column_key, {value} from xq_cell
    where table_number = :table
      and (row_key, column_key, version) > (:after_row, :after_column, :after_version) and {span} and {seen}
    {group} limit :limit
"""
_ALL_VERSIONS = "order by row_key, column_key, version"
_NEWEST = "group by row_key, column_key having max(version) order by row_key, column_key"
"""SQLite promises that the other columns are those of the row with the greatest version."""


def scan(scan: Scan, *, is_prefix: bool) -> str:
    """Return the statement of a scan."""
    conditions = ["true"]
    if scan.span.end_row is not None:
        conditions.append("row_key < :end")
    if scan.span.columns:
        conditions.append(f"column_key in ({', '.join(f':column{i}' for i in range(len(scan.span.columns)))})")
    value = "value" if scan.expired is None else "case when version > :expired then value end"
    group, seen = _NEWEST if scan.newest else _ALL_VERSIONS, _UP_TO if is_prefix else _SEEN
    return _SCAN.format(value=value, span=" and ".join(conditions), seen=seen, group=group)


def store_proof(tables: int, queues: int) -> str:
    """Return the statement that reads the store's identity, its horizon, and how many of these numbers it has.

    The last argument is the subscription whose first load this is. Other subscriptions do not count.
    """
    counts = (
        f"(select count(*) from {table} where number in ({', '.join('?' * numbers)}){condition})"
        for table, numbers, condition in (
            ("xq_table", tables, ""),
            ("xq_queue", queues, " and (parent is null or number = ?)"),
        )
    )
    return f"select store_id, horizon, {' + '.join(counts)} from xq_store"


TAKE_KEY = """
    insert into xq_conflict_key (key, writer) values (?, ?) on conflict (key) do update set writer = excluded.writer
"""
WRITER = "select writer from xq_conflict_key where key = ?"
TAKE_IDEMPOTENCY_KEY = """
    insert or ignore into xq_idempotency (idempotency_key, generation, id, result, committed_ms) values (?, ?, ?, ?, ?)
"""
PUT_CELL = """
    insert into xq_cell (table_number, row_key, column_key, version, value) values (?, ?, ?, ?, ?)
    on conflict do update set value = excluded.value
"""
PUT_ENTRY = """
    insert into xq_entry (queue_number, layout, bucket, key, seq, value) values (?, ?, ?, ?, ?, ?)
    on conflict do update set value = excluded.value
"""
# The layouts l of queues q to which a transaction adds: the oldest ones that were current when it began. So all that it
# adds to a queue is in one layout, and no key in two under one sequence, although it stages its entries in parts.
_LAYOUT = """
    left join xq_layout l on q.layout > 1 and l.queue_number = coalesce(q.parent, q.number) and l.layout = (
      select min(o.layout) from xq_layout o
      where o.queue_number = coalesce(q.parent, q.number) and o.ceased_id >= {} and o.closed_ms is null)
"""
_PLACE = "coalesce(l.layout, q.layout), coalesce(l.buckets, q.buckets)"
READERS = f"""
    select coalesce(q.parent, q.number), q.number, {_PLACE} from xq_queue q {_LAYOUT.format("?")}
    where coalesce(q.parent, q.number) in (select value from json_each(?)) and not q.fans_out
"""
QUEUES = f"""
    select q.number, {_PLACE}, q.fans_out from xq_queue q {_LAYOUT.format("?")}
    where q.number in (select value from json_each(?))
"""
LOAD = "select load from xq_active where id = ?"
SUBSCRIPTION = "select id from xq_queue where number = ? and parent is not null"
STAGED_FOR_READERS = """
    select 1 from xq_staged_entry
    where id = ? and queue_number in (select number from xq_queue where fans_out or history_ms is not null) limit 1
"""
PUBLISH_STAGED = (
    f"""insert into xq_entry (queue_number, layout, bucket, key, seq, value)
       select r.number, r.layout, ((s.hash % r.buckets) + r.buckets) % r.buckets, s.key, s.id, e.value
       from xq_staged_entry s
       join xq_entry e on e.queue_number = s.queue_number and e.layout = s.layout and e.bucket = s.bucket
         and e.key = s.key and e.seq = s.id
       join (
         select q.number, q.parent, coalesce(l.layout, q.layout) as layout, coalesce(l.buckets, q.buckets) as buckets
         from xq_queue q {_LAYOUT.format(":id")}) r on r.parent = s.queue_number
       where s.id = :id and s.hash is not null""",
    """delete from xq_entry where seq = :id and (queue_number, layout, bucket, key) in
       (select queue_number, layout, bucket, key from xq_staged_entry where id = :id and hash is not null)""",
    # The state of a queue without subscriptions gets what was staged for the queue itself.
    """insert into xq_entry (queue_number, layout, bucket, key, seq, value)
       select r.number, e.layout, e.bucket, e.key, e.seq, e.value
       from xq_staged_entry s
       join xq_entry e on e.queue_number = s.queue_number and e.layout = s.layout and e.bucket = s.bucket
         and e.key = s.key and e.seq = s.id
       join xq_queue r on r.parent = s.queue_number
       where s.id = :id and s.hash is null""",
)
COUNT_STAGING = "update xq_load set stagings = stagings + 1 where transaction_id = ?"
MAY_REPEAT_KEYS = """
    select 1 from xq_load l where l.transaction_id = :id and l.checked < l.stagings and (
      exists (select 1 from xq_segment where transaction_id = :id
              group by queue_number, first_bucket having min(add_order) < max(add_order))
      or exists (select 1 from xq_staged_entry where id = :id and queue_number in (
        select queue_number from xq_segment where transaction_id = :id)))
"""
MAKE_FIRST_LOAD = """
    update xq_queue set first_load = 'made', first_load_seq = ?
    where number = ? and first_load in ('missing', 'waived')"""
CLOSED_LAYOUT = """
    select q.id from xq_segment g join xq_queue q on q.number = g.queue_number
    where g.transaction_id = :id and g.layout <> q.layout and not exists (
      select 1 from xq_layout l
      where l.queue_number = coalesce(q.parent, q.number) and l.layout = g.layout and l.closed_ms is null)
    limit 1
"""
PUBLISH_SEGMENTS = """
    insert into xq_segment_reader (queue_number, transaction_id, number)
      select q.number, g.transaction_id, g.number
      from xq_segment g
      join xq_queue q on not q.fans_out and (q.number = g.queue_number or q.parent = g.queue_number)
      where g.transaction_id = :id and g.entries > 0
"""
PUT_NOTIFICATION = """
    insert or ignore into xq_notification (table_number, row_key, column_key, version) values (?, ?, ?, ?)
"""
ACKNOWLEDGE = """
    delete from xq_notification where table_number = ? and row_key = ? and column_key = ?
      and version <= ? and version not in (select value from json_each(?))
"""
STAGE_KEY = "insert or ignore into xq_staged_key (id, key) values (?, ?)"
STAGED_KEYS = "select key from xq_staged_key where id = ?"
_UNLESS_YOUNGER = "on conflict do update set flush = excluded.flush where flush < excluded.flush"
STAGE_CELL = f"""
    insert into xq_staged_cell (id, table_number, row_key, column_key, flush) values (?, ?, ?, ?, ?) {_UNLESS_YOUNGER}
"""
STAGE_ENTRY = f"""
    insert into xq_staged_entry (id, queue_number, layout, bucket, key, hash, flush) values (?, ?, ?, ?, ?, ?, ?)
    {_UNLESS_YOUNGER}
"""
OUTCOME = "select status, id from xq_outcome where request = ?"
REFUSE = "insert or ignore into xq_outcome (request, status, id, decided_ms) values (?, 'refused', null, ?)"
COMMITTED = "insert or ignore into xq_outcome (request, status, id, decided_ms) values (?, 'committed', ?, ?)"
POINTERS = "select id from xq_active where owner = ? order by id"
PRUNABLE = "select id from xq_invalid where left_to is null order by id limit ?"
REGISTER = """
    insert into xq_active (id, request, kind, started_ms, deadline_ms, low, owner, client, load, mirrors, queues)
    values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
REGISTER_POINTER = """
    insert into xq_active (id, request, kind, started_ms, deadline_ms, low, owner, client)
    select ?, request, kind, started_ms, deadline_ms, low, owner, client from xq_active where id = ?
"""
FORGET = "delete from xq_active where owner = ? returning id"
END_ALL = (
    "insert or ignore into xq_invalid (id, since_ms) select id, started_ms from xq_active where kind = 'long'",
    "delete from xq_active",
)
_IS_SLOW = "kind = 'long' and deadline_ms - started_ms >= :slow"
ANY_LATE = "select 1 from xq_active where deadline_ms < ? and id = owner"
# A long transaction with a time-out of hours is only recorded when it is first found late, and ended if it still is
# some minutes later, since the clock may be ahead for a moment.
NOTE_LATE = f"""
    update xq_active set late_ms = :now
    where deadline_ms < :now and id = owner and {_IS_SLOW} and (late_ms is null or late_ms > :now)
"""
LATE = f"""
    select id from xq_active
    where deadline_ms < :now and id = owner and (not ({_IS_SLOW}) or late_ms <= :now - :stayed_ms) order by id
"""
MAKE_INVALID = """
    insert or ignore into xq_invalid (id, since_ms)
    select id, :now from xq_active where owner = :id and kind = 'long'
"""
FORGET_LATE = "delete from xq_active where owner = :id"
KEEP_INVALID = """
    insert into xq_invalid (id, since_ms, left_to) values (?, ?, ?)
    on conflict do update set left_to = excluded.left_to
"""
IS_INVALID = "select 1 from xq_invalid where id = ?"
FORGET_INVALID = "delete from xq_invalid where id = :id"
FORGET_STAGED = tuple(f"delete from xq_staged_{what} where id = :id" for what in ("key", "cell", "entry"))
ROLLBACK = (
    """delete from xq_cell where version = :id and (table_number, row_key, column_key) in
       (select table_number, row_key, column_key from xq_staged_cell where id = :id)""",
    """delete from xq_entry where seq = :id and (queue_number, layout, bucket, key) in
       (select queue_number, layout, bucket, key from xq_staged_entry where id = :id)""",
    # uses the index: a notification is on an observed column
    """delete from xq_notification where version = :id and (table_number, column_key) in
       (select table_number, column_key from xq_observed)""",
    "delete from xq_segment where transaction_id = :id",  # clean-up deletes its files
    *FORGET_STAGED,
)
