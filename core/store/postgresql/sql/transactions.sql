-- The transaction steps of a PostgreSQL store, one call each. {s} is the quoted schema, {now} the store's clock.
-- How ids are drawn, and registered without a row, is in ids_by_locks.sql.
-- Each name contains a version: a later release adds functions and leaves these to running clients.
-- Each function sets its search_path, so nothing that somebody creates in a schema of the caller's path is called.
-- Only the owner may create functions in the store's own schema; the doctor checks that.
-- force_generic_plan: planning again at each call never found another plan.
-- Errors: XQ001 conflict, XQ002 registration lost, XQ003 too late, XQ004 refused before,
--         XQ005 idempotency key has committed, XQ006 snapshot too old, XQ007 wrong isolation level,
--         XQ008 another store, XQ009 commits are not durable, XQ010 added to a subscription itself,
--         XQ011 a first load that is not missing,
--         XQ013 a first load whose subscription was removed, XQ014 files of a layout that is closed,
--         XQ015 keys of a long transaction may have two entries.

-- A standby does not show registrations, so its snapshots would be wrong.
create or replace function {s}.xq_require_primary_v1() returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $body$
begin
  if pg_is_in_recovery() then
    raise exception using errcode = '25006', message = 'the server is a standby';
  end if;
end $body$;

-- Returns whether clean-up met the clock near its present time some minutes ago, so that it has not just stepped.
create or replace function {s}.xq_has_clock_stayed_v1() returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  return exists (
    select 1 from {s}.xq_low_watermark m where m.at_ms between {now} - {hour} / 1000000 and {now} - {stayed_ms});
end $body$;

-- registration: 'transaction' by a lock of the user's SQL transaction, 'row' by an active row, which any session may
-- end, 'rows' by one for each write pointer; registration.py chooses.
-- relaxed: a start need not be durable. Its id must never be drawn again, which the clock in it ensures. Never in a
-- user's SQL transaction, which would lose its durability.
-- first_*: a cell to read in the new snapshot.
create or replace function {s}.xq_start_v1(
  kind text, registration text, relaxed boolean, request uuid, timeout_ms bigint, client text,
  first_table bigint, first_row bytea, first_column bytea,
  out id bigint, out excluded bigint[], out deadline_ms bigint, out found_version bigint, out found_value bytea)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $body$
declare
  low bigint;
  horizon bigint;
  setting text;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = 'XQ007', message = current_setting('transaction_isolation');
  end if;
  if relaxed then
    setting := set_config('synchronous_commit', 'off', true);
  end if;
  select d.id, d.excluded into id, excluded from {s}.xq_draw_v1(true, true) d;
  low := coalesce(excluded[1], id);
  deadline_ms := {now} + timeout_ms;
  if registration in ('row', 'rows') then
    insert into {s}.xq_active (id, request, kind, started_ms, deadline_ms, low, owner, client)
    values (id, request, kind, {now}, deadline_ms, low, id, client);
  end if;
  if first_table is not null then
    -- A new statement, hence a new SQL snapshot after the lists.
    select s.horizon, c.version, c.value into horizon, found_version, found_value
      from {s}.xq_store s left join (
        select e.version, e.value from {s}.xq_cell e
        where e.table_number = first_table and e.row_key = first_row and e.column_key = first_column
          and e.version < id and e.version <> all(excluded)
        order by e.version desc limit 1) c on true;
    if low < horizon then
      raise exception using errcode = 'XQ006', message = 'snapshot too old',
        detail = format('snapshot reaches down to %s, clean-up has reached %s', low, horizon);
    end if;
  end if;
end $body$;

