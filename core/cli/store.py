"""``export-queue init`` and ``adopt``: creating a store, and moving one."""

from __future__ import annotations

from export_queue.core.cli.console import BehindPooler, Password, Schema, Url, app, open_store


@app.command()
def adopt(
    store: Url, password: Password = None, schema: Schema = "export_queue", behind_pooler: BehindPooler = False
) -> None:
    """Let a store that was restored into another cluster of servers live there; nothing else may use it meanwhile."""
    with open_store(store, password, schema, behind_pooler=behind_pooler) as opened:
        opened.adopt()
        print(f"store {opened.id} lives in this cluster now")


@app.command()
def init(
    store: Url, password: Password = None, schema: Schema = "export_queue", behind_pooler: BehindPooler = False
) -> None:
    """Create the store, or complete it; safe to repeat."""
    with open_store(store, password, schema, behind_pooler=behind_pooler) as opened:
        opened.create()
        print(f"store {opened.id} is ready in {opened.url_safe} (schema version {opened.identity.schema_version})")
