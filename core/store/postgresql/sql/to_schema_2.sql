-- From schema 1 to 2, whose snapshots are the server's own. The tables are locked, and no view reads them.
-- Numbers of tables and queues become ids, so that they are never used again; each table is written anew once.
alter table {s}.xq_store
  add column expiry_ms bigint not null default 0,
  add column cluster text,
  add column changes_from bigint not null default 0,
  add column lists bigint not null default 0;
alter table {s}.xq_clock rename to xq_last_id;
alter index {s}.xq_clock_pkey rename to xq_last_id_pkey;
alter table {s}.xq_table alter column number type bigint, add constraint xq_table_number_key unique (number);
alter table {s}.xq_queue alter column number type bigint;
-- Behind its first byte, a key holds the number of its table or queue: four bytes have become eight.
-- Also: a commit that waits for these tables now fails at the name of this constraint.
alter table {s}.xq_conflict_key rename constraint xq_conflict_key_pkey to xq_conflict_key_pk;
alter table {s}.xq_conflict_key
  add column xid bigint not null default 0,
  alter column key type bytea using overlay(key placing '\x00000000'::bytea from 2 for 0),
  set (fillfactor = 70);
alter table {s}.xq_staged_key alter column key type bytea using overlay(key placing '\x00000000'::bytea from 2 for 0);
alter table {s}.xq_cell alter column table_number type bigint, add column xid bigint not null default 0;
alter table {s}.xq_staged_cell
  alter column table_number type bigint, add column flush bigint not null default 0;
alter table {s}.xq_staged_entry
  alter column queue_number type bigint, add column flush bigint not null default 0;
alter table {s}.xq_staged_cell alter column flush drop default;
alter table {s}.xq_staged_entry alter column flush drop default;
alter table {s}.xq_observed alter column table_number type bigint;
alter table {s}.xq_notification alter column table_number type bigint, add column xid bigint not null default 0;
alter table {s}.xq_observer_failure alter column table_number type bigint;
alter table {s}.xq_entry alter column queue_number type bigint;
alter table {s}.xq_dead_letter rename column drain to drain_id;
alter table {s}.xq_dead_letter alter column queue_number type bigint;
-- A pass of clean-up begins anew; one that is under way ends here.
drop table {s}.xq_cleanup;
-- Nobody who held a lock is still there.
delete from {s}.xq_lock;
alter table {s}.xq_lock
  alter column queue_number type bigint,
  drop constraint xq_lock_pkey, add constraint xq_lock_pkey primary key (fence, first_bucket);
create index xq_lock_task on {s}.xq_lock (task);
alter table {s}.xq_drain_report add column idle boolean not null default false;
alter table {s}.xq_drain_report alter column idle drop default;
create index xq_drain_report_queue on {s}.xq_drain_report (queue, id);
update {s}.xq_store set schema_version = 2, oldest_code = 2;

-- A client of schema 1 that still runs calls one of these at each transaction.
do $body$
declare
  old record;
begin
  for old in select p.oid::regprocedure as name from pg_proc p
             where p.pronamespace = '{s}'::regnamespace and p.proname ~ '^xq_.*_v1$' loop
    execute format('drop function %s', old.name);
  end loop;
end $body$;