-- Starts a first load, a mirror, or what adds to some queues only. That is recorded at once: a process that is killed
-- afterwards leaves what the next one of its kind replaces, and not a long transaction for which everybody waits until
-- its time-out.
create or replace function {s}.xq_start_limited_v1(
  registration text, relaxed boolean, request uuid, timeout_ms bigint, client text, subscription bigint,
  mirrored text, only_queues text,
  out id bigint, out excluded bigint[], out deadline_ms bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $body$
begin
  select b.id, b.excluded, b.deadline_ms into id, excluded, deadline_ms
    from {s}.xq_start_v1('long', registration, relaxed, request, timeout_ms, client, null, null, null) b;
  update {s}.xq_active a set load = subscription, mirrors = mirrored, queues = only_queues
    where a.id = xq_start_limited_v1.id;
end $body$;

-- Draws another write pointer of a long transaction. No greater id is drawn before its row is visible: a lock instead
-- of the row would not show whether the transaction has ended since. The caller makes the row durable in a separate
-- call, so that the gate is not held during a flush.
create or replace function {s}.xq_checkpoint_v1(tx bigint) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $body$
declare
  pointer bigint;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = 'XQ007', message = current_setting('transaction_isolation');
  end if;
  perform set_config('synchronous_commit', 'off', true);
  perform {s}.xq_hold_registration_v1(tx);
  perform {s}.xq_hold_gate_v1();
  pointer := ({s}.xq_draw_v1(false, false)).id;
  insert into {s}.xq_active (id, request, kind, started_ms, deadline_ms, low, owner, client)
    select pointer, a.request, a.kind, a.started_ms, a.deadline_ms, a.low, a.owner, a.client
    from {s}.xq_active a where a.id = tx;
  return pointer;
end $body$;

-- Commit, abort and sweep delete a transaction's first row before all others, so nothing is staged after them.
create or replace function {s}.xq_hold_registration_v1(tx bigint) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  perform 1 from {s}.xq_active a where a.id = tx for share;
  if not found then
    raise exception using errcode = 'XQ002', message = 'transaction has ended';
  end if;
end $body$;

-- Ends a long transaction's registration; returns its write pointers, its id first, or null if it has already ended.
create or replace function {s}.xq_end_registration_v1(tx bigint) returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
declare
  others bigint[];
begin
  delete from {s}.xq_active a where a.id = tx;
  if not found then
    return null;
  end if;
  -- A new statement, since the one above has waited for checkpoints in progress.
  with gone as (delete from {s}.xq_active a where a.owner = tx returning a.id)
    select array_agg(g.id order by g.id) into others from gone g;
  return tx || coalesce(others, '{}');
end $body$;

-- Checks that rows are written into the store that their writer knows. Numbers of queues and tables are never used
-- again, so a store that was restored to an earlier state, or created again, does not have the writer's later numbers.
-- Entries are added to queues and reach their subscriptions; only a first load adds to its subscription.
create or replace function {s}.xq_require_store_v1(store text, queues bigint[], tables bigint[], load bigint) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $body$
declare
  subscription text;
begin
  if store <> (select s.store_id from {s}.xq_store s)
    or cardinality(queues) > 0 and exists (
      select 1 from unnest(queues) as n(n) where not exists (
        select 1 from {s}.xq_queue q where q.number = n.n and (load is null and q.parent is null or q.number = load)))
    or cardinality(tables) > 0 and exists (
      select 1 from unnest(tables) as n(n) where not exists (select 1 from {s}.xq_table t where t.number = n.n))
  then
    select q.id into subscription from {s}.xq_queue q
      where q.number = any(queues) and q.parent is not null and q.number is distinct from load limit 1;
    if found then
      raise exception using errcode = 'XQ010', message = subscription;
    end if;
    if store = (select s.store_id from {s}.xq_store s)
      and load is not null and not exists (select 1 from {s}.xq_queue q where q.number = load)
    then
      raise exception using errcode = 'XQ013', message = 'the subscription of the first load was removed';
    end if;
    raise exception using errcode = 'XQ008', message = 'another store';
  end if;
end $body$;

-- Returns the queues whose readers determine where entries go: for a first load, the queue of its subscription.
create or replace function {s}.xq_queues_to_hold_v1(queues bigint[], load bigint) returns bigint[]
language plpgsql stable set search_path = pg_catalog, pg_temp as $body$
begin
  if load is null then
    return queues;
  end if;
  return array(select q.parent from {s}.xq_queue q where q.number = load);
end $body$;

-- Publishes the entries that a long transaction has staged for queues with subscriptions or a state: the current readers
-- get them, whichever existed when they were staged. Called by the commit once the readers are locked.
create or replace function {s}.xq_publish_staged_v1(tx bigint, queues bigint[]) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  if not exists (
    select 1 from {s}.xq_queue q where q.number = any(queues) and (q.fans_out or q.history_ms is not null))
  then
    return;
  end if;
  -- Both without the readers: if they were joined first, each staged entry would be looked up among all of its queue.
  with s as materialized (
    delete from {s}.xq_entry e using {s}.xq_staged_entry g
      where g.id = tx and g.hash is not null and e.queue_number = g.queue_number and e.layout = g.layout
        and e.bucket = g.bucket and e.key = g.key and e.seq = tx
      returning e.queue_number, e.key, e.value, g.hash)
  insert into {s}.xq_entry (queue_number, layout, bucket, key, seq, value)
    select r.number, r.layout, {bucket_of_staged}, s.key, tx, s.value
    from s join {queues_of_tx} r on r.parent = s.queue_number;
  -- The state of a queue without subscriptions gets what was staged for the queue itself.
  with s as materialized (
    select e.queue_number, e.layout, e.bucket, e.key, e.value from {s}.xq_staged_entry g
      join {s}.xq_entry e on e.queue_number = g.queue_number and e.layout = g.layout
        and e.bucket = g.bucket and e.key = g.key and e.seq = tx
      where g.id = tx and g.hash is null)
  insert into {s}.xq_entry (queue_number, layout, bucket, key, seq, value)
    select r.number, s.layout, s.bucket, s.key, tx, s.value from s join {s}.xq_queue r on r.parent = s.queue_number;
end $body$;

-- Begins the staging of segments: the transaction stays in progress, and the readers of its queues do not change.
create or replace function {s}.xq_hold_long_v1(store text, tx bigint, queues bigint[]) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $body$
declare
  load bigint;
begin
  select a.load into load from {s}.xq_active a where a.id = tx;
  if not found then  -- without its row, a first load would be refused as one that adds to a subscription
    raise exception using errcode = 'XQ002', message = 'transaction has ended';
  end if;
  if cardinality(queues) > 0 then
    perform {s}.xq_hold_readers_v1({s}.xq_queues_to_hold_v1(queues, load));
  end if;
  perform {s}.xq_require_store_v1(store, queues, '{}', load);
  perform {s}.xq_hold_registration_v1(tx);
end $body$;

-- Publishes the segments of a long transaction to the current readers, or to the subscription of a first load. Called
-- by the commit once the readers are locked.
create or replace function {s}.xq_publish_segments_v1(tx bigint) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  if exists (
    select 1 from {s}.xq_segment g join {s}.xq_queue q on q.number = g.queue_number
    where g.transaction_id = tx and g.layout <> q.layout and not exists (
      select 1 from {s}.xq_layout l
      where l.queue_number = coalesce(q.parent, q.number) and l.layout = g.layout and l.closed_ms is null))
  then
    raise exception using errcode = 'XQ014', message = 'files of a layout that is closed';
  end if;
  insert into {s}.xq_segment_reader (queue_number, transaction_id, number)
    select q.number, g.transaction_id, g.number
    from {s}.xq_segment g
    join {s}.xq_queue q on not q.fans_out and (q.number = g.queue_number or q.parent = g.queue_number)
    where g.transaction_id = tx and g.entries > 0;
end $body$;

-- Stages cells under the newest write pointer, which another process may have made, and entries under the id; returns
-- all pointers. If a later flush has written some of the same rows, or a checkpoint was made after the flush drew its
-- number, nothing is written and the result is null: a process that is still alive draws another number.
-- Entries of a queue with subscriptions stay under the queue's own number, in layout and bucket 0, until the commit.
-- load: the subscription whose first load this is.
create or replace function {s}.xq_stage_v1(
  store text, tx bigint, flush bigint, keys bytea[],
  cell_table bigint[], cell_row bytea[], cell_column bytea[], cell_value bytea[],
  entry_queue bigint[], entry_hash bigint[], entry_key bytea[], entry_value bytea[],
  notify_table bigint[], notify_row bytea[], notify_column bytea[], load bigint)
returns bigint[]
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $body$
declare
  pointers bigint[];
  pointer bigint;
  taken bigint;
begin
  if cardinality(entry_queue) > 0 then
    perform {s}.xq_hold_readers_v1({s}.xq_queues_to_hold_v1(entry_queue, load));
  end if;
  perform {s}.xq_require_store_v1(store, entry_queue, cell_table || notify_table, load);
  perform {s}.xq_hold_registration_v1(tx);
  pointers := array(select a.id from {s}.xq_active a where a.owner = tx order by a.id);
  pointer := greatest(tx, pointers[cardinality(pointers)]);
  if flush < pointer then
    return null;
  end if;
  if cardinality(entry_queue) > 0 then
    update {s}.xq_load set stagings = stagings + 1 where transaction_id = tx;  -- first, as in stagings of files
  end if;
  insert into {s}.xq_staged_key (id, key) select pointer, k from unnest(keys) k on conflict do nothing;
  insert into {s}.xq_staged_cell as o (id, table_number, row_key, column_key, flush)
    select pointer, c.n, c.r, c.k, xq_stage_v1.flush from unnest(cell_table, cell_row, cell_column) as c(n, r, k)
    on conflict on constraint xq_staged_cell_pkey do update set flush = excluded.flush where o.flush < excluded.flush;
  get diagnostics taken = row_count;
  if taken < cardinality(cell_table) then
    return null;
  end if;
  insert into {s}.xq_staged_entry as o (id, queue_number, layout, bucket, key, flush, hash)
    select tx, q.number, case when q.fans_out then 0 else q.layout end,
      case when q.fans_out then 0 else {bucket} end, e.k, xq_stage_v1.flush, case when q.fans_out then e.h end
    from unnest(entry_queue, entry_hash, entry_key) as e(q, h, k) join {queues_of_tx} q on q.number = e.q
    on conflict on constraint xq_staged_entry_pkey do update set flush = excluded.flush where o.flush < excluded.flush;
  get diagnostics taken = row_count;
  if taken < cardinality(entry_queue) then
    return null;
  end if;
  insert into {s}.xq_cell (table_number, row_key, column_key, version, value)
    select c.n, c.r, c.k, pointer, c.v from unnest(cell_table, cell_row, cell_column, cell_value) as c(n, r, k, v)
    on conflict on constraint xq_cell_pkey do update set value = excluded.value;
  insert into {s}.xq_entry (queue_number, layout, bucket, key, seq, value)
    select q.number, case when q.fans_out then 0 else q.layout end, case when q.fans_out then 0 else {bucket} end,
      e.k, tx, e.v
    from unnest(entry_queue, entry_hash, entry_key, entry_value) as e(q, h, k, v)
    join {queues_of_tx} q on q.number = e.q
    on conflict on constraint xq_entry_pkey do update set value = excluded.value;
  -- As with all rows of this id, no snapshot sees it before the commit.
  insert into {s}.xq_notification select n.n, n.r, n.k, pointer
    from unnest(notify_table, notify_row, notify_column) as n(n, r, k) on conflict do nothing;
  return pointers;
end $body$;

-- Deletes rows that a long transaction has staged, and returns how many: only one in progress has rows in
-- xq_staged_entry.
create or replace function {s}.xq_unstage_v1(
  tx bigint, queue bigint, layouts int[], buckets int[], keys bytea[], flushes bigint[]) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $body$
declare
  deleted bigint;
begin
  with staged as (
    delete from {s}.xq_staged_entry s using unnest(layouts, buckets, keys, flushes) as w(l, b, k, f)
      where s.id = tx and s.queue_number = queue and s.layout = w.l and s.bucket = w.b and s.key = w.k and s.flush = w.f
      returning s.layout, s.bucket, s.key),
  entries as (
    delete from {s}.xq_entry e using staged s
      where e.queue_number = queue and e.layout = s.layout and e.bucket = s.bucket and e.key = s.key and e.seq = tx)
  select count(*) into deleted from staged;
  return deleted;
end $body$;

-- Empties segments of a long transaction in progress that still have as many entries as their caller knows; returns how
-- many.
create or replace function {s}.xq_empty_segments_v1(tx bigint, numbers int[], known bigint[]) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $body$
declare
  emptied bigint;
begin
  perform {s}.xq_hold_registration_v1(tx);
  update {s}.xq_segment g set entries = 0, bytes = 0 from unnest(numbers, known) as w(n, e)
    where g.transaction_id = tx and g.number = w.n and g.entries = w.e;
  get diagnostics emptied = row_count;
  return emptied;
end $body$;

-- Begins the commit of a bound transaction, whose writes become visible at the end of the user's SQL transaction. Locks
-- its conflict keys and the keys of its entries, and refuses nothing: another bound transaction with one of the keys waits
-- here for that end. So for every key, numbers that are drawn afterwards are in the order of the commits.
create or replace function {s}.xq_lock_keys_v1(keys bytea[]) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $body$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = 'XQ007', message = current_setting('transaction_isolation');
  end if;
  -- Writer and xid 0: a key that was only locked refuses no commit.
  insert into {s}.xq_conflict_key as o select k.k, 0, 0 from unnest(keys) as k(k) order by k.k
    on conflict on constraint xq_conflict_key_pk do update set writer = o.writer;
end $body$;

-- The commit. Its correctness depends on the order of its steps.
-- registration: as at the start, or 'commit': the id is drawn here. low is null if the transaction never read.
-- started: the id of its snapshot if that differs from tx: in a bound transaction, whose tx is drawn after its keys are
-- locked.
-- server_xmax, server_xip: the server's snapshot in which it read, without the ids in excluded; server_xmax is null if
-- its snapshot is made of ids.
-- load: as in staging.
create or replace function {s}.xq_commit_v1(
  store text, registration text, request uuid, tx bigint, excluded bigint[], low bigint,
  server_xmax bigint, server_xip bigint[], deadline bigint,
  idempotency_key text, generation int, result text, keys bytea[],
  cell_table bigint[], cell_row bytea[], cell_column bytea[], cell_value bytea[],
  entry_queue bigint[], entry_hash bigint[], entry_key bytea[], entry_value bytea[],
  notify_table bigint[], notify_row bytea[], notify_column bytea[],
  seen_table bigint[], seen_row bytea[], seen_column bytea[], started bigint, load bigint)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $body$
#variable_conflict use_variable
declare
  pointers bigint[];
  newest bigint;  -- the last pointer: each later commit must have a greater id than any version written here
  lost text;
  queues bigint[];
  k bytea;
  named bigint;
  decided record;
  offender record;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = 'XQ007', message = current_setting('transaction_isolation');
  end if;

  if current_setting('synchronous_commit') = 'off' then
    raise exception using errcode = 'XQ009', message = 'synchronous_commit is off';
  end if;

  -- 1. The registration is checked, or made now.
  if registration = 'commit' then
    tx := ({s}.xq_draw_v1(true, false)).id;
  elsif registration in ('row', 'rows') then
    pointers := {s}.xq_end_registration_v1(tx);
    if pointers is null then
      raise exception using errcode = 'XQ002', message = 'transaction has ended';
    end if;
  else
    lost := coalesce({s}.xq_registration_fault_v1(tx), case when started <> tx then {s}.xq_registration_fault_v1(started) end);
    if lost is not null then
      raise exception using errcode = 'XQ002', message = lost;
    end if;
  end if;
  if registration <> 'commit' and exists (select 1 from {s}.xq_invalid i where i.id = tx) then
    raise exception using errcode = 'XQ002', message = 'transaction has become invalid';
  end if;
  newest := coalesce(pointers[cardinality(pointers)], tx);

  -- 2. The outcome, before the deadline and the keys, so that a repeated call meets neither, nor its own writes.
  insert into {s}.xq_outcome values (request, 'committed', tx, {now}) on conflict do nothing;
  if not found then
    select o.status, o.id into decided from {s}.xq_outcome o where o.request = xq_commit_v1.request;
    if decided.status = 'committed' then
      return decided.id;
    end if;
    raise exception using errcode = 'XQ004', message = 'refused before';
  end if;

  -- 3. The deadline, by the store's clock.
  if low is not null and {now} > deadline then
    raise exception using errcode = 'XQ003', message = 'deadline has passed';
  end if;
  if idempotency_key is not null then
    insert into {s}.xq_idempotency values (idempotency_key, generation, tx, result, {now}, null) on conflict do nothing;
    if not found then
      raise exception using errcode = 'XQ005', message = 'idempotency key has committed';
    end if;
  end if;

  -- 4. First committer wins. A transaction that never read starts here: only ids must follow commits.
  if registration = 'rows' then
    keys := array(
      select u.k
      from (select unnest(keys) as k union select s.key from {s}.xq_staged_key s where s.id = any(pointers)) u
      order by u.k);
  end if;
  -- Key by key: an update of an existing row writes less than an insert that finds it. The keys ascend, so two commits
  -- cannot deadlock.
  foreach k in array keys loop
    loop
      update {s}.xq_conflict_key o set writer = newest, xid = default
        where o.key = k and o.writer < coalesce(started, tx) and case
          when server_xmax is null then low is null or o.writer < low or o.writer <> all(excluded)
          else o.xid < server_xmax and o.xid <> all(server_xip) end;
      exit when found;
      insert into {s}.xq_conflict_key values (k, newest) on conflict do nothing;
      exit when found;
      -- This transaction may not follow the writer of the row, unless the row was added or deleted between the two.
      select o.writer into offender from {s}.xq_conflict_key o
        where o.key = k and (o.writer >= coalesce(started, tx) or case
          when server_xmax is null then low is not null and o.writer >= low and o.writer = any(excluded)
          else o.xid >= server_xmax or o.xid = any(server_xip) end);
      if found then
        -- After its first byte, a key holds the number of its table or queue.
        named := ('x' || encode(substr(k, 2, 8), 'hex'))::bit(64)::bigint;
        raise exception using errcode = 'XQ001', message = 'conflict',
          detail = json_build_object(
            'key', encode(k, 'hex'), 'writer', offender.writer, 'transaction', tx,
            'name', case when get_byte(k, 0) = ascii('q')
              then (select q.id from {s}.xq_queue q where q.number = named)
              else (select t.name from {s}.xq_table t where t.number = named) end)::text;
      end if;
    end loop;
  end loop;

  -- 5. Cells, entries, notifications. Only a long transaction may have written the same ones before.
  if registration = 'rows' then
    -- One entry is published per key. Step 1 has waited for stagings in progress.
    if exists (select 1 from {s}.xq_load l where l.transaction_id = tx and l.checked < l.stagings) and (
      exists (select 1 from {s}.xq_segment g where g.transaction_id = tx
              group by g.queue_number, g.first_bucket having min(g.add_order) < max(g.add_order))
      or exists (select 1 from {s}.xq_staged_entry e where e.id = tx and e.queue_number in (
        select g.queue_number from {s}.xq_segment g where g.transaction_id = tx)))
    then
      raise exception using errcode = 'XQ015', message = 'a key may have two entries';
    end if;
    insert into {s}.xq_cell select c.n, c.r, c.k, tx, c.v
      from unnest(cell_table, cell_row, cell_column, cell_value) as c(n, r, k, v)
      on conflict on constraint xq_cell_pkey do update set value = excluded.value;
    queues := {s}.xq_queues_to_hold_v1(
      array(
        select s.queue_number from {s}.xq_staged_entry s where s.id = tx
        union select g.queue_number from {s}.xq_segment g where g.transaction_id = tx) || entry_queue, load);
    perform {s}.xq_hold_readers_v1(queues);
    perform {s}.xq_publish_segments_v1(tx);
    if load is null then
      perform {s}.xq_publish_staged_v1(tx, queues);
    else
      update {s}.xq_queue q set first_load = 'made', first_load_seq = tx
        where q.number = load and q.first_load in ('missing', 'waived');
      if not found then
        perform {s}.xq_require_store_v1(store, array[load], '{}', load);  -- it may be removed
        raise exception using errcode = 'XQ011', message = 'the first load is not missing';
      end if;
    end if;
    insert into {s}.xq_entry select q.number, q.layout, {bucket}, e.k, tx, e.v
      from unnest(entry_queue, entry_hash, entry_key, entry_value) as e(q, h, k, v)
      join {queues_of_tx} q on not q.fans_out and e.q = case when load is null then coalesce(q.parent, q.number) else q.number end
      on conflict on constraint xq_entry_pkey do update set value = excluded.value;
  else
    if cardinality(cell_table) > 0 then
      insert into {s}.xq_cell select c.n, c.r, c.k, tx, c.v
        from unnest(cell_table, cell_row, cell_column, cell_value) as c(n, r, k, v);
    end if;
    if cardinality(entry_queue) > 0 then
      perform {s}.xq_hold_readers_v1(entry_queue);
      -- A new statement, hence a new SQL snapshot, with the readers that can no longer change.
      insert into {s}.xq_entry select q.number, q.layout, {bucket}, e.k, tx, e.v
        from unnest(entry_queue, entry_hash, entry_key, entry_value) as e(q, h, k, v)
        join {s}.xq_queue q on coalesce(q.parent, q.number) = e.q and not q.fans_out;
    end if;
  end if;
  if cardinality(notify_table) > 0 then
    insert into {s}.xq_notification select n.n, n.r, n.k, tx
      from unnest(notify_table, notify_row, notify_column) as n(n, r, k) on conflict do nothing;
  end if;
  if cardinality(seen_table) > 0 then
    -- Only those that this transaction saw. A notification that an older one sets meanwhile stays.
    delete from {s}.xq_notification d using unnest(seen_table, seen_row, seen_column) as n(n, r, k)
      where d.table_number = n.n and d.row_key = n.r and d.column_key = n.k
        and d.version <> all(excluded) and case
          when server_xmax is null then d.version < coalesce(started, tx)
          else d.xid < server_xmax and d.xid <> all(server_xip) end;
  end if;
  if registration = 'rows' then
    delete from {s}.xq_staged_key s where s.id = any(pointers);
    delete from {s}.xq_staged_cell s where s.id = any(pointers);
    delete from {s}.xq_staged_entry s where s.id = any(pointers);
  end if;

  perform {s}.xq_require_store_v1(store, entry_queue, cell_table || notify_table || seen_table, load);

  -- 6. The horizon, in a statement after the checks: a purge that removed a key raised it, and 4 waited for that.
  if low < (select s.horizon from {s}.xq_store s) then
    raise exception using errcode = 'XQ006', message = 'snapshot too old';
  end if;
  return tx;
end $body$;

-- Deletes the rows that were staged under a write pointer.
create or replace function {s}.xq_rollback_v1(pointer bigint) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  delete from {s}.xq_cell c using {s}.xq_staged_cell s
    where s.id = pointer and c.table_number = s.table_number and c.row_key = s.row_key
      and c.column_key = s.column_key and c.version = pointer;
  delete from {s}.xq_entry e using {s}.xq_staged_entry s
    where s.id = pointer and e.queue_number = s.queue_number and e.layout = s.layout
      and e.bucket = s.bucket and e.key = s.key and e.seq = pointer;
  delete from {s}.xq_notification n using {s}.xq_observed o  -- uses the index: a notification is on an observed column
    where n.table_number = o.table_number and n.column_key = o.column_key and n.version = pointer;
  delete from {s}.xq_staged_key s where s.id = pointer;
  delete from {s}.xq_staged_cell s where s.id = pointer;
  delete from {s}.xq_staged_entry s where s.id = pointer;
  delete from {s}.xq_segment g where g.transaction_id = pointer;  -- its files are clean-up's
end $body$;

-- Returns whether something of the store is under one of some ids. That reads whole tables: few transactions are swept
-- before they abort, and then leave something to their participants.
create or replace function {s}.xq_is_any_used_v1(ids bigint[]) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  return exists (select 1 from {s}.xq_active a where a.id = any(ids))
    or exists (select 1 from {s}.xq_outcome o where o.id = any(ids))
    or exists (select 1 from {s}.xq_segment g where g.transaction_id = any(ids))
    or exists (select 1 from {s}.xq_entry e where e.seq = any(ids))
    or exists (select 1 from {s}.xq_cell c where c.version = any(ids));
end $body$;

-- Forgets an id and what was staged under it. kept: write pointers that become invalid permanently in the same SQL
-- transaction, since the participants in left_to could not undo what they wrote under them; null if there are none. Ids
-- of others, and those that have committed, are refused: everybody would lose sight of what was committed under them.
create or replace function {s}.xq_abort_v1(registration text, tx bigint, kept bigint[], holders text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $body$
declare
  pointer bigint;
  others bigint[];
begin
  if kept is not null then
    others := array(
      select k.id from unnest(kept) as k(id)
      where not exists (select 1 from {s}.xq_active a where a.id = k.id and a.owner = tx)
        and not exists (select 1 from {s}.xq_invalid i where i.id = k.id));
    -- A sweep has ended the transaction, so there is nothing under its ids. An id that is still in progress was drawn by
    -- somebody else. The locks come first: a commit is visible before its lock is free.
    if cardinality(others) > 0 and (
      exists (select 1 from unnest(others) as k(id) where k.id > coalesce(pg_sequence_last_value('{s}.xq_id'), 0))
      or exists (select 1 from {s}.xq_locked_id v where v.id = any(others))
      or {s}.xq_is_any_used_v1(others))
    then
      raise exception using errcode = 'XQ002', message = 'an id is of another transaction, or has committed';
    end if;
    insert into {s}.xq_invalid as i (id, since_ms, left_to) select k.id, {now}, holders from unnest(kept) as k(id)
      on conflict on constraint xq_invalid_pkey do update set left_to = holders;  -- a sweep may have inserted it
  end if;
  if registration = 'row' then
    if kept is null then
      perform set_config('synchronous_commit', 'off', true);  -- if it is lost, a sweep deletes the row
    end if;
    -- If a row is locked, another commit or sweep is ending it; nothing was staged.
    with own as (select l.id from {s}.xq_active l where l.id = tx for update skip locked)
      delete from {s}.xq_active a using own where a.owner = own.id;
  elsif registration = 'rows' then
    foreach pointer in array coalesce({s}.xq_end_registration_v1(tx), '{}') loop
      perform {s}.xq_rollback_v1(pointer);
    end loop;
  end if;
end $body$;

-- Makes transactions past their deadline invalid. failed: the first error of a transaction that could not be ended,
-- which does not keep others from being ended. A long transaction with a time-out of hours is only recorded when it is
-- first found late, and ended if it still is some minutes later, since the clock may be ahead for a moment.
create or replace function {s}.xq_expire_v1(out ended bigint, out failed text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $body$
declare
  late bigint[];
  tx bigint;
begin
  ended := 0;
  with found as (
    select a.id from {s}.xq_active a
    where a.deadline_ms < {now} and a.id = a.owner and a.kind = 'long' and a.deadline_ms - a.started_ms >= {slow_ms}
      and (a.late_ms is null or a.late_ms > {now}) for update skip locked)
  update {s}.xq_active a set late_ms = {now} from found f where a.id = f.id;
  -- First the locks, then, in a new statement, all rows: there may have been a checkpoint in between.
  late := array(select a.id from {s}.xq_active a
                where a.deadline_ms < {now} and a.id = a.owner
                  and (a.kind <> 'long' or a.deadline_ms - a.started_ms < {slow_ms}
                       or a.late_ms <= {now} - {stayed_ms}) for update skip locked);
  foreach tx in array late loop
    begin
      with gone as (delete from {s}.xq_active a where a.owner = tx returning a.id, a.kind)
        insert into {s}.xq_invalid (id, since_ms)
        select g.id, {now} from gone g where g.kind = 'long'  -- others have staged nothing and are only forgotten
        on conflict do nothing;
      ended := ended + 1;
    exception when others then
      failed := coalesce(failed, format('transaction %s: %s', tx, sqlerrm));
    end;
  end loop;
end $body$;

-- Deletes the rows of invalid transactions and forgets their ids.
create or replace function {s}.xq_prune_v1(most bigint, out ended bigint, out failed text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $body$
declare
  i bigint;
begin
  ended := 0;
  for i in select v.id from {s}.xq_invalid v
           where v.left_to is null order by v.id limit most for update skip locked loop
    begin
      perform {s}.xq_rollback_v1(i);
      delete from {s}.xq_invalid v where v.id = i;
      ended := ended + 1;
    exception when others then
      failed := coalesce(failed, format('transaction %s: %s', i, sqlerrm));
    end;
  end loop;
end $body$;
