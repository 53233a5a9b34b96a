"""The statements of a transaction's steps in PostgreSQL; ``{s}`` is the quoted schema."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import xxhash

from export_queue.core.postgresql_arrays import BigintArray, ByteaArray
from export_queue.core.postgresql_connection import Prepared
from export_queue.core.store.roles import quoted as quoted
from export_queue.core.store.seams import Scan
from export_queue.core.store.snapshot import AnySnapshot, ServerSnapshot

UP_TO = "version <= %b"
"""What a snapshot sees that is a prefix, or whose excluded ids do not matter. :func:`seen_by` gives the arguments."""
BY_IDS = "(version = any(%b) or (version <= %b and version <> all(%b)))"
BY_SERVER = "xid < %b and xid <> all(%b)"
"""The same for a server's snapshot."""
BY_SERVER_AND_IDS = f"{BY_SERVER} and version <> all(%b)"
PREDICATES = (UP_TO, BY_IDS, BY_SERVER, BY_SERVER_AND_IDS)
_WRITES = ", ".join(["%b"] * 9)
_CELLS = "%b, %b, %b"

NOW = "(extract(epoch from pg_catalog.clock_timestamp()) * 1000)::bigint"
"""The store's clock, in milliseconds since the epoch."""
READ_CLOCK = b"select " + NOW.encode()
CREATE_SEQUENCE = "create sequence if not exists {s}.xq_id as bigint minvalue 0 start 1"
MASK = "select mask from {s}.xq_store"
STORE_ID = "select store_id from {s}.xq_store"
SET_FLOOR = "select {s}.xq_set_floor_v1(%b)"
WRITER_TABLES = ("xq_cell", "xq_conflict_key", "xq_notification")
HAS_WRITER = """
    select exists (
        select 1 from pg_catalog.pg_attrdef d
        where d.adrelid = '{s}.{table}'::regclass
          and pg_catalog.pg_get_expr(d.adbin, d.adrelid) like '%%pg_current_xact_id%%')
"""
"""Checked first: the statement below blocks all writers, and may deadlock with them."""
ADD_WRITER = "alter table {s}.{table} alter column xid set default pg_catalog.pg_current_xact_id()::text::bigint"
"""The top-level SQL transaction that writes a row. Unlike ``xmin`` it is right inside a user's savepoint too."""
DRAW = "select id from {s}.xq_draw_v1(true, false)"
LOCK_AT_ONCE = """
    select {s}.xq_lock_at_once_v1(%s::bigint, %s::int, %s::int, %s::int[], %s::int[], %s::text[], %s, %s::int, %s,
      %s::text[], %s::bigint)
"""
RELEASE_LOCKS = "select {s}.xq_release_locks_v1(%s::bigint[], %s::int[], %s::bigint[])"
START = """
    select id, excluded, deadline_ms, found_version, found_value
    from {s}.xq_start_v1(%s, %s, %b, %b, %b, %s, %b, %b, %b)
"""
START_LIMITED = """
    select id, excluded, deadline_ms, null, null from {s}.xq_start_limited_v1(%s, %b, %b, %b, %s, %b, %s, %s)
"""
SNAPSHOT = (
    """
    select greatest(s.horizon, (select max(m.low) from {s}.xq_low_watermark m)), pg_catalog.pg_current_snapshot(), """
    + NOW
    + """, pg_catalog.pg_is_in_recovery(),
        case when s.tableoid = %b and %b >= s.changes_from then null
            else array(select a.id from {s}.xq_active a where a.kind = 'long' union all
                       select i.id from {s}.xq_invalid i) end,
        case when (select max(n.xid) from {s}.xq_change n) >= %b
            then array(select n.change from {s}.xq_change n where n.xid >= %b and (n.xid >= %b or n.xid = any(%b))) end,
        s.tableoid, c.version, c.value
    from {s}.xq_store s
    left join lateral (
        select e.version, e.value from {s}.xq_cell e
        where e.table_number = %b and e.row_key = %b and e.column_key = %b
        order by e.version desc limit 1) c on true
"""
)
"""Reads a SQL snapshot, the ids that are excluded from it and the newest version of the first cell in one statement.
The arguments are those of the snapshot as of which the ids are known, then the cell. It returns all ids if they are not
known, or known of another table, which a restore has made; otherwise the ids that were added and removed since."""
FACTS = b"""
    select pg_catalog.current_setting('server_version'), pg_catalog.current_setting('server_version_num')::int,
      pg_catalog.current_setting('fsync')::bool and pg_catalog.current_setting('full_page_writes')::bool,
      pg_catalog.current_setting('transaction_read_only')::bool,
      pg_catalog.current_setting('max_connections')::int
        - pg_catalog.current_setting('superuser_reserved_connections')::int
        - coalesce(pg_catalog.current_setting('reserved_connections', true), '0')::int,
      (select sum(s.numbackends)::int from pg_catalog.pg_stat_database s),
      d.datname, nullif(d.datconnlimit, -1),
      (select s.numbackends from pg_catalog.pg_stat_database s where s.datid = d.oid),
      r.rolname, nullif(r.rolconnlimit, -1),
      (select count(*)::int from pg_catalog.pg_stat_activity a where a.usesysid = r.oid)
    from pg_catalog.pg_database d, pg_catalog.pg_roles r
    where d.datname = pg_catalog.current_database() and r.rolname = session_user
"""
"""Reads counters of the server, which every role may read."""
RIGHTS = b"""
    with n as (select n.oid from pg_catalog.pg_namespace n where n.nspname = %b),
      c as (select c.oid, c.relname from pg_catalog.pg_class c join n on n.oid = c.relnamespace)
    select w.kind, w.name, w.privilege, case w.kind
      when 'schema' then (select pg_catalog.has_schema_privilege(n.oid, w.privilege) from n)
      when 'function' then (select pg_catalog.bool_and(pg_catalog.has_function_privilege(f.oid, w.privilege))
        from pg_catalog.pg_proc f join n on n.oid = f.pronamespace where f.proname = w.name)
      when 'sequence' then
        (select pg_catalog.has_sequence_privilege(c.oid, w.privilege) from c where c.relname = w.name)
      when 'column' then (select pg_catalog.has_column_privilege(c.oid, a.attnum, w.privilege)
        from c join pg_catalog.pg_attribute a on a.attrelid = c.oid
        where c.relname = pg_catalog.split_part(w.name, '.', 1) and a.attname = pg_catalog.split_part(w.name, '.', 2))
      else (select pg_catalog.has_table_privilege(c.oid, w.privilege) from c where c.relname = w.name) end
    from rows from (pg_catalog.unnest(%b::text[]), pg_catalog.unnest(%b::text[]), pg_catalog.unnest(%b::text[]))
      as w(kind, name, privilege)
"""
"""Reads from the catalogue, which every role may read, which rights the role has; null if there is no such object."""
PUBLIC_DEFINERS = b"""
    select f.proname::text from pg_catalog.pg_proc f join pg_catalog.pg_namespace n on n.oid = f.pronamespace
    where n.nspname = %b and f.proname = any(%b) and pg_catalog.has_function_privilege('public', f.oid, 'execute')
"""
OWNER = b"""
    select pg_catalog.pg_get_userbyid(c.relowner)::text, pg_catalog.pg_has_role(c.relowner, 'member'),
      pg_catalog.has_schema_privilege('public', n.oid, 'create')
    from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %b and c.relname = 'xq_store'
"""
FORGET_CHANGES = "select {s}.xq_forget_changes_v1(%b)"
SERVER = "select stored, cluster, life from {s}.xq_server_life_v1()"
ADOPT = (
    "update {s}.xq_cell set xid = 0 where xid <> 0",
    "update {s}.xq_conflict_key set xid = 0 where xid <> 0",
    "update {s}.xq_notification set xid = 0 where xid <> 0",
    "delete from {s}.xq_server_life",
    "delete from {s}.xq_change",
    "update {s}.xq_store set changes_from = pg_catalog.pg_current_xact_id()::text::bigint + 1",
    "update {s}.xq_store set cluster = (select v.cluster from {s}.xq_server_life_v1() v)",
)
"""Every existing row is older than all SQL transactions of this cluster."""
MAKE_DURABLE = "update {s}.xq_active set client = client where owner = %b"
"""Its durable commit makes all earlier writes durable too."""
CHECKPOINT = "select {s}.xq_checkpoint_v1(%b)"
TAKE_SNAPSHOT = "select read_pointer, excluded from {s}.xq_take_snapshot_v1()"
POINTERS = "select array(select id from {s}.xq_active where owner = %b order by id)"
STAGE = "select {s}.xq_stage_v1(%s, %b, %b, " + _WRITES + ", " + _CELLS + ", %b)"
COMMIT = "select {s}.xq_commit_v1(" + ", ".join([*["%b"] * 12, _WRITES, _CELLS, _CELLS, "%b, %b"]) + ")"
BUCKET = "((({hash} % {queue}.buckets) + {queue}.buckets) % {queue}.buckets)::int"
"""An entry's bucket in the layout of one of its readers (I8)."""
QUEUES_OF_TRANSACTION = """(
      select o.number, o.parent, o.fans_out,
        coalesce(f.layout, o.layout) as layout, coalesce(f.buckets, o.buckets) as buckets
      from {s}.xq_queue o
      left join lateral (
        select l.layout, l.buckets from {s}.xq_layout l
        where o.layout > 1 and l.queue_number = coalesce(o.parent, o.number)
          and l.ceased_id >= tx and l.closed_ms is null
        order by l.layout limit 1) f on true)"""
