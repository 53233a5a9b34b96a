"""Creating a store and checking that this code may use it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from uuid import uuid4

import sqlalchemy as sa

from export_queue.core.errors import InvalidArgument, SchemaVersionError, StoreNotCreated
from export_queue.core.store import schema, views
from export_queue.core.store.database import Database, Reading, Work, prefix_of, schema_of
from export_queue.core.store.registration import LOCK_WINDOW, IdSource

_SIGN = 1 << 63


@dataclass(frozen=True, slots=True)
class Identity:
    """Which store this is."""

    store_id: str
    schema_version: int
    oldest_code: int


def create(database: Database, *, floor: int = 0, id_source: IdSource | None = None) -> Identity:
    """Create the store's tables, functions and views, or complete them; idempotent.

    :param database: where.
    :param floor: all ids to come are greater: for a store that is rebuilt while sinks hold data of its predecessor.
    :param id_source: where a new store's ids come from; by default the best that the database can do.
    :raises InvalidArgument: the floor is negative or no 62-bit number.
    :raises SchemaVersionError: a store of a newer version is there.
    """
    if not 0 <= floor < 1 << 62:
        raise InvalidArgument(f"floor: expected a number from 0 to 2**62 - 1, found {floor}")
    database.create_place()
    with database.begin() as work:
        connection = work.connection
        source = id_source or database.dialect.id_source(connection)
        if database.dialect.name == "postgresql":
            name = schema_of(connection)
            if source == "sequence":
                # Two that create at once would meet in the catalogue.
                connection.execute(
                    sa.text("select pg_advisory_xact_lock(hashtext(:name))"), {"name": f"export-queue {name}"}
                )
            connection.execute(sa.schema.CreateSchema(name, if_not_exists=True))
        schema.metadata.create_all(connection)
        _add_first_rows(work, source)
        database.dialect.create(connection)
        _create_views(connection)
        if floor:
            database.dialect.set_floor(connection, floor)
        return check(work)


def _add_first_rows(work: Work, source: IdSource) -> None:
    connection = work.connection
    if connection.execute(sa.select(schema.store.c.one)).first() is None:
        connection.execute(
            schema.store.insert().values(
                one=1,
                store_id=uuid4().hex,
                schema_version=schema.SCHEMA_VERSION,
                oldest_code=schema.SCHEMA_VERSION,
                mask=secrets.randbits(63) - _SIGN,  # the sign bit is set: never like the small keys of applications
                id_source=source,
                horizon=0,
                created_ms=work.now(),
            )
        )
        connection.execute(schema.clock.insert().values(one=1, last_id=0))


def _create_views(connection: sa.Connection) -> None:
    prefix, bodies = prefix_of(connection), views.VIEWS
    if connection.scalar(sa.select(schema.store.c.id_source)) == "sequence":
        bodies = bodies | views.VIEWS_OF_LOCKS
    for name, body in bodies.items():
        connection.exec_driver_sql(f"drop view if exists {prefix}{name}")
        connection.exec_driver_sql(f"create view {prefix}{name} as {body.format(s=prefix, lock_window=LOCK_WINDOW)}")


def check(work: Reading) -> Identity:
    """Read the store's identity and see whether this code may use it.

    :raises StoreNotCreated: there is none.
    :raises SchemaVersionError: its version does not fit, with the command to run.
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
    return identity
