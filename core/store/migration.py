"""Migrations: how ``create`` upgrades a store of an older schema in one SQL transaction.

Programs of the previous version may be using the store, so a change takes two releases. The first one *expands*: it
adds tables, nullable columns, and functions with a new number in their name. A later one *contracts*: it removes what
is no longer used, and raises ``oldest_code``, below which no program may open the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from export_queue.core.errors import SchemaVersionError
from export_queue.core.store import schema
from export_queue.core.store.database import Work
from export_queue.core.store.portable import prefix_of, schema_of

_OWNER = sa.text("""
    select pg_get_userbyid(c.relowner) from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = :schema and c.relname = 'xq_store'
""")
_LOCK_MS = 500
"""Maximum wait for a table, which delays all later users of it, before the migration is repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step from a schema to the next.

    New tables, functions and views need no statement: :func:`~export_queue.core.store.creation.create` adds them.
    """

    to_schema: int
    oldest_code: int
    """Oldest code, by its schema, that may open the store afterwards."""
    tables: tuple[str, ...] = ()
    """Existing tables that it changes, in the order in which commits lock them."""
    statements: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By dialect. ``{s}`` stands for the schema and a dot, or nothing."""
    views: tuple[str, ...] = ()
    """Existing views that have changed. On PostgreSQL a view may only get new columns at its end."""


MIGRATIONS: tuple[Migration, ...] = ()
"""All steps from the oldest schema that can be migrated, ascending."""


def migrate(work: Work) -> list[str]:
    """Apply the missing migrations of a store, if any.

    :returns: the views to replace once the new tables exist.
    :raises SchemaVersionError: the role may not change the tables.
    """
    connection = work.connection
    is_postgres = connection.dialect.name == "postgresql"
    if not sa.inspect(connection).has_table(schema.store.name, schema=schema_of(connection) if is_postgres else None):
        return []
    found = connection.scalar(sa.select(schema.store.c.schema_version)) or schema.SCHEMA_VERSION
    missing = [step for step in MIGRATIONS if step.to_schema > found]
    if not missing:
        return []
    if is_postgres:
        _lock(connection, [table for step in missing for table in step.tables], found)
        if connection.scalar(sa.select(schema.store.c.schema_version)) != found:
            return migrate(work)  # another process has migrated it meanwhile
    prefix, changed = prefix_of(connection), [view for step in missing for view in step.views]
    if not is_postgres:
        for name in changed:  # created again with the others
            connection.exec_driver_sql(f"drop view if exists {name}")
    for step in missing:
        for statement in step.statements.get(connection.dialect.name, ()):
            connection.exec_driver_sql(statement.replace("{s}", prefix).replace("%", "%%"))
        connection.execute(schema.store.update().values(schema_version=step.to_schema, oldest_code=step.oldest_code))
    return changed if is_postgres else []  # replaced, not dropped: users' views may read them


def _lock(connection: sa.Connection, tables: list[str], found: int) -> None:
    """Lock tables, with a short wait for each. The session acts as the store's owner already, if it may."""
    owner = connection.scalar(_OWNER, {"schema": schema_of(connection)})
    if connection.scalar(sa.text("select current_user")) != owner:
        raise SchemaVersionError(
            f"the store has schema {found} and belongs to role {owner}",
            hint=f"run `export-queue init` as {owner}, or as a role that is a member of it",
        )
    connection.exec_driver_sql(f"set local lock_timeout = '{_LOCK_MS}ms'")
    for name in (schema.store.name, *dict.fromkeys(tables)):
        connection.exec_driver_sql(f"lock table {prefix_of(connection)}{name} in access exclusive mode")
