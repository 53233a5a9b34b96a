-- Ids from a sequence. An id that is drawn in a commit is registered by an advisory lock of its SQL transaction, an
-- earlier one by a row. Until that row is visible, such a lock replaces it, or the gate at a checkpoint.
-- The key of an id's lock is the id XOR the store's {mask}; the gate's key is the mask itself. So the locks of
-- applications are neither waited for nor read as ids.

-- The ids whose locks are held in this database. They include the keys of applications, which look like any number, so
-- each reader has its own bounds.
do $body$
begin
  -- Checked first: replacing it would wait for all calls that draw an id.
  if to_regclass('{s}.xq_locked_id') is null then
    create view {s}.xq_locked_id as
      select ((l.classid::bigint << 32) | l.objid::bigint) # {mask} as id, l.pid
      from pg_locks l
      where l.locktype = 'advisory' and l.objsubid = 1 and l.granted
        and l.database = (select d.oid from pg_database d where d.datname = current_database());
  end if;
end $body$;

-- Returns whether an id up to the last one is in progress; called under the gate. A lock counts until it is free.
create or replace function {s}.xq_any_registered_v1(last bigint) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  return exists (select 1 from {s}.xq_active)
    or exists (select 1 from {s}.xq_locked_id v where v.id <= last and v.id > greatest(last - {lock_window}, 0));
end $body$;

-- Draws an id, registers it, and lists the ids that its snapshot excludes, all under the gate: no later start
-- commits before the list is complete, so all snapshots agree on the order of all commits.
-- The gate is a session lock that is freed in the same call: a lock of the SQL transaction would be held during the
-- flush.
-- registered: whether to register it by a lock of the SQL transaction. If not, the caller holds the gate.
-- Drawing the next number of a sequence is cheaper than setting one, so ids may lag the clock by {lag}. If the clock is
-- more than {hour} ahead, it has stepped, or nothing was drawn for so long. While an id is in progress, ids advance by
-- {hour} at most, unless clean-up has met the clock there before. They do not follow the clock at all if the lock of a
-- registered id would come near the end of the window in which locks are listed.
create or replace function {s}.xq_draw_v1(registered boolean, lists boolean, out id bigint, out excluded bigint[])
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $body$
declare
  mask constant bigint := {mask};
  last bigint;
  ahead bigint;
