"""The views that monitoring may read without this library; their names and columns are a contract."""

from __future__ import annotations

_LIVE_ENTRY = """
    not exists (select 1 from {s}xq_active a where a.id = e.seq)
    and not exists (select 1 from {s}xq_invalid i where i.id = e.seq)"""

_FORMER_LAYOUT = """left join {{s}}xq_layout l
            on q.layout > 1 and l.queue_number = coalesce(q.parent, q.number) and l.layout = {layout}"""
_STATE = "q.parent is not null and q.history_ms is not null"
_UNIT = "coalesce(l.buckets_per_range, q.buckets_per_range)"
_UNIT_OF = f"({{bucket}} / {_UNIT}) * {_UNIT}"

# The one with the least "low" keeps the horizon where it is.
_HOLDERS = """
        select id, kind, low, started_ms, deadline_ms, client, cast(null as integer) as session
        from {s}xq_active where id = owner
        union all
        select id, 'invalid', id, id / 1000000, cast(null as bigint), null, null from {s}xq_invalid"""

VIEWS = {
    "queue_lag": f"""
        select w.queue, w.first_bucket, cast(sum(w.entries) as bigint) as entries,
               cast(sum(w.bytes) as bigint) as bytes, min(w.oldest_ms) as oldest_ms, w.layout
        from (
          select q.id as queue, {_UNIT_OF.format(bucket="e.bucket")} as first_bucket,
                 count(*) as entries, sum(length(e.key) + coalesce(length(e.value), 0)) as bytes,
                 min(e.seq) / 1000000 as oldest_ms, e.layout
          from {{s}}xq_entry e join {{s}}xq_queue q on q.number = e.queue_number
          {_FORMER_LAYOUT.format(layout="e.layout")}
          where {_LIVE_ENTRY} and not ({_STATE}) group by q.id, {_UNIT_OF.format(bucket="e.bucket")}, e.layout
          union all
          select q.id, {_UNIT_OF.format(bucket="g.first_bucket")},
                 g.entries - coalesce(d.entries, 0), g.bytes - coalesce(d.bytes, 0), g.lowest_seq / 1000000, g.layout
          from {{s}}xq_segment_reader r
          join {{s}}xq_segment g on g.transaction_id = r.transaction_id and g.number = r.number
          join {{s}}xq_queue q on q.number = r.queue_number
          {_FORMER_LAYOUT.format(layout="g.layout")}
          left join (
            select queue_number, transaction_id, number, sum(entries) as entries, sum(bytes) as bytes
            from {{s}}xq_segment_done group by queue_number, transaction_id, number) d
            on d.queue_number = r.queue_number and d.transaction_id = r.transaction_id and d.number = r.number
          where not ({_STATE})) w
        group by w.queue, w.first_bucket, w.layout""",
    "subscriptions": """
        select q.id as subscription, p.id as queue, q.sink, q.first_load, q.created_ms
        from {s}xq_queue q join {s}xq_queue p on p.number = q.parent where q.history_ms is null""",
    "active_transactions": """
        select id, kind, client, started_ms, deadline_ms from {s}xq_active where id = owner""",
    "locks": """
        select q.id as queue, l.first_bucket, l.end_bucket, l.mode, l.task, l.attempt, l.fence, l.lease_ms, l.revoked
        from {s}xq_lock l join {s}xq_queue q on q.number = l.queue_number""",
    "dead_letters": """
        select q.id as queue, d.key, d.seq, d.error_class, d.reason, d.dead_since_ms
        from {s}xq_dead_letter d join {s}xq_queue q on q.number = d.queue_number""",
    "dead_letter_audit": """
        select id, queue, act, who, letters, selection, at_ms, cleared_ms, cleared_by from {s}xq_dead_letter_audit""",
    "drain_reports": "select id, drain_id, queue, finished_ms, report from {s}xq_drain_report",
    "comparisons": "select id, queue, finished_ms, report from {s}xq_comparison",
    "horizon": """
        select s.horizon, s.horizon / 1000000 as horizon_ms,
               (select max(m.at_ms) from {s}xq_low_watermark m) as marked_ms
        from {s}xq_store s""",
    "horizon_holders": _HOLDERS,
}
"""The views by name; ``{s}`` is the schema's prefix."""

VIEWS_OF_LOCKS = {
    "horizon_holders": _HOLDERS
    + """
        union all
        select v.id, 'short', v.id, v.id / 1000000, null,
               concat_ws(' ', nullif(p.application_name, ''), host(p.client_addr)), v.pid
        from {s}xq_locked_id v
        left join pg_stat_activity p on p.pid = v.pid
        where v.id <= pg_sequence_last_value('{s}xq_id')
          and v.id > pg_sequence_last_value('{s}xq_id') - {lock_window}""",
}
"""The views that differ where advisory locks register short transactions; ``{lock_window}`` is :data:`LOCK_WINDOW`."""
