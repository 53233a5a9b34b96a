-- The identity of the server, whose numbers of SQL transactions (xid) mean nothing to another one.

-- Emptied when a server recovers from a crash, and empty on a promoted standby: in both cases numbers may be reused.
create unlogged table if not exists {s}.xq_server_life (one integer primary key, token text not null);

-- cluster: null if the owner of this function may not read it. Every role may call it.
create or replace function {s}.xq_server_life_v1(out stored text, out cluster text, out life text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $body$
begin
  stored := (select s.cluster from {s}.xq_store s);
  begin
    cluster := (select c.system_identifier::text from pg_control_system() c);
  exception when insufficient_privilege or undefined_function then
    cluster := null;
  end;
  if pg_is_in_recovery() then
    return;  -- a standby has no life
  end if;
  life := (select l.token from {s}.xq_server_life l);
  if life is null then
    insert into {s}.xq_server_life values (1, gen_random_uuid()::text) on conflict do nothing;
    life := (select l.token from {s}.xq_server_life l);
  end if;
end $body$;

update {s}.xq_store set cluster = (select v.cluster from {s}.xq_server_life_v1() v) where cluster is null;

-- Changes of the ids that snapshots exclude for a long time (of long transactions, and invalid ones): an added id, or a
-- removed id as a negative number. A process knows the ids as of a snapshot and reads the changes that are new in
-- another. The number makes a primary key: without one, a publication of all tables would forbid deletions.
create table if not exists {s}.xq_change (
  xid bigint not null default pg_current_xact_id()::text::bigint, change bigint not null,
  number bigint generated always as identity, primary key (xid, number));

create or replace function {s}.xq_record_change_v1() returns trigger
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $body$
begin
  insert into {s}.xq_change (change) values (case when tg_op = 'INSERT' then new.id else -old.id end);
  return null;
end $body$;

do $body$
begin
  -- Checked first: creating a trigger again would wait for all writers.
  if not exists (select 1 from pg_trigger t where t.tgrelid = '{s}.xq_active'::regclass and t.tgname = 'xq_active_comes')
  then
    create trigger xq_active_comes after insert on {s}.xq_active for each row
      when (new.kind = 'long') execute function {s}.xq_record_change_v1();
    create trigger xq_active_goes after delete on {s}.xq_active for each row
      when (old.kind = 'long') execute function {s}.xq_record_change_v1();
    create trigger xq_invalid_changes after insert or delete on {s}.xq_invalid for each row
      execute function {s}.xq_record_change_v1();
  end if;
end $body$;

-- Deletes the changes that all future snapshots see, once they are many. A process that knows the ids as of an older
-- snapshot notices in the same statement that changes are missing, and reads all ids.
create or replace function {s}.xq_forget_changes_v1(most bigint) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $body$
declare
  oldest constant bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
begin
  if (select count(*) from {s}.xq_change) > most then
    delete from {s}.xq_change c where c.xid < oldest;
    update {s}.xq_store set changes_from = oldest where changes_from < oldest;
  end if;
end $body$;
