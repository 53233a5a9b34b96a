-- Which server this is: its numbers of SQL transactions (xid) say nothing to another one.

-- Emptied when a server recovers from a crash, and empty on a standby that is promoted: in both cases numbers that were
-- given before may be given again.
create unlogged table if not exists {s}.xq_server_life (one integer primary key, token text not null);

-- cluster: null where the owner of this function may not read it. Every role may ask.
create or replace function {s}.xq_server_v1(out stored text, out cluster text, out life text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $body$
begin
  stored := (select s.cluster from {s}.xq_store s);
  begin
    cluster := (select c.system_identifier::text from pg_control_system() c);
  exception when insufficient_privilege or undefined_function then
    cluster := null;
  end;
  if pg_is_in_recovery() then
    return;  -- a standby has no life of its own
  end if;
  life := (select l.token from {s}.xq_server_life l);
  if life is null then
    insert into {s}.xq_server_life values (1, gen_random_uuid()::text) on conflict do nothing;
    life := (select l.token from {s}.xq_server_life l);
  end if;
end $body$;

update {s}.xq_store set cluster = (select v.cluster from {s}.xq_server_v1() v) where cluster is null;