"""Queues in the layouts to which transaction ``tx`` adds: the oldest ones that were current when it began. So all that
it adds to a queue is in one layout, and no key in two under one sequence, although it stages its entries in parts."""
MOMENT_MS = 50
"""Maximum wait of a transaction that changes the readers of a queue: later commits wait for it."""
WAIT_BRIEFLY = f"select pg_catalog.set_config('lock_timeout', '{MOMENT_MS}', true)"
HOLD_READERS = "select {s}.xq_hold_readers_v1(%b)"
TRY_READERS = "select {s}.xq_try_readers_v1(%b)"
LAST_ID = "select coalesce(pg_catalog.pg_sequence_last_value('{s}.xq_id'), 0)"
END_LONG = "select {s}.xq_end_registration_v1(%b)"
HOLD_LONG = "select {s}.xq_hold_long_v1(%b, %b, %b)"
LOCK_KEYS = "select {s}.xq_lock_keys_v1(%b)"
EXPIRE = "select ended, failed from {s}.xq_expire_v1()"
PRUNE = "select ended, failed from {s}.xq_prune_v1(%b)"
_ENTRIES = """
    select bucket, key, seq, value from {s}.xq_entry
    where queue_number = %b and layout = %b and bucket >= %b and bucket < %b and seq <= %b and seq <> all(%b) and ?
    order by bucket, key, seq limit %b
"""
ENTRIES = _ENTRIES.replace("?", "true")
ENTRIES_AFTER = _ENTRIES.replace("?", "bucket >= %b and (bucket, key, seq) > (%b, %b, %b)")
DEAD_ENTRIES = "select pg_catalog.pg_stat_get_dead_tuples('{s}.xq_entry'::regclass)"
VACUUM_ENTRIES = "vacuum (skip_locked, index_cleanup on) {s}.xq_entry"
"""If another vacuum is running, there is nothing to wait for."""
ABORT = "select {s}.xq_abort_v1(%s, %b, %b, %s)"
REFUSE = "insert into {s}.xq_outcome values (%b, 'refused', null, " + NOW + ") on conflict do nothing"
OUTCOME = "select status, id from {s}.xq_outcome where request = %b"
HORIZON = "select horizon from {s}.xq_store"
_SPAN = "table_number = %b and (row_key, column_key, version) > (%b, %b, %b) and {span} and {seen}"
_SCAN = f"""
    select row_key, column_key, {{value}} from {{s}}.xq_cell where {_SPAN}
    order by row_key, column_key, version limit %b
"""
_SCAN_NEWEST = f"""
    select row_key, column_key, {{value}} from (
        select table_number, row_key, column_key, pg_catalog.max(version) as version from {{s}}.xq_cell where {_SPAN}
        group by table_number, row_key, column_key order by row_key, column_key limit %b) k
    cross join lateral (
        select value from {{s}}.xq_cell c
        where c.table_number = k.table_number and c.row_key = k.row_key and c.column_key = k.column_key
          and c.version = k.version offset 0) newest
    order by row_key, column_key
"""
"""``distinct on`` would sort the versions of each cell with their values, in workers that are started for each page.
This one reads them in the order of the index, and ``offset 0`` keeps the planner from reading the whole table."""


