-- Ids from a row, the clock; every transaction in progress has an active row. For engines without advisory locks.

-- Draws an id and lists the ids that its snapshot excludes. The clock stays locked to the end of the SQL transaction,
-- in which the caller adds the active row: a later start finds that row, or the transaction finished, and no later
-- start commits before the list is complete. So a start is a short SQL transaction of its own.
-- A clock that is more than {hour} ahead has stepped, or nothing was drawn for so long. While an id is in progress it is
-- followed by that much at a time, unless clean-up has met it there before.
create or replace function {s}.xq_draw_v2(registered boolean, lists boolean, out id bigint, out excluded bigint[])
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  update {s}.xq_last_id set last_id = case
      when {now} * 1000000 - last_id > {hour} and exists (select 1 from {s}.xq_active)
        and not {s}.xq_has_clock_stayed_v2() then last_id + {hour}
      else greatest(last_id + 1, {now} * 1000000) end
    returning last_id into id;
  if lists then
    excluded := {s}.xq_unfinished_v2(id);
  end if;
end $body$;

-- The clock is the gate, and drawing an id holds it.
create or replace function {s}.xq_hold_gate_v2() returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
end $body$;

-- The ids below a bound that a snapshot excludes, in the SQL snapshot of the statement that calls it.
create or replace function {s}.xq_unfinished_v2(below bigint) returns bigint[]
language plpgsql stable set search_path = pg_catalog, pg_temp as $body$
begin
  return array(
    select u.id from (
      select a.id from {s}.xq_active a where a.id < below
      union select i.id from {s}.xq_invalid i where i.id < below) u
    order by u.id);
end $body$;

create or replace function {s}.xq_take_snapshot_v2(out read_pointer bigint, out excluded bigint[])
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = 'XQ007', message = current_setting('transaction_isolation');
  end if;
  perform {s}.xq_require_primary_v2();
  -- In one statement: between two, one transaction might start and commit, unseen, and then an older one, seen.
  select c.last_id, {s}.xq_unfinished_v2(c.last_id + 1) into read_pointer, excluded from {s}.xq_last_id c;
end $body$;

-- Makes all ids to come greater than a number; false if ids are in progress.
create or replace function {s}.xq_set_floor_v2(floor bigint) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  update {s}.xq_last_id set last_id = floor where last_id < floor and not exists (select 1 from {s}.xq_active);
  return floor <= (select c.last_id from {s}.xq_last_id c);
end $body$;

-- Only a row registers an id here; this function serves the other way.
create or replace function {s}.xq_prove_v2(tx bigint) returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  return 'registered in another way than the store''s';
end $body$;

-- Holds the readers of queues as they are until this SQL transaction ends, beside others who hold them: by the weakest
-- lock of their rows, which requests for locks of a queue's units do not meet.
create or replace function {s}.xq_hold_readers_v3(queues bigint[]) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  perform 1 from {s}.xq_queue q where q.number = any(queues) order by q.number for key share;
end $body$;

-- Takes the right to change the readers of a queue, until this SQL transaction ends; false where others hold them. By
-- try: to wait would help nothing, since those who share the lock of a row let each other in before whoever waits.
create or replace function {s}.xq_try_readers_v3(queue bigint) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  perform 1 from {s}.xq_queue q where q.number = queue for update skip locked;
  return found;
end $body$;
