"""From an older schema to this one, in one SQL transaction.

Schema 2 changed what a snapshot is, so no client of schema 1 may go on beside those of schema 2. One that still runs
finds neither the functions nor the table that it draws ids from: each of its transactions ends in an error, and what
it was told is committed stays so. From schema 2 on, older clients go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa

from export_queue.core.errors import SchemaVersionError
from export_queue.core.store import queries, schema, views
from export_queue.core.store.database import Work, prefix_of, schema_of

_GRANTS = sa.text("""
    select format('grant %s on %I.%I to %s%s', privilege_type, table_schema, table_name,
                  case when grantee = 'PUBLIC' then 'public' else quote_ident(grantee) end,
                  case when is_grantable = 'YES' then ' with grant option' else '' end)
    from information_schema.role_table_grants
    where table_schema = :schema and table_name = any(:views) and grantee <> grantor
""")

_OWNER = sa.text("""
    select pg_get_userbyid(c.relowner) from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = :schema and c.relname = 'xq_store'
""")
_LOCK_SECONDS = {1: 5.0, 2: 0.5, 3: 0.5, 4: 0.5}
"""How long the migration from a schema waits for whoever uses a table, and all others for it, before it tries again."""
_CHANGED_TO_3 = ("xq_active", "xq_outcome", "xq_staged_entry", "xq_queue", "xq_table")
"""The tables that the way to schema 3 locks, in a commit's order: one of schema 2 that has an outcome already, and
perhaps entries, is waited for."""
_CHANGED_TO_5 = ("xq_queue",)
_CHANGED_VIEWS = ("queue_lag",)
"""The views that schema 4 changed."""


def migrate(work: Work) -> Callable[[], None]:
    """Bring the tables of a store of an older schema to this one; does nothing where there is none.

    :returns: what to do when the views are there again: those that have changed do so, and rights are given as before.
    :raises SchemaVersionError: the store is of schema 1, and a long transaction is in progress.
    """
    connection = work.connection
    is_postgres = connection.dialect.name == "postgresql"
    names = sa.inspect(connection).get_table_names(schema=schema_of(connection) if is_postgres else None)
    if schema.store.name not in names:
        return _nothing
    found = connection.scalar(sa.select(schema.store.c.schema_version))
    if found not in _LOCK_SECONDS:
        return _nothing
    if is_postgres:
        _lock(connection, {1: names, 2: _CHANGED_TO_3, 3: _CHANGED_TO_5, 4: _CHANGED_TO_5}[found], found)
        if connection.scalar(sa.select(schema.store.c.schema_version)) != found:
            return migrate(work)  # another one was there first
    grants: list[str] = []
    if found == 1:
        _require_no_long_transaction(work)
        queries.invalid.end_all(work)
        grants = _drop_views(connection, [*views.VIEWS, "xq_locked_id"])
    elif not is_postgres:
        _drop_views(connection, _CHANGED_VIEWS)
    for version in range(found + 1, schema.SCHEMA_VERSION + 1):
        work.database.dialect.migrate(connection, to_schema=version)

    def finish() -> None:
        if is_postgres and found > 1:  # views of users may stand on them
            prefix = prefix_of(connection)
            for name in _CHANGED_VIEWS:
                body = views.VIEWS[name].format(s=prefix)
                connection.exec_driver_sql(f"create or replace view {prefix}{name} as {body}")
        for grant in grants:
            connection.exec_driver_sql(grant.replace("%", "%%"))

    return finish


def _nothing() -> None:
    pass


def _lock(connection: sa.Connection, names: Sequence[str], found: int) -> None:
    """Become the owner, and lock tables; whoever uses them is waited for, for a while."""
    owner = connection.scalar(_OWNER, {"schema": schema_of(connection)})
    if not connection.scalar(sa.text("select pg_has_role(:owner, 'member')"), {"owner": owner}):
        raise SchemaVersionError(
            f"the store is of schema {found} and belongs to role {owner}",
            hint=f"run `export-queue init` as {owner}, or as a role that is a member of it",
        )
    connection.exec_driver_sql(f"set local role {_quoted(connection, owner)}".replace("%", "%%"))
    connection.exec_driver_sql(f"set local lock_timeout = '{int(_LOCK_SECONDS[found] * 1000)}ms'")
    # A commit that has locks on some of the others has one on the outcomes.
    first = [name for name in ("xq_active", "xq_invalid", "xq_outcome") if name in names]
    others = sorted(name for name in names if name.startswith("xq_") and name not in first)
    for name in (*first, *others):
        connection.exec_driver_sql(f"lock table {prefix_of(connection)}{name} in access exclusive mode")


def _quoted(connection: sa.Connection, name: str) -> str:
    return connection.dialect.identifier_preparer.quote_identifier(name)


def _require_no_long_transaction(work: Work) -> None:
    a = schema.active.c
    in_progress = sa.select(sa.func.count(), sa.func.max(a.deadline_ms)).where(
        a.kind == "long", a.id == a.owner, a.deadline_ms >= work.now()
    )
    number, until = work.connection.execute(in_progress).one()
    if number:
        raise SchemaVersionError(
            f"store {work.database.shown_url} is of schema 1 and is brought to schema {schema.SCHEMA_VERSION} while no "
            f"long transaction is in progress, found {number}, the last until {(until - work.now()) // 1000} seconds "
            "from now",
            hint="end what uses the store with the older version, then run `export-queue init` again",
        )


def _drop_views(connection: sa.Connection, names: Sequence[str]) -> list[str]:
    grants: list[str] = []
    if connection.dialect.name == "postgresql":
        grants = list(connection.scalars(_GRANTS, {"schema": schema_of(connection), "views": list(names)}))
    for name in names:
        connection.exec_driver_sql(f"drop view if exists {prefix_of(connection)}{name}")
    return grants
