"""``export-queue status``: the queues of a store and their backlog."""

from __future__ import annotations

from export_queue.core.cli.console import AsJson, BehindPooler, Password, Schema, Url, app, open_store, show, utc_time


@app.command()
def status(
    store: Url,
    password: Password = None,
    schema: Schema = "export_queue",
    behind_pooler: BehindPooler = False,
    as_json: AsJson = False,
) -> None:
    """Show every queue that entries wait in: how many, their age, its dead letters and its sink.

    A queue with subscriptions has a line for each of them, and says whether its first load is missing.
    """
    rows = []
    with open_store(store, password, schema, behind_pooler=behind_pooler) as opened:
        for queue in opened.queues():
            if queue.fans_out:
                continue
            units = opened.backlog(queue.id)
            oldest = min((unit.oldest_seq for unit in units), default=None)
            rows.append(
                {
                    "queue": queue.id,
                    "sink": queue.sink,
                    "first_load": queue.first_load,
                    "entries": sum(unit.entries for unit in units),
                    "bytes": sum(unit.bytes for unit in units),
                    "ranges": [unit.range.to_json() for unit in units],
                    "oldest": None if oldest is None else utc_time(oldest // 1_000_000),
                    "dead": opened.dead_letters.count(queue.id),
                }
            )
    show(rows, as_json=as_json, hide=("ranges",))
