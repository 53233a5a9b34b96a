"""``export-queue init``: creating a store."""

from __future__ import annotations

from export_queue.core.cli.console import BehindPooler, Password, Schema, Url, app, open_store


@app.command()
def init(
    store: Url, password: Password = None, schema: Schema = "export_queue", behind_pooler: BehindPooler = False
) -> None:
    """Create the store, or complete it; safe to repeat."""
    with open_store(store, password, schema, behind_pooler=behind_pooler) as opened:
        opened.create()
        print(f"store {opened.id} is ready in {opened.url_safe} (schema version {opened.identity.schema_version})")