begin
  begin
    perform pg_advisory_lock(mask);
    loop
      last := coalesce(pg_sequence_last_value('{s}.xq_id'), 0);
      ahead := {now} * 1000000 - last;
      if ahead < {lag} or (ahead > {hour} and exists (
          select 1 from {s}.xq_locked_id v
          where v.id <= last and v.id > greatest(last - {lock_window}, 0) and v.id < last + ahead - {lock_window} / 2))
      then
        id := nextval('{s}.xq_id');
      elsif ahead > {hour} and {s}.xq_any_registered_v1(last) and not {s}.xq_has_clock_stayed_v1() then
        id := setval('{s}.xq_id', last + {hour});
      else
        id := setval('{s}.xq_id', last + ahead);
      end if;
      -- By try: where an application holds a lock on this very key, the next id will do.
      exit when not registered or pg_try_advisory_xact_lock(id # mask);
    end loop;
    if lists then
      excluded := {s}.xq_unfinished_v1(id);
    end if;
    perform pg_advisory_unlock(mask);
  exception when query_canceled or others then  -- "others" does not include cancel and statement time-out
    perform pg_advisory_unlock(mask);
    raise;
  end;
exception when query_canceled or others then  -- a second cancel, in the first handler: no start could pass the gate
  perform pg_advisory_unlock(mask);
  raise;
end $body$;

-- Makes all future ids greater than a number; false if ids are in progress, which would be too far below it.
create or replace function {s}.xq_set_floor_v1(floor bigint) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
declare
  last bigint;
begin
  perform {s}.xq_hold_gate_v1();
  last := coalesce(pg_sequence_last_value('{s}.xq_id'), 0);
  if floor > last then
    if {s}.xq_any_registered_v1(last) then
      return false;
    end if;
    perform setval('{s}.xq_id', floor);
  end if;
  return true;
end $body$;

-- Holds the gate until the writes of this SQL transaction are visible, but never during a flush.
create or replace function {s}.xq_hold_gate_v1() returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  perform pg_advisory_xact_lock({mask});
end $body$;

-- Returns the ids below a bound that a snapshot excludes; called under the gate. The list of locks is read first: it is
-- not transactional and contains every id that may be in progress. A later SQL snapshot of active rows and outcomes
-- decides which of them are, because a server makes a commit visible before it frees its locks.
-- The window excludes keys of other stores and of applications; the view's database excludes those of copies of this
-- store.
create or replace function {s}.xq_unfinished_v1(below bigint) returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
declare
  listed bigint[];
  active bigint[];
  invalid bigint[];
  unfinished bigint[];
begin
  listed := array(
    select v.id from {s}.xq_locked_id v
    where v.id < below and v.id > greatest(below - {lock_window}, 0));  -- 0 is the gate
  -- One statement with three arrays: a union would set up a hash table, mostly for nothing.
  select array(select l.id from unnest(listed) as l(id)
               -- uses the index, however stale statistics are
               where (select o.id from {s}.xq_outcome o where o.id = l.id limit 1) is null),
         array(select a.id from {s}.xq_active a where a.id < below),
         array(select i.id from {s}.xq_invalid i where i.id < below)
    into listed, active, invalid;
  unfinished := listed || active || invalid;
  if cardinality(unfinished) > 1 then
    unfinished := array(select distinct u.id from unnest(unfinished) as u(id) order by 1);
  end if;
  return unfinished;
end $body$;

create or replace function {s}.xq_take_snapshot_v1(out read_pointer bigint, out excluded bigint[])
language plpgsql volatile set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $body$
declare
  mask constant bigint := {mask};
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = 'XQ007', message = current_setting('transaction_isolation');
  end if;
  perform {s}.xq_require_primary_v1();
  begin
    begin
      read_pointer := case when pg_advisory_lock(mask) is null then null
        else coalesce(pg_sequence_last_value('{s}.xq_id'), 0) end;
      excluded := {s}.xq_unfinished_v1(read_pointer + 1);
      perform pg_advisory_unlock(mask);
    exception when query_canceled or others then
      perform pg_advisory_unlock(mask);
      raise;
    end;
  exception when query_canceled or others then
    perform pg_advisory_unlock(mask);
    raise;
  end;
end $body$;

-- Checks at the commit that an id is registered by a lock of this SQL transaction, the user's; returns the problem, or
-- null.
create or replace function {s}.xq_registration_fault_v1(tx bigint) returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  if not exists (select 1 from {s}.xq_locked_id v where v.pid = pg_backend_pid() and v.id = tx) then
    return 'begun in another SQL transaction';
  end if;
  -- Every session may take any advisory lock. What is under an id of the future would hide what is written before it.
  if tx > coalesce(pg_sequence_last_value('{s}.xq_id'), 0) then
    return 'its id was never drawn';
  end if;
  return null;
end $body$;

-- Keeps the readers of queues unchanged until this SQL transaction ends, by a shared lock. The key is the queue's
-- number with bit 62 set: ids are smaller, so it is never read as one, and it differs from the gate's.
create or replace function {s}.xq_hold_readers_v1(queues bigint[]) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
declare
  queue bigint;
  held bigint;
begin
  foreach queue in array queues loop
    if queue is distinct from held then
      perform pg_advisory_xact_lock_shared((queue | {queue_bit}) # {mask});
      held := queue;
    end if;
  end loop;
end $body$;

-- Takes the right to change the readers of a queue until this SQL transaction ends; false if others hold them for
-- longer than a moment. It must wait to get its turn between overlapping commits, and all later commits wait for it.
create or replace function {s}.xq_try_readers_v1(queue bigint) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp set lock_timeout = {moment_ms} as $body$
begin
  perform pg_advisory_xact_lock((queue | {queue_bit}) # {mask});
  return true;
exception when lock_not_available then
  return false;
end $body$;
