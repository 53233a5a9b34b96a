"""Creation of a store, and the check that this code may use it."""

from __future__ import annotations

import secrets
from uuid import uuid4

import sqlalchemy as sa

from export_queue.core.errors import InvalidArgument, SchemaVersionError, StoreNotCreated
from export_queue.core.retry import Retry
from export_queue.core.store import queries, schema, views
from export_queue.core.store.database import Database, Identity, Reading, Work
from export_queue.core.store.migration import migrate
from export_queue.core.store.portable import prefix_of, schema_of
from export_queue.core.store.registration import LOCK_WINDOW
from export_queue.core.store.roles import quoted

_SIGN = 1 << 63
MAX_FLOOR = (1 << 62) - (1 << 55)
"""Ids stay below 2⁶², so above the highest floor there is room for the ids of a year."""
_MEETING = Retry(attempts=None, seconds=60, first_pause=0.05)
"""How a creation that collided with another one is repeated."""


def create(database: Database, *, floor: int = 0, who: str = "") -> Identity:
    """Create the store's tables, functions and views, or add missing ones, also to an older schema; idempotent.

    :param floor: all future ids are greater, for a store that is rebuilt while sinks hold data of its predecessor.
    :raises InvalidArgument: the floor is negative or too high.
    :raises SchemaVersionError: the existing store has a newer schema, or this role may not change it.
    """
    if not 0 <= floor <= MAX_FLOOR:
        raise InvalidArgument(f"floor: expected a number from 0 to {MAX_FLOOR}, found {floor}")

    def step() -> Identity:
        with database.begin() as work:
            if database.dialect.name == "postgresql":
                _add_schema(work.connection)
            changed_views = migrate(work)
            schema.metadata.create_all(work.connection)
            _add_first_rows(work)
            database.dialect.administration.create(work.connection)
            _create_views(work.connection, changed_views)
            if floor:
                is_raised = database.dialect.administration.last_id(work.connection) < floor
                database.dialect.administration.set_floor(work.connection, floor)
                if is_raised:
                    queries.acts.record(work, queue_id="", act="floor", who=who, selection={"floor": str(floor)})
            return check(work)

    database.create_file()
    server = database.dialect.server
    return step() if server is None else _MEETING.call(step, worth_repeating=server.is_creation_met)


def _add_schema(connection: sa.Connection) -> None:
    name = schema_of(connection)
    # Views keep the functions that they find when they are created.
    connection.exec_driver_sql("set local search_path = pg_catalog, pg_temp")
    # Two creations at once would collide in the catalogue.
    connection.execute(sa.text("select pg_advisory_xact_lock(hashtext(:name))"), {"name": f"export-queue {name}"})
    # CREATE SCHEMA IF NOT EXISTS needs the right to create a schema even if it exists.
    if connection.scalar(sa.text("select 1 from pg_namespace where nspname = :name"), {"name": name}) is None:
        connection.execute(sa.schema.CreateSchema(name))
    _act_as_owner(connection, name)


def _act_as_owner(connection: sa.Connection, schema_name: str) -> None:
    """Let what is added belong to the role that owns the store, whose functions need rights on all of it."""
    owner = connection.scalar(
        sa.text(
            "select pg_get_userbyid(c.relowner)::text from pg_class c join pg_namespace n on n.oid = c.relnamespace "
            "where n.nspname = :name and c.relname = 'xq_store' and pg_get_userbyid(c.relowner) <> current_user "
            "and pg_has_role(c.relowner, 'member')"
        ),
        {"name": schema_name},
    )
    if owner is not None:
        connection.exec_driver_sql(f"set local role {quoted(owner).replace('%', '%%')}")


def _add_first_rows(work: Work) -> None:
    connection = work.connection
    if connection.execute(sa.select(schema.store.c.one)).first() is None:
        connection.execute(
            schema.store.insert().values(
                one=1,
                store_id=uuid4().hex,
                schema_version=schema.SCHEMA_VERSION,
                oldest_code=schema.OLDEST_CODE,
                mask=secrets.randbits(63) - _SIGN,  # with the sign bit, unlike the small keys of applications
                horizon=0,
                created_ms=work.now(),
            )
        )
        connection.execute(schema.clock.insert().values(one=1, last_id=0))


def _create_views(connection: sa.Connection, changed: list[str]) -> None:
    prefix, bodies = prefix_of(connection), views.VIEWS
    if connection.dialect.name == "postgresql":
        bodies = bodies | views.VIEWS_OF_LOCKS
    existing = sa.inspect(connection).get_view_names(schema=schema_of(connection) if prefix else None)
    # Existing views stay, since they only change with the schema's version. Replacing one would wait for its readers.
    for create, names in (("create", bodies.keys() - set(existing)), ("create or replace", changed)):
        for name in names:
            body = bodies[name].format(s=prefix, lock_window=LOCK_WINDOW)
            connection.exec_driver_sql(f"{create} view {prefix}{name} as {body}")


def check(work: Reading) -> Identity:
    """Read the store's identity and check that this code may use it.

    :raises StoreNotCreated: there is no store.
    :raises SchemaVersionError: its schema is too old or too new; the hint names the command to run.
    """
    s = schema.store.c
    row = work.connection.execute(sa.select(s.store_id, s.schema_version, s.oldest_code)).first()
    if row is None:
        raise StoreNotCreated(f"{work.database.shown_url} holds no store")
    identity = Identity(*row)
    if identity.oldest_code > schema.SCHEMA_VERSION:
        raise SchemaVersionError(
            f"store {work.database.shown_url} has schema {identity.schema_version} and needs code of schema "
            f"{identity.oldest_code} or later, found code of schema {schema.SCHEMA_VERSION}",
            hint="pip install --upgrade airflow-provider-export-queue",
        )
    if identity.schema_version < schema.OLDEST_SCHEMA:
        raise SchemaVersionError(
            f"store {work.database.shown_url} has schema {identity.schema_version}, "
            f"this code needs {schema.OLDEST_SCHEMA} or later",
            hint="run `export-queue init` with this version: it adds what is missing",
        )
    if (server := work.database.dialect.server) is not None:
        server.check(work.connection)
    work.database.identity = identity
    return identity


def adopt(database: Database, *, who: str = "") -> int:
    """Take over a store that was restored, perhaps into another cluster of servers, while nothing else uses it.

    Transactions that were in progress at its backup end, since what they did later is lost and they must not commit.

    :returns: how many transactions ended.
    """
    with database.begin() as work:
        if (server := database.dialect.server) is not None:
            server.adopt(work.connection)
        ended = queries.registrations.end_all(work)
        queries.acts.record(work, queue_id="", act="adopt", who=who, letters=ended, selection={})
        check(work)
        return ended


def identity_of(database: Database) -> Identity:
    """Return the identity of the store, which is read once by :func:`check`."""
    if database.identity is None:
        with database.read() as work:
            return check(work)
    return database.identity
