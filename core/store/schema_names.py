"""The PostgreSQL schema that holds a store, in statements that are not SQLAlchemy's."""

from __future__ import annotations

import sqlalchemy as sa


def schema_of(connection: sa.Connection) -> str:
    """Return the name of the PostgreSQL schema that holds the store."""
    return str(connection.get_execution_options()["schema_translate_map"][None])


def prefix_of(connection: sa.Connection) -> str:
    """Return the prefix of the store's names in a statement: the quoted schema and a point, nothing on SQLite."""
    if connection.dialect.name != "postgresql":
        return ""
    return connection.dialect.identifier_preparer.quote_schema(schema_of(connection)) + "."
