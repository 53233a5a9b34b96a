"""The whole URL of a store's database, for connections that a test makes by itself."""

from __future__ import annotations

import sqlalchemy as sa

from export_queue import Store


def whole_url(store: Store) -> sa.URL:
    """Return the URL with its password, which a store keeps out of its engine's URL."""
    engine = store.database.engine
    if engine.dialect.name == "sqlite":
        return engine.url
    with engine.connect() as connection:
        return engine.url.set(password=connection.connection.driver_connection.info.password)  # type: ignore[union-attr]