def in_schema(schema: str, statement: str) -> bytes:
    """Fill in the schema of a statement."""
    return statement.format(s=quoted(schema)).encode()


def prepared(name: str, statement: str) -> Prepared:
    """Give a statement the server's own placeholders and a unique name under which it can be prepared."""
    numbers = itertools.count(1)
    text = re.sub("%[bs]", lambda _: f"${next(numbers)}", statement).encode()
    return Prepared(f"{name}_{xxhash.xxh64_hexdigest(text)}".encode(), text)


def read_cell(predicate: str) -> str:
    """Return the statement that reads the horizon and the newest version of one cell that satisfies a predicate.

    Its arguments are table number, row and column, then those of the predicate.
    """
    return f"""
        select s.horizon, c.version, c.value
        from {{s}}.xq_store s left join (
            select version, value from {{s}}.xq_cell
            where table_number = %b and row_key = %b and column_key = %b and {predicate}
            order by version desc limit 1) c on true
    """


def read_cells(predicate: str) -> str:
    """Return the same statement for many cells of one table, with their positions, counted from 1.

    Its arguments are arrays of rows and of columns, and the table number, then those of the predicate.
    """
    return f"""
        select (select horizon from {{s}}.xq_store), w.place, c.version, c.value
        from unnest(%b, %b) with ordinality as w(r, k, place)
        left join lateral (
            select version, value from {{s}}.xq_cell
            where table_number = %b and row_key = w.r and column_key = w.k and {predicate}
            order by version desc limit 1) c on true
    """


