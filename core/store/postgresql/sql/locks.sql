-- Locks of queues: decisions in one round trip. The library makes all other decisions step by step, and locks the same
-- rows in the same order.

-- Grants a request that needs no decision, and returns its fence; null if the library must decide: if any overlapping
-- lock is recorded, anybody waits, or another attempt of the task is known.
-- The row of the queue stays locked until the end of the SQL transaction, which is that of this call: one request at a
-- time.
-- own: the requesting attempt first, then others of its task that it does not take over.
create or replace function {s}.xq_lock_at_once_v1(
  of_queue bigint, of_layout int, unit int, firsts int[], ends int[], members text[],
  of_mode text, of_priority int, of_task text, own text[], lease bigint) returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
declare
  drawn bigint;
  low int := (select min(f.x) from unnest(firsts) as f(x));
  high int := (select max(e.x) from unnest(ends) as e(x));
begin
  -- A stricter level would not see what was granted while this call waited for the queue's row.
  if current_setting('transaction_isolation') <> 'read committed' then
    return null;
  end if;
  perform 1 from {s}.xq_queue q where q.number = of_queue and q.buckets_per_range = unit for no key update;
  if not found then
    return null;
  end if;
  perform 1 from {s}.xq_attempt a where a.task = of_task order by a.attempt for update;
  if exists (select 1 from {s}.xq_attempt a where a.task = of_task and (a.revoked or a.attempt <> all(own)))
    or exists (select 1 from {s}.xq_lock l where l.task = of_task and l.attempt <> all(own))
    or exists (select 1 from {s}.xq_lock_request r where r.queue_number = of_queue)
  then
    return null;
  end if;
  -- For several areas their hull is checked: the library also decides about a lock in the hull that overlaps none of
  -- them.
  if exists (
    select 1 from {s}.xq_lock l
    where l.queue_number = of_queue and l.layout = of_layout and l.first_bucket < high and l.end_bucket > low
      and (cardinality(firsts) > 1 or l.segment is null or members[1] is null
           or l.segment::jsonb ?| array(select jsonb_array_elements_text(members[1]::jsonb))))
  then
    return null;
  end if;
  drawn := ({s}.xq_draw_v1(true, false)).id;
  insert into {s}.xq_lock (fence, first_bucket, queue_number, layout, end_bucket, segment, mode, priority, task,
                           attempt, lease_ms, revoked)
    select drawn, w.low, of_queue, of_layout, w.high, w.names, of_mode, of_priority, of_task, own[1], {now} + lease, false
    from unnest(firsts, ends, members) as w(low, high, names);
  return drawn;
end $body$;

-- Removes locks, by fence and first bucket; returns whether anybody waits for locks of one of the queues.
create or replace function {s}.xq_release_locks_v1(fences bigint[], firsts int[], queues bigint[]) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $body$
begin
  perform 1 from unnest(fences, firsts) as w(fence, low)
    join {s}.xq_lock l on l.fence = w.fence and l.first_bucket = w.low
    order by l.fence, l.first_bucket for update of l;
  delete from {s}.xq_lock l using unnest(fences, firsts) as w(fence, low)
    where l.fence = w.fence and l.first_bucket = w.low;
  return exists (select 1 from {s}.xq_lock_request r where r.queue_number = any(queues));
end $body$;
