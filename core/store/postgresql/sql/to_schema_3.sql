-- From schema 2 to 3, in which queues may have subscriptions; clients of schema 2 go on. The tables are locked.
alter table {s}.xq_staged_entry add column hash bigint;
alter table {s}.xq_active add column load bigint;
alter table {s}.xq_queue
  add column parent bigint,
  add column fans_out boolean not null default false,
  add column first_load text;
create index xq_queue_source on {s}.xq_queue (coalesce(parent, number));
alter table {s}.xq_table
  add column row_codec text not null default 'bytes',
  add column value_codec text not null default 'bytes';
update {s}.xq_store set schema_version = 3;
