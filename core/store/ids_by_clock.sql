-- Ids from a row, the clock; every transaction in progress has an active row. For engines without advisory locks.

-- Draws an id. The clock stays locked to the end of the SQL transaction, in which the caller adds the active row:
-- whoever draws later finds that row, or the transaction finished. So a start is a short SQL transaction of its own.
create or replace function {s}.xq_draw_v1(for_session boolean) returns bigint
language plpgsql volatile as $body$
declare
  t bigint;
begin
  update {s}.xq_clock set last_id = greatest(last_id + 1, {now} * 1000000) returning last_id into t;
  return t;
end $body$;

-- Everything below a bound that a snapshot must not see; called in a statement after the one that gave the bound.
create or replace function {s}.xq_unfinished_v1(below bigint) returns bigint[]
language plpgsql volatile as $body$
begin
  return array(
    select u.id from (
      select a.id from {s}.xq_active a where a.id < below
      union select i.id from {s}.xq_invalid i where i.id < below) u
    order by u.id);
end $body$;

create or replace function {s}.xq_observe_v1(out read_pointer bigint, out excluded bigint[])
language plpgsql volatile as $body$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = 'XQ007', message = current_setting('transaction_isolation');
  end if;
  select c.last_id into read_pointer from {s}.xq_clock c;
  excluded := {s}.xq_unfinished_v1(read_pointer + 1);
end $body$;

-- Nothing but a row registers an id here; these two are the other way's.
create or replace function {s}.xq_prove_v1(tx bigint, for_session boolean) returns text
language plpgsql volatile as $body$
begin
  return 'registered in another way than the store''s';
end $body$;

create or replace function {s}.xq_free_v1(tx bigint) returns boolean language plpgsql volatile as $body$
begin
  return false;
end $body$;
