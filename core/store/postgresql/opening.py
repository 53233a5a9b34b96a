"""The engine and the seams of a store on PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from export_queue.core.drivers import bare_url, check_postgresql_files, postgresql_arguments
from export_queue.core.errors import InvalidArgument
from export_queue.core.store.dialect import Dialect
from export_queue.core.store.engine_pool import EnginePool
from export_queue.core.store.postgresql.administration import PostgresAdministration, PostgresLocks, PostgresServer
from export_queue.core.store.postgresql.connection import CLIENT_DEFAULTS, PostgresDriver, bound_connections
from export_queue.core.store.postgresql.transactions import PostgresSteps
from export_queue.core.store.postgresql.wake_ups import PostgresWakeUps

_SET_HERE = re.compile(r"(?:-c\s*|--)(search[-_]path|synchronous[-_]commit)\s*=", re.IGNORECASE)
"""Settings of a session that the store sets itself."""


def open_engine(
    url: sa.URL, schema: str, *, behind_pooler: bool = False, password: str | Callable[[], str] | None = None
) -> sa.Engine:
    """Make an engine on psycopg 3 whose connections begin no SQL transaction by themselves.

    :param password: the password, or a function that is called for each new connection.
    :raises InvalidArgument: the URL has an option that the driver does not take.
    """
    # A pooler may run the next SQL transaction in another server session, without the prepared statements of this one.
    prepare: dict[str, Any] = {"prepare_threshold": None} if behind_pooler else {}
    arguments = postgresql_arguments(url, where="the store's URL")
    check_postgresql_files(arguments, where="the store's URL")
    if own := _SET_HERE.search(arguments.get("options", "")):
        raise InvalidArgument(
            f"the store's URL: option 'options': {own[1]} cannot be honoured: the store sets it itself",
            hint="the schema of the store's tables is an argument of its own, schema=",
        )
    engine = sa.create_engine(
        bare_url(url, "postgresql+psycopg"),
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,  # errors must not show values of entries
        connect_args={
            **CLIENT_DEFAULTS,
            **arguments,
            "client_encoding": "UTF8",  # can send every text, whatever the role's default is
            **prepare,
        },
        poolclass=EnginePool,
        pool_pre_ping=False,
        pool_use_lifo=True,
        pool_reset_on_return=None,
    )
    bound_connections(engine, settings=not behind_pooler, password=password)
    return engine.execution_options(schema_translate_map={None: schema})


def open_dialect(engine: sa.Engine, schema: str) -> Dialect:
    """Make the seams of a store in a schema, on an engine of :func:`open_engine`."""
    server = PostgresServer(schema)
    return Dialect(
        name="postgresql",
        driver=PostgresDriver(schema),
        steps=PostgresSteps(schema, engine, server),
        administration=PostgresAdministration(schema),
        locks=PostgresLocks(schema),
        wake_ups=PostgresWakeUps(),
        server=server,
    )
