"""``export-queue locks``: the drains that are at work."""

from __future__ import annotations

from export_queue.core.cli.console import AsJson, BehindPooler, Password, Schema, Url, app, open_store, show, utc_time
from export_queue.core.locks import holders


@app.command()
def locks(
    store: Url,
    password: Password = None,
    schema: Schema = "export_queue",
    behind_pooler: BehindPooler = False,
    as_json: AsJson = False,
) -> None:
    """Show which task works on which range of which queue."""
    rows = []
    with open_store(store, password, schema, behind_pooler=behind_pooler) as opened:
        for queue in opened.queues():
            with opened.database.read() as work:
                found = holders(work, queue, queue.units())
            rows += [
                {
                    "queue": queue.id,
                    "range": holder.range.to_json(),
                    "task": holder.owner.task,
                    "fence": str(holder.fence),
                    "until": utc_time(holder.lease_ms),
                }
                for holder in found
            ]
    show(rows, as_json=as_json)
