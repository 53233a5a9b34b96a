-- From schema 4 to 5, with a lock box, compactions and layouts; clients of schema 4 go on. The new tables come with a new store's.
alter table {s}.xq_queue add column coalesce text;
update {s}.xq_store set schema_version = 5;