def seen_by(snapshot: AnySnapshot, *, exactly: bool) -> tuple[str, tuple[int | BigintArray, ...]]:
    """Return the predicate of what a snapshot sees, and its arguments.

    :param exactly: whether it leaves out the excluded ids. There may be thousands, so if few versions are read, it is
        faster to read without them first.
    """
    if isinstance(snapshot, ServerSnapshot):
        ended = (snapshot.xmax, BigintArray.of(snapshot.xip))
        return (BY_SERVER_AND_IDS, (*ended, BigintArray.of(snapshot.excluded))) if exactly else (BY_SERVER, ended)
    if exactly or snapshot.write_pointers:
        own, excluded = BigintArray.of(snapshot.write_pointers), BigintArray.of(snapshot.excluded)
        return BY_IDS, (own, snapshot.read_pointer, excluded)
    return UP_TO, (snapshot.read_pointer,)


def scan(
    schema: str, scan: Scan, seen: str, seen_arguments: Sequence[int | BigintArray]
) -> tuple[bytes, list[int | bytes | BigintArray | ByteaArray]]:
    """Return the statement of a scan and its arguments.

    :param seen: the predicate of :func:`seen_by`, whose arguments follow.
    """
    arguments: list[int | bytes | BigintArray | ByteaArray] = [] if scan.expired is None else [scan.expired]
    arguments += [scan.table, *scan.after]
    conditions = ["true"]
    if scan.span.end_row is not None:
        conditions.append("row_key < %b")
        arguments.append(scan.span.end_row)
    if scan.span.columns:
        conditions.append("column_key = any(%b)")
        arguments.append(ByteaArray.of(scan.span.columns))
    value = "value" if scan.expired is None else "case when version > %b then value end"
    statement = _SCAN_NEWEST if scan.newest else _SCAN
    text = statement.format(s=schema, value=value, span=" and ".join(conditions), seen=seen)
    return text.encode(), [*arguments, *seen_arguments, scan.limit]


SEND_HINTS = """
    select pg_catalog.count(*) filter (where h.sent), pg_catalog.set_config('synchronous_commit', 'off', true)
    from rows from (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::int[]), pg_catalog.unnest(%s::int[]))
      as k(channel, a, b)
    cross join lateral (
      select case when pg_catalog.pg_try_advisory_xact_lock(k.a, k.b) then false
                  else pg_catalog.pg_notify(k.channel, '')::text is not null end as sent) as h
"""
"""Sends a hint to each channel with a listener, which holds the lock of the channel's two numbers. If there is none,
nothing is written. What is written needs no flush."""
LISTEN_LOCK = "select pg_catalog.pg_advisory_lock_shared(%s, %s)"
"""Shows until the end of the session that somebody listens."""
