-- What clients of schema 2 call: the steps of this schema, under the names and with the arguments of theirs. They send the
-- bucket of each entry instead of its hash: in as many buckets, that gives the same bucket.

-- Proves the store to a commit that was under way in the body that schema 2 had, while the store was brought to this
-- one. It writes entries under the number of their queue alone.
create or replace function {s}.xq_prove_store_v2(store text, queues bigint[], tables bigint[]) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  if cardinality(queues) > 0 then
    perform {s}.xq_hold_readers_v3(queues);
    if exists (select 1 from {s}.xq_queue q where q.number = any(queues) and q.fans_out) then
      raise exception using errcode = '55000', message = 'a queue has subscriptions, which this step of an older client does not know',
        hint = 'pip install --upgrade airflow-provider-export-queue';
    end if;
  end if;
  perform {s}.xq_prove_store_v3(store, queues, tables, null);
end $body$;

create or replace function {s}.xq_stage_v2(
  store text, tx bigint, flush bigint, keys bytea[],
  cell_table bigint[], cell_row bytea[], cell_column bytea[], cell_value bytea[],
  entry_queue bigint[], entry_layout int[], entry_bucket int[], entry_key bytea[], entry_value bytea[],
  notify_table bigint[], notify_row bytea[], notify_column bytea[])
returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  perform {s}.xq_prove_store_v2(store, entry_queue, '{}');
  return {s}.xq_stage_v3(store, tx, flush, keys, cell_table, cell_row, cell_column, cell_value,
    entry_queue, entry_bucket::bigint[], entry_key, entry_value, notify_table, notify_row, notify_column, null);
end $body$;

create or replace function {s}.xq_commit_v2(
  store text, registration text, request uuid, tx bigint, excluded bigint[], low bigint,
  server_xmax bigint, server_xip bigint[], deadline bigint,
  idempotency_key text, generation int, result text, keys bytea[],
  cell_table bigint[], cell_row bytea[], cell_column bytea[], cell_value bytea[],
  entry_queue bigint[], entry_layout int[], entry_bucket int[], entry_key bytea[], entry_value bytea[],
  notify_table bigint[], notify_row bytea[], notify_column bytea[],
  seen_table bigint[], seen_row bytea[], seen_column bytea[], started bigint)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  if cardinality(entry_queue) > 0 then
    perform {s}.xq_hold_readers_v3(entry_queue);
    if exists (select 1 from {s}.xq_queue p join {s}.xq_queue r on r.parent = p.number
               where p.number = any(entry_queue) and r.buckets <> p.buckets) then
      raise exception using errcode = '55000',
        message = 'a subscription has another number of buckets than its queue, for which this client is too old',
        hint = 'pip install --upgrade airflow-provider-export-queue';
    end if;
  end if;
  return {s}.xq_commit_v3(store, registration, request, tx, excluded, low, server_xmax, server_xip, deadline,
    idempotency_key, generation, result, keys, cell_table, cell_row, cell_column, cell_value,
    entry_queue, entry_bucket::bigint[], entry_key, entry_value, notify_table, notify_row, notify_column,
    seen_table, seen_row, seen_column, started, null);
end $body$;
